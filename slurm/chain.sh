#!/bin/bash
# Submit a chain of jobs, for sites where a job cannot requeue itself. Each job starts when the previous one has ended,
# and resumes its run. Jobs that are left when the run is finished end at once.
#
#   slurm/chain.sh 5 --nodes=4 --ntasks-per-node=32 slurm/train.sbatch job.toml
if [[ ! ${1:-} =~ ^[1-9][0-9]*$ || $# -lt 2 ]]; then
    echo "chain.sh: expected a number of jobs and the arguments of sbatch, found ${*:-nothing}" >&2
    exit 2
fi
if [[ " $* " == *" --fresh "* ]]; then
    echo "chain.sh: expected jobs that resume each other, found --fresh" >&2
    exit 2
fi
count=$1
shift
export REQUEUE=no
jobs=()
for ((i = 0; i < count; i++)); do
    export LINK=${i#0} # empty for the first job; other jobs do not start if the run directory has a file "stop"
    job=$(sbatch --parsable --no-requeue ${jobs:+--dependency=afterany:${jobs[-1]}} "$@") || exit
    jobs+=("${job%%;*}")
done
echo "submitted ${jobs[*]}; to cancel all: scancel ${jobs[*]}"
