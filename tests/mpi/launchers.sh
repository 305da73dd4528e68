#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# How a process finds its world: alone without MPI, under MPICH's launcher, with a communicator that is
# handed in; and how it refuses the launcher of another MPI.
mpiexec=$1
program=$2
failed=0

# expect CODE PATTERN COUNT COMMAND...: exit code, and COUNT lines that match
expect() {
    code=$1 pattern=$2 count=$3
    shift 3
    out=$(timeout -k 1 20 "$@" 2>&1)
    got=$?
    lines=$(printf '%s\n' "$out" | grep -c "$pattern")
    if [ $got -ne "$code" ] || [ "$lines" -ne "$count" ]; then
        echo "$*: exit code $got, not $code, or not $count lines of '$pattern':" && echo "$out"
        failed=1
    fi
}

expect 0 '^rank 0 of 1, mpi 0$' 1 "$program"
expect 0 '^rank [01] of 2, mpi 1$' 2 "$mpiexec" -n 2 "$program"
expect 0 '^rank 1 of 2, mpi 1$' 2 "$mpiexec" -n 4 "$program" given
expect 2 'handed in is MPI_COMM_NULL$' 2 "$mpiexec" -n 2 "$program" null
expect 2 'handed in is no intracommunicator$' 2 "$mpiexec" -n 2 "$program" inter
expect 0 '^rank 0 of 1, mpi 1$' 2 "$mpiexec" -n 2 "$program" gone
expect 4 "started by Open MPI's mpiexec (4 ranks).*use mpiexec.mpich" 1 \
    env OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=0 "$program"
expect 4 'Slurm started 4 tasks.*use srun --mpi=pmi2' 1 \
    env SLURM_PROCID=0 SLURM_NTASKS=4 "$program"
expect 4 'PMIx launcher.*use mpiexec.mpich' 1 env PMIX_RANK=2 "$program"
expect 0 '^rank 0 of 1, mpi 1$' 1 env OMPI_COMM_WORLD_SIZE=1 "$program"
expect 0 '^rank 0 of 1, mpi 0$' 1 env SLURM_PROCID=0 SLURM_NTASKS=1 "$program"
exit $failed
