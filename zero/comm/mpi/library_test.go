//go:build linux && (amd64 || arm64)

package mpi

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestAMissingLibraryIsNamed: the error says what was looked for, for whom, and how to
// install it.
func TestAMissingLibraryIsNamed(t *testing.T) {
	_, err := load("/no/such/libmpi.so", Launch{Launcher: "srun"})
	if err == nil {
		t.Fatal("a library that is not there was loaded")
	}
	for _, want := range []string{"/no/such/libmpi.so", "srun", "apt-get install openmpi-bin", "comm.library"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not contain %q", err, want)
		}
	}
	// A library that is something else.
	if _, err := load("/lib/x86_64-linux-gnu/libc.so.6", Launch{}); err == nil || !strings.Contains(err.Error(), "not an MPI library") && !strings.Contains(err.Error(), "no such file") && !strings.Contains(err.Error(), "cannot open") {
		t.Errorf("libc as an MPI library: %v", err)
	}
}

// TestConstantsAreThoseOfMPICHsHeader compares the numbers with mpi.h where the
// development package is installed.
func TestConstantsAreThoseOfMPICHsHeader(t *testing.T) {
	found, _ := filepath.Glob("/usr/include/*/mpich/mpi.h")
	if len(found) == 0 {
		t.Skip("no mpi.h of MPICH: apt-get install libmpich-dev")
	}
	header, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"MPI_COMM_WORLD": "0x44000000", "MPI_BYTE": "0x4c00010d", "MPI_FLOAT": "0x4c00040a", "MPI_SUM": "0x58000003",
		"MPI_ERRORS_RETURN": "0x54000001", "MPI_ERR_IN_STATUS": "17", "MPI_THREAD_SERIALIZED": "2",
	} {
		m := regexp.MustCompile(`#define ` + name + `\s.*?(0x[0-9a-f]+|\b\d+)`).FindSubmatch(header)
		if m == nil || string(m[1]) != want {
			t.Errorf("%s in %s: %q, want %s", name, found[0], m, want)
		}
	}
	status := regexp.MustCompile(`(?s)typedef struct MPI_Status \{\s*int count_lo;\s*int count_hi_and_cancelled;\s*int MPI_SOURCE;\s*int MPI_TAG;\s*int MPI_ERROR;\s*\}`)
	if !status.Match(header) {
		t.Errorf("MPI_Status of %s has another layout", found[0])
	}
}
