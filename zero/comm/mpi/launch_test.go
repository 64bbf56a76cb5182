package mpi

import (
	"strings"
	"testing"
)

func env(pairs ...string) func(string) string {
	return func(name string) string {
		for _, p := range pairs {
			if k, v, _ := strings.Cut(p, "="); k == name {
				return v
			}
		}
		return ""
	}
}

func TestDetectReadsTheLaunchersEnvironment(t *testing.T) {
	for _, tc := range []struct {
		name string
		env  []string
		want Launch
	}{
		{"none", nil, Launch{"", "", -1, 0, -1}},
		{"Open MPI", []string{"OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=1", "PMIX_RANK=2"}, Launch{"mpirun (Open MPI)", OpenMPI, 2, 4, 1}},
		{"MPICH", []string{"PMI_RANK=1", "PMI_SIZE=3", "MPI_LOCALRANKID=0"}, Launch{"mpiexec (MPICH)", MPICH, 1, 3, 0}},
		{"srun pmix", []string{"SLURM_STEP_ID=0", "SLURM_PROCID=3", "SLURM_NTASKS=8", "SLURM_LOCALID=1", "PMIX_RANK=3"}, Launch{"srun", OpenMPI, 3, 8, 1}},
		{"srun pmi2", []string{"SLURM_STEP_ID=0", "SLURM_PROCID=3", "SLURM_NTASKS=8", "SLURM_LOCALID=1", "PMI_RANK=3", "PMI_SIZE=8"}, Launch{"srun", MPICH, 3, 8, 1}},
		{"a batch script without srun", []string{"SLURM_PROCID=0", "SLURM_NTASKS=8"}, Launch{"", "", -1, 0, -1}},
		{"torchrun", []string{"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1", "MASTER_ADDR=x"}, Launch{"torchrun", "", 1, 2, 1}},
		{"only RANK", []string{"RANK=1"}, Launch{"", "", -1, 0, -1}},
		{"mpirun within torchrun's variables", []string{"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=x", "PMI_RANK=0", "PMI_SIZE=2"}, Launch{"mpiexec (MPICH)", MPICH, 0, 2, -1}},
	} {
		if got := Detect(env(tc.env...)); got != tc.want {
			t.Errorf("%s: %+v, want %+v", tc.name, got, tc.want)
		}
	}
}

func TestTorchrunIsToldHowToStart(t *testing.T) {
	err := Detect(env("RANK=1", "WORLD_SIZE=8", "MASTER_ADDR=x")).Check()
	if err == nil || !strings.Contains(err.Error(), "mpirun -np 8") {
		t.Errorf("error %v", err)
	}
	if err := Detect(env("PMI_RANK=0", "PMI_SIZE=2")).Check(); err != nil {
		t.Error(err)
	}
}

// TestALibraryThatDoesNotFitIsFound: N processes that are each alone in a world of
// their own would be N trainings.
func TestALibraryThatDoesNotFitIsFound(t *testing.T) {
	l := Launch{Launcher: "srun", Size: 4}
	if err := l.verify(0, 1, "libmpi"); err == nil || !strings.Contains(err.Error(), "4 processes") || !strings.Contains(err.Error(), "--mpi=pmix") {
		t.Errorf("error %v", err)
	}
	if err := l.verify(3, 4, "libmpi"); err != nil {
		t.Error(err)
	}
	if err := (Launch{}).verify(0, 1, "libmpi"); err != nil {
		t.Error(err)
	}
}
