#!/bin/bash
# A chain of jobs for sites where a job cannot queue itself again: each begins when the one before has ended, and goes on
# with its run; those that are left when the run is finished end at once.
#
#   slurm/chain.sh 5 --nodes=4 --ntasks-per-node=32 slurm/train.sbatch job.toml
if [[ ! ${1:-} =~ ^[1-9][0-9]*$ || $# -lt 2 ]]; then
    echo "chain.sh: expected a number of jobs and what follows sbatch, found ${*:-nothing}" >&2
    exit 2
fi
if [[ " $* " == *" --fresh "* ]]; then
    echo "chain.sh: expected links that go on from each other, found --fresh" >&2
    exit 2
fi
count=$1
shift
export REQUEUE=no
jobs=()
for ((i = 0; i < count; i++)); do
    export LINK=${i#0} # empty for the first; the others do not begin where there is a file "stop" in the run directory
    job=$(sbatch --parsable --no-requeue ${jobs:+--dependency=afterany:${jobs[-1]}} "$@") || exit
    jobs+=("${job%%;*}")
done
echo "submitted ${jobs[*]}; to end them all: scancel ${jobs[*]}"
