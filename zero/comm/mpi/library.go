//go:build linux && (amd64 || arm64)

package mpi

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/ebitengine/purego"
)

// names are the files of the two families. libmpi.so.12 is that of the libraries
// which share MPICH's binary interface.
func names(family string) []string {
	switch family {
	case OpenMPI:
		return []string{"libmpi.so.40", "libmpi.so"}
	case MPICH:
		return []string{"libmpich.so.12", "libmpi.so.12"}
	}
	return append(names(OpenMPI), names(MPICH)...)
}

// library is a loaded MPI library.
type library struct {
	path    string
	version string // as it describes itself, in one line
	abi
	functions
}

// functions are the addresses of what is called.
type functions struct {
	getLibraryVersion, initThread, commRank, commSize, commSetErrhandler uintptr
	isend, irecv, testsome, errorString, abort, finalize                 uintptr
	reduceScatterBlock, allgather                                        uintptr
}

// abi is what the two families do differently.
type abi struct {
	family      string
	world       uintptr // MPI_COMM_WORLD
	bytes       uintptr // MPI_BYTE
	floats      uintptr // MPI_FLOAT
	sum         uintptr // MPI_SUM
	errorReturn uintptr // MPI_ERRORS_RETURN
	request     int     // bytes of an MPI_Request
	status      int     // bytes of an MPI_Status
	statusError int     // where MPI_ERROR is in it
	inStatus    int32   // MPI_ERR_IN_STATUS
}

// load finds the library: by its path or family, or the family that the launcher
// belongs to, or any.
func load(choice string, l Launch) (*library, error) {
	// UCX, which MPICH may use, would replace Go's handler for invalid memory
	// accesses, which turns them into panics.
	for name, value := range environment {
		if _, set := os.LookupEnv(name); !set {
			if err := os.Setenv(name, value); err != nil {
				return nil, err
			}
		}
	}
	family := l.Family
	if choice == OpenMPI || choice == MPICH {
		family = choice
	}
	candidates := names(family)
	if strings.ContainsRune(choice, '/') {
		candidates = []string{choice}
	}
	var tried []string
	for _, path := range places(candidates) {
		handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
		if err != nil {
			tried = append(tried, firstLine(err.Error()))
			continue
		}
		lib, err := bind(path, handle)
		if err != nil {
			tried = append(tried, fmt.Sprintf("%s: %v", path, err))
			continue
		}
		return lib, nil
	}
	return nil, notFound(choice, family, l, tried)
}

// environment is set for the library where the user has not.
var environment = map[string]string{
	"UCX_HANDLE_ERRORS":    "none",
	"OMPI_MCA_opal_signal": "6", // not the signals that Go handles
}

// places are the candidates by name, for the system's search path, and in the
// folders where distributions and builds put them. A folder that has none is left
// out.
func places(candidates []string) []string {
	all := append([]string(nil), candidates...)
	if len(candidates) == 1 && strings.ContainsRune(candidates[0], '/') {
		return all
	}
	folders := []string{
		os.Getenv("MPI_HOME") + "/lib", os.Getenv("I_MPI_ROOT") + "/lib/release",
		"/usr/lib64/openmpi/lib", "/usr/lib64/mpich/lib", "/usr/local/lib", "/opt/openmpi/lib", "/opt/mpich/lib",
	}
	if run, err := exec.LookPath("mpirun"); err == nil {
		if real, err := filepath.EvalSymlinks(run); err == nil {
			folders = append(folders, filepath.Join(filepath.Dir(real), "..", "lib"))
		}
	}
	for _, folder := range folders {
		for _, name := range candidates {
			path := filepath.Join(folder, name)
			if _, err := os.Stat(path); err == nil && filepath.IsAbs(path) {
				all = append(all, path)
			}
		}
	}
	return all
}

func notFound(choice, family string, l Launch, tried []string) error {
	why := "no launcher"
	if l.Launcher != "" {
		why = "started by " + l.Launcher
	}
	install := "apt-get install openmpi-bin, or mpich (Fedora: dnf install openmpi, or mpich)"
	switch family {
	case OpenMPI:
		install = "apt-get install openmpi-bin (Fedora: dnf install openmpi)"
	case MPICH:
		install = "apt-get install mpich (Fedora: dnf install mpich)"
	}
	return fmt.Errorf("no MPI library (comm.library = %q, %s): looked for %s; install one with %s, or name its file in comm.library", choice, why, strings.Join(tried, "; "), install)
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s
}

// bind finds the library's functions and constants.
func bind(path string, handle uintptr) (*library, error) {
	l := &library{path: path}
	f := &l.functions
	for name, to := range map[string]*uintptr{
		"MPI_Get_library_version": &f.getLibraryVersion, "MPI_Init_thread": &f.initThread,
		"MPI_Comm_rank": &f.commRank, "MPI_Comm_size": &f.commSize, "MPI_Comm_set_errhandler": &f.commSetErrhandler,
		"MPI_Isend": &f.isend, "MPI_Irecv": &f.irecv, "MPI_Testsome": &f.testsome, "MPI_Error_string": &f.errorString,
		"MPI_Abort": &f.abort, "MPI_Finalize": &f.finalize,
		"MPI_Reduce_scatter_block": &f.reduceScatterBlock, "MPI_Allgather": &f.allgather,
	} {
		at, err := purego.Dlsym(handle, name)
		if err != nil {
			return nil, fmt.Errorf("not an MPI library: %s", firstLine(err.Error()))
		}
		*to = at
	}
	l.version = l.describe()
	if err := l.bindABI(handle); err != nil {
		return nil, err
	}
	return l, nil
}

// bindABI decides the family. Open MPI's handles are addresses of its variables,
// those of MPICH and its relatives are numbers.
func (l *library) bindABI(handle uintptr) error {
	switch {
	case strings.Contains(l.version, "Open MPI"):
		a := abi{family: OpenMPI, request: 8, status: 24, statusError: 8, inStatus: 18}
		for name, to := range map[string]*uintptr{
			"ompi_mpi_comm_world": &a.world, "ompi_mpi_byte": &a.bytes, "ompi_mpi_float": &a.floats,
			"ompi_mpi_op_sum": &a.sum, "ompi_mpi_errors_return": &a.errorReturn,
		} {
			at, err := purego.Dlsym(handle, name)
			if err != nil {
				return errors.New(firstLine(err.Error()))
			}
			*to = at
		}
		l.abi = a
	case strings.Contains(l.version, "MPICH"), strings.Contains(l.version, "Intel(R) MPI"), strings.Contains(l.version, "MVAPICH"):
		l.abi = abi{
			family: MPICH, world: 0x44000000, bytes: 0x4c00010d, floats: 0x4c00040a, sum: 0x58000003, errorReturn: 0x54000001,
			request: 4, status: 20, statusError: 16, inStatus: 17,
		}
	default:
		return fmt.Errorf("it is %q: known are Open MPI, and MPICH and the libraries with its binary interface", l.version)
	}
	return nil
}
