# Functions for the batch scripts for training. Do not submit this file.
#
#   supervise JOB.toml [options of train]
#
# runs "${LAUNCH[@]}" "$PYTHON" -m parallel_et.train with these arguments inside a batch job. Then:
#   exit code 0    the run is finished, and so is the job
#   exit code 75   the run stopped with a checkpoint, and the job requeues itself (except with REQUEUE=no, after scancel,
#                  or if the run directory has a file "stop")
#   a lost node    a node or its network is silent (exit code 200), and the job requeues itself
#   other codes    if a node of the job does not answer, the job requeues itself; otherwise it ends with that code
# A job gives up after MAX_STALLS (3) starts in a row without a newer checkpoint.

log() {
    echo "$(date '+%F %T')  job $SLURM_JOB_ID: $*" >&2
}

# Print the run directory, as train chooses it.
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
    [[ $directory == -* ]] && directory=./$directory # otherwise other commands would take the name for an option
    printf '%s\n' "${directory%/}"
}

# Print the name of the newest checkpoint, or "none".
newest_checkpoint() {
    local newest
    newest=$(ls "$1/checkpoints" 2>/dev/null | grep -E "^[0-9]+[.]h5$" | sort -n | tail -n 1)
    echo "${newest:-none}"
}

# Count the starts of this job since the newest checkpoint, including starts after a dead node or scontrol requeue.
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
        log "gave up: $stalls starts in a row without a newer checkpoint in $run/checkpoints, the newest: $newest"
        rm -f "$run.restarts"
        exit 1
    fi
}

# Requeue this job. While the controller of Slurm does not answer, wait. Never requeue a job that Slurm has restarted
# on other nodes because it had lost this one.
requeue() {
    local deadline=$((SECONDS + 600)) restarts
    if [[ ${REQUEUE:-yes} == no ]]; then
        log "stopped with work left; the same command resumes"
        return
    fi
    until restarts=$(squeue -h -j "$SLURM_JOB_ID" -O RestartCnt:20); do
        ((SECONDS < deadline)) || break
        sleep 2
    done
    if ((restarts != ${SLURM_RESTART_COUNT:-0})); then
        log "stopped; Slurm has already requeued the job"
    elif scontrol requeue "$SLURM_JOB_ID"; then
        log "stopped with work left and queued again"
    else
        log "stopped with work left, but this site does not requeue jobs; submit it again, or use chain.sh"
    fi
}

# 15 seconds after the root has lost a node, kill the launcher, its children first. The launcher may try for a long time
# to reach that node. If Slurm restarts the job elsewhere, the launcher might end the new ranks instead of the old ones.
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

# Run a command on each node of the job: on_each_node TIMEOUT_SECONDS COMMAND ...
on_each_node() {
    timeout --kill-after=2 "$1" srun --mpi=none --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
        "${@:2}"
}

# Handle the end of the job by Slurm. At the time limit, the notice was too short, so requeue the job: it resumes from
# the last checkpoint. After scancel, preemption or scontrol requeue, do nothing. The ranks have received the signal, and a
# second signal would kill them.
ended_by_slurm() {
    ended=yes
    if [[ $(squeue -h -j "$SLURM_JOB_ID" -o %r) == TimeLimit ]]; then
        requeue
    fi
}

# Remove shared memory that killed ranks have left on the nodes. Under srun, MPICH names shared memory after job and
# step, and a requeued job has the same numbers. It would attach to the old memory, and hang or fail.
sweep_nodes() {
    local sweep='find /dev/shm -maxdepth 1 -name "mpich_*" -user "$(id -u)" -not -newermt "-5 seconds" 2>/dev/null |
        while read -r file; do grep -qsF "$file" /proc/[0-9]*/maps || rm -f "$file"; done'
    on_each_node 60 bash -c "$sweep" ||
        log "could not clean the shared memory of killed ranks in /dev/shm"
}

supervise() {
    local code ends run argument arguments=() child= guard= ended= asked= lost=
    if [[ ${1:-} != *.toml ]]; then
        echo "supervise: expected a job file and then options of train, found ${1:-nothing}" >&2
        exit 2
    fi
    run=$(run_directory "$@")
    if [[ -e $run/stop && (${SLURM_RESTART_COUNT:-0} -gt 0 || -n ${LINK:-}) ]]; then
        log "not started because of $run/stop"
        exit 0
    fi
    check_progress
    for argument; do # --fresh is for the first start only
        [[ $argument == --fresh && ${SLURM_RESTART_COUNT:-0} -gt 0 ]] || arguments+=("$argument")
    done
    [[ ${LAUNCH[0]} == srun ]] && sweep_nodes
    # Pass seconds, not the end time, as the clocks of nodes may differ.
    ends=$(squeue -h -j "$SLURM_JOB_ID" -o %e) && [[ -n $ends ]] && # date would take an empty text for midnight
        ends=$(date -d "$ends" +%s 2>/dev/null) && export PARALLEL_ET_TIME_LEFT=$((ends - $(date +%s)))
    export PARALLEL_ET_LOST_FILE=${TMPDIR:-/tmp}/parallel_et-lost-$SLURM_JOB_ID-$$
    # In the background, because the shell handles a signal only while it waits.
    "${LAUNCH[@]}" "$PYTHON" -m parallel_et.train "${arguments[@]}" &
    child=$!
    guard $child &
    guard=$!
    trap 'asked=yes; log "the time limit is near"; kill -USR1 $child 2>/dev/null' USR1
    trap ended_by_slurm TERM
    while kill -0 $child 2>/dev/null; do # a signal also ends the wait
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
        log "ended by Slurm"
    elif [[ $code == 75 && -e $run/stop ]]; then
        log "stopped by $run/stop"
    elif [[ $code == 75 || (-n $asked && $code -gt 2) ]]; then # other codes: the signal came before Python started
        requeue
    elif [[ -n $lost ]]; then
        log "lost a node or its network"
        requeue
    elif [[ $code -gt 0 && $code != 2 ]] && ! on_each_node 10 true 2>/dev/null; then
        log "ended with exit code $code, and not all nodes answer"
        requeue
    else
        log "ended with exit code $code"
    fi
    exit $code
}
