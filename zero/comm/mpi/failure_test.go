//go:build linux && (amd64 || arm64)

package mpi

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zerogap/zerogap/internal/launch"
	"github.com/zerogap/zerogap/zero/checkpoint"
)

// TestARankFails: whatever happens to a rank, in whatever phase, the job ends soon,
// not with success, says which rank it was, leaves no process, and a new start goes on
// from the last checkpoint to the same bits.
func TestARankFails(t *testing.T) {
	for _, l := range launch.Find(t) {
		want := fingerprint(t, l, 2, t.TempDir())
		for _, world := range []int{2, 4} {
			for _, place := range []string{"forward", "collective", "checkpoint"} {
				for _, deed := range []string{"kill", "stop", "error", "panic"} {
					if place == "collective" && deed == "panic" {
						continue // nothing can panic there but the optimizer itself
					}
					if testing.Short() && (world == 4 || deed == "panic" || place == "forward") {
						continue
					}
					t.Run(fmt.Sprintf("%s/ranks=%d/%s in %s", l.Family, world, deed, place), func(t *testing.T) {
						t.Parallel() // most of it is waiting
						fail(t, l, world, fault{1, place, 4, deed}, want)
					})
				}
			}
		}
	}
}

func fail(t *testing.T, l launch.Launcher, world int, f fault, want string) {
	dir := t.TempDir()
	r := train(t, l, world, dir, fmt.Sprintf("%d %s %d %s", f.rank, f.place, f.step, f.deed))
	if r.Code == 0 || r.TimedOut {
		t.Errorf("the job did not end with a failure of its own: %v", r)
	}
	if limit := trainTimeout + brokenTime + 5*time.Second; r.Took > limit {
		t.Errorf("the job took %v, want at most %v: %v", r.Took, limit, r)
	}
	// MPICH's launcher kills all other processes in the moment when one was killed, and
	// gives the number of any of them.
	if said := strings.ToLower(r.Stdout + r.Stderr); !strings.Contains(said, "rank 1") && (l.Family != "mpich" || f.deed != "kill") {
		t.Errorf("nobody names rank 1: %v", r)
	}
	if f.deed != "kill" && f.deed != "stop" && !strings.Contains(r.Stderr, "train: rank 1: ") {
		t.Errorf("rank 1 does not say why: %v", r)
	}
	if f.deed == "stop" && (r.Code != ExitFailed || !strings.Contains(r.Stderr, "waited 3s for")) {
		t.Errorf("want exit code %d and the wait: %v", ExitFailed, r)
	}
	if testing.Verbose() {
		t.Logf("exit code %d after %v\n%s", r.Code, r.Took.Round(100*time.Millisecond), r.Stderr)
	}
	gone(t, dir, world)
	folder, err := checkpoint.Latest(filepath.Join(dir, "checkpoints"))
	if err != nil {
		t.Fatal(err)
	}
	step := folder.Step()
	if err := folder.Close(); err != nil {
		t.Error(err)
	}
	if step < f.step-1 || step > f.step {
		t.Errorf("the last checkpoint is of step %d, the fault was in step %d", step, f.step)
	}
	if got := fingerprint(t, l, world, dir); got != want {
		t.Errorf("resumed from step %d: %s, want %s", step, got, want)
	}
}

// brokenTime is what the end of a broken job may take: the wait for the other ranks,
// and MPI_Abort.
const brokenTime = 2*time.Second + abortTime

// train runs the training on ranks of l.
func train(t *testing.T, l launch.Launcher, world int, dir, fault string) launch.Result {
	t.Helper()
	return l.Run(t, launch.Command{
		Ranks: world, Timeout: time.Minute, Args: []string{os.Args[0]},
		Env: []string{envTrain + "=" + fault, envOut + "=" + dir, "GORACE=exitcode=66"},
	})
}

// fingerprint trains to the end and returns what came of it.
func fingerprint(t *testing.T, l launch.Launcher, world int, dir string) string {
	t.Helper()
	if r := train(t, l, world, dir, "none"); r.Code != 0 {
		t.Fatal(r)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "fingerprint"))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// gone checks that the ranks' processes have ended.
func gone(t *testing.T, dir string, world int) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for rank := range world {
		pid, err := strconv.Atoi(pid(t, dir, rank))
		if err != nil {
			t.Fatal(err)
		}
		for !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) && !zombie(pid) {
			if time.Now().After(deadline) {
				t.Errorf("rank %d, process %d, is still there", rank, pid)
				_ = syscall.Kill(pid, syscall.SIGKILL)
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// pid is the number of a rank's process.
func pid(t *testing.T, dir string, rank int) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("pid-%d", rank)))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// zombie reports whether a process has ended and nobody has asked for its exit code.
func zombie(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(raw), ") Z ")
}
