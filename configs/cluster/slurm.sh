#!/usr/bin/env bash
# A training under Slurm: one process per rank, started by srun.
#
#   sbatch configs/cluster/slurm.sh configs/zero2.toml
#
#SBATCH --job-name=zerogap
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=4
#SBATCH --output=%x-%j.out
set -euo pipefail

# pmix with Open MPI, pmi2 with MPICH: `srun --mpi=list` says what this Slurm has. With
# another one each process would be alone in a world of its own, which train refuses.
mpi=${MPI:-pmix}

# One CPU less than a rank has, for the thread that communicates.
export GOMAXPROCS=$(( ${SLURM_CPUS_PER_TASK:-2} > 1 ? ${SLURM_CPUS_PER_TASK:-2} - 1 : 1 ))

srun --mpi="$mpi" --kill-on-bad-exit=1 train -config "$1" \
  -out "out/$SLURM_JOB_ID" "${@:2}"
