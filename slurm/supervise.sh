# Read by the batch scripts for training; not to be submitted itself.
#
#   supervise JOB.toml [more for train]
#
# runs "${LAUNCH[@]}" "$PYTHON" -m parallel_et.train with these arguments inside a batch job, and then:
#   exit code 0    the run is finished: so is the job
#   exit code 75   it stopped with a checkpoint: the job queues itself again (not with REQUEUE=no, nor after
#                  scancel, nor while there is a file "stop" in the run directory)
#   a lost node    a node is silent, or its network (exit code 200): the job queues itself again
#   any other      if a node of the job does not answer, the job queues itself again, else it ends with that code
# After MAX_STALLS (3) starts of a job in a row without a newer checkpoint it gives up.

say() {
    echo "$(date '+%F %T')  job $SLURM_JOB_ID: $*" >&2
}

# The run directory, as train finds it.
run_directory() {
    local name=${1##*/} directory=
    directory=runs/${name%.toml}
    while (($#)); do
        case $1 in
            --output) directory=$2 ;;
            --output=*) directory=${1#*=} ;;
        esac
        shift
    done
    [[ $directory == -* ]] && directory=./$directory # else other commands would take it for an option
    printf '%s\n' "${directory%/}"
}

newest_checkpoint() {
    local newest
    newest=$(ls "$1/checkpoints" 2>/dev/null | grep -E "^[0-9]+[.]h5$" | sort -n | tail -n 1)
    echo "${newest:-none}"
}

# Count the starts of this job since the newest checkpoint was made, also those after a dead node or a requeue by others.
check_progress() {
    local job= checkpoint= stalls=0 newest
    newest=$(newest_checkpoint "$run")
    [[ -e $run.restarts ]] && read -r job checkpoint stalls <"$run.restarts"
    if [[ ${SLURM_RESTART_COUNT:-0} -gt 0 && $job == "$SLURM_JOB_ID" && $checkpoint == "$newest" && $stalls =~ ^[0-9]+$ ]]; then
        stalls=$((stalls + 1))
    else
        stalls=0
    fi
    mkdir -p "$(dirname "$run")" && echo "$SLURM_JOB_ID $newest $stalls" >"$run.restarts"
    if ((stalls >= ${MAX_STALLS:-3})); then
        say "gave up: $stalls starts in a row without a newer checkpoint in $run/checkpoints, the newest: $newest"
        rm -f "$run.restarts"
        exit 1
    fi
}

# While the controller of Slurm is away, as when it is started again, wait for it. Never queue a job again that Slurm has
# begun anew elsewhere, because it had lost this node.
requeue() {
    local patience=$((SECONDS + 600)) restarts
    if [[ ${REQUEUE:-yes} == no ]]; then
        say "stopped with work left; the same command goes on"
        return
    fi
    until restarts=$(squeue -h -j "$SLURM_JOB_ID" -O RestartCnt:20); do
        ((SECONDS < patience)) || break
        sleep 2
    done
    if ((restarts != ${SLURM_RESTART_COUNT:-0})); then
        say "stopped; Slurm has queued it again"
    elif scontrol requeue "$SLURM_JOB_ID"; then
        say "stopped with work left and queued again"
    else
        say "stopped with work left, but cannot be queued again here; submit it again, or use chain.sh"
    fi
}

# Once the root has lost a node, end the launcher after 15 seconds, with its children first. It may try for long to reach
# that node. And should Slurm begin the job anew elsewhere, the launcher would end the new ranks for the old ones.
guard() {
    while kill -0 "$1" 2>/dev/null; do
        if [[ -e $PARALLEL_ET_LOST_FILE ]]; then
            sleep 15
            pkill -KILL -P "$1"
            kill -KILL "$1"
        fi
        sleep 1
    done
}

# Run a command on each node of the job, for so many seconds at most.
on_each_node() {
    timeout --kill-after=2 "$1" srun --mpi=none --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
        "${@:2}"
}

# Slurm ends the job. Time over means that the notice was too short: go on from the last checkpoint. Whoever else ended it
# (scancel, preemption, scontrol requeue) knows what is to come. The ranks have had the signal, a second would end them at once.
ended_by_slurm() {
    ended=yes
    if [[ $(squeue -h -j "$SLURM_JOB_ID" -o %r) == TimeLimit ]]; then
        requeue
    fi
}

# Under srun MPICH names the memory that the ranks of a node share after job and step, and a job that is queued again has
# the same numbers: what ranks that were killed left behind would be taken for its own, and it would hang or fail.
sweep_nodes() {
    local sweep='find /dev/shm -maxdepth 1 -name "mpich_*" -user "$(id -u)" -not -newermt "-5 seconds" 2>/dev/null |
        while read -r file; do grep -qsF "$file" /proc/[0-9]*/maps || rm -f "$file"; done'
    on_each_node 60 bash -c "$sweep" ||
        say "could not look for what is left of killed ranks in /dev/shm"
}

supervise() {
    local code ends run argument arguments=() child= guard= ended= asked= lost=
    if [[ ${1:-} != *.toml ]]; then
        echo "supervise: expected a job file and then arguments of train, found ${1:-nothing}" >&2
        exit 2
    fi
    run=$(run_directory "$@")
    if [[ -e $run/stop && (${SLURM_RESTART_COUNT:-0} -gt 0 || -n ${LINK:-}) ]]; then
        say "not begun again because of $run/stop"
        exit 0
    fi
    check_progress
    for argument; do # only the first start is to start over
        [[ $argument == --fresh && ${SLURM_RESTART_COUNT:-0} -gt 0 ]] || arguments+=("$argument")
    done
    [[ ${LAUNCH[0]} == srun ]] && sweep_nodes
    # Seconds, not the time of the end: the clocks of nodes may differ.
    ends=$(squeue -h -j "$SLURM_JOB_ID" -o %e) && [[ -n $ends ]] && # else date would say that it was midnight
        ends=$(date -d "$ends" +%s 2>/dev/null) && export PARALLEL_ET_TIME_LEFT=$((ends - $(date +%s)))
    export PARALLEL_ET_LOST_FILE=${TMPDIR:-/tmp}/parallel_et-lost-$SLURM_JOB_ID-$$
    # In the background, because the shell takes a signal only while it waits.
    "${LAUNCH[@]}" "$PYTHON" -m parallel_et.train "${arguments[@]}" &
    child=$!
    guard $child &
    guard=$!
    trap 'asked=yes; say "the time is nearly over"; kill -USR1 $child 2>/dev/null' USR1
    trap ended_by_slurm TERM
    while kill -0 $child 2>/dev/null; do # a signal ends the waiting, too
        wait $child
    done
    wait $child
    code=$?
    trap '' USR1 TERM
    kill $guard 2>/dev/null
    if [[ $code == 200 || -e $PARALLEL_ET_LOST_FILE ]]; then
        lost=yes
        rm -f "$PARALLEL_ET_LOST_FILE"
    fi

    if [[ $code == 0 ]]; then
        rm -f "$run.restarts"
    elif [[ -n $ended ]]; then
        say "ended by Slurm"
    elif [[ $code == 75 && -e $run/stop ]]; then
        say "stopped by $run/stop"
    elif [[ $code == 75 || (-n $asked && $code -gt 2) ]]; then # others: the signal came before Python itself had begun
        requeue
    elif [[ -n $lost ]]; then
        say "lost a node or its network"
        requeue
    elif [[ $code -gt 0 && $code != 2 ]] && ! on_each_node 10 true 2>/dev/null; then
        say "ended with exit code $code, and not all nodes answer"
        requeue
    else
        say "ended with exit code $code"
    fi
    exit $code
}
