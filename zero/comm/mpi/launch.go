package mpi

import (
	"fmt"
	"strconv"
)

// Launch is what the environment says about how the process was started.
type Launch struct {
	Launcher  string // "mpirun (Open MPI)", "mpiexec (MPICH)", "srun", "torchrun"; "" for none
	Family    string // of the MPI library that the launcher belongs to: OpenMPI, MPICH or "" where it does not tell
	Rank      int    // -1 when unknown
	Size      int    // 0 when unknown
	LocalRank int    // number among the ranks of this machine; -1 when unknown
}

// The families of MPI libraries, as comm.library names them.
const (
	OpenMPI = "openmpi"
	MPICH   = "mpich"
)

// Detect reads the environment, of which getenv is os.Getenv.
func Detect(getenv func(string) string) Launch {
	has := func(name string) bool { return getenv(name) != "" }
	number := func(name string, none int) int {
		n, err := strconv.Atoi(getenv(name))
		if err != nil {
			return none
		}
		return n
	}
	from := func(launcher, family, rank, size, local string) Launch {
		return Launch{launcher, family, number(rank, -1), number(size, 0), number(local, -1)}
	}
	switch {
	case has("OMPI_COMM_WORLD_SIZE"):
		return from("mpirun (Open MPI)", OpenMPI, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")
	case has("SLURM_STEP_ID") && has("SLURM_PROCID"):
		// Within srun. Which library fits depends on its --mpi option.
		l := from("srun", "", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
		switch {
		case has("PMIX_RANK"):
			l.Family = OpenMPI
		case has("PMI_RANK"):
			l.Family = MPICH
		}
		return l
	case has("PMI_SIZE"):
		return from("mpiexec (MPICH)", MPICH, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID")
	case has("TORCHELASTIC_RUN_ID"), has("RANK") && has("WORLD_SIZE") && has("MASTER_ADDR"):
		return from("torchrun", "", "RANK", "WORLD_SIZE", "LOCAL_RANK")
	}
	return Launch{Rank: -1, LocalRank: -1}
}

// MPI reports whether a launcher that can start MPI has started the process.
func (l Launch) MPI() bool { return l.Launcher != "" && l.Launcher != "torchrun" }

// Check returns an error for a launcher that cannot start MPI.
func (l Launch) Check() error {
	if l.Launcher == "torchrun" {
		return fmt.Errorf("RANK, WORLD_SIZE and MASTER_ADDR of torchrun are set: they cannot start MPI; start with mpirun or srun, for example mpirun -np %d train -config FILE, or set comm.engine = \"local\"", max(2, l.Size))
	}
	return nil
}

// verify holds what MPI says against the environment: a library that does not fit the
// launcher makes every process a job of its own, and nobody would notice.
func (l Launch) verify(rank, size int, library string) error {
	if !l.MPI() || l.Size <= 1 || size > 1 {
		return nil
	}
	return fmt.Errorf("%s has started %d processes, but for the MPI library this is the only one (rank %d of %d): the library does not fit the launcher; it is %s; choose the other with comm.library = \"openmpi\" or \"mpich\"; under srun use --mpi=pmix with Open MPI and --mpi=pmi2 with MPICH",
		l.Launcher, l.Size, rank, size, library)
}
