# shellcheck shell=bash disable=SC2034
# lib.sh - shared by the batch scripts of this folder: run folder, hosts, records of the environment, a launch that is saved and requeued.
#
#   limit - 120 s   Slurm sends USR1 to the batch shell (--signal=B:USR1@120)
#                   → SIGTERM to the workers, which save step-N and end with 143
#                   → scontrol requeue; the next attempt has SLURM_RESTART_COUNT and begins with --resume
#                   a command that cannot resume runs to its limit and is not requeued
#   scancel         SIGTERM to all processes: the workers save; the job is not requeued
#   requeue by Slurm (preemption, node failure): the next attempt resumes from the last checkpoint
#
# Sourced, with SLURM_SUBMIT_DIR as the root of the checkout.
say() { echo "slurm: $*"; }
die() { echo "slurm: $*" >&2; exit 1; }

ROOT=${SLURM_SUBMIT_DIR:-$PWD}
LOCKSTEP=${LOCKSTEP:-$ROOT/build/lockstep}
[ -x "$LOCKSTEP" ] || LOCKSTEP=$(command -v lockstep || echo "$LOCKSTEP") # an installed package
SRUN=${SRUN:-$(command -v srun || true)}
attempt=${SLURM_RESTART_COUNT:-0}
by_node=()

# One folder per job, the same for all its attempts: without a date, which changes at midnight, and not shared by jobs, because an
# attempt resumes the newest checkpoint in it. Tasks of an array use the job id of the array and their task id.
job_folder() {
  if [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then echo "slurm_${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"; else echo "slurm_$SLURM_JOB_ID"; fi
}

# load_modules: those of MODULES, as "cuda/12.9", which must be those of the build.
load_modules() {
  local f
  [ -n "${MODULES:-}" ] || return 0
  set +u # scripts of the cluster
  for f in /etc/profile.d/lmod.sh /etc/profile.d/z00_lmod.sh /etc/profile.d/modules.sh; do
    # shellcheck disable=SC1090 # a file of the cluster
    if ! type module >/dev/null 2>&1 && [ -r "$f" ]; then . "$f"; fi
  done
  type module >/dev/null 2>&1 || die "MODULES is '$MODULES', but this node has no command 'module'; unset MODULES and set LD_LIBRARY_PATH"
  # shellcheck disable=SC2086 # a list of words
  module load $MODULES || die "module load $MODULES failed; 'module avail' lists what there is"
  set -u
}

# set_up NAME: tools, the run folder (benchmarks/slurm_<job>/NAME unless RUN_DIR says), what the run's files record.
set_up() {
  [ -n "${SLURM_JOB_ID:-}" ] || die "not a Slurm job; start this script with sbatch"
  load_modules
  [ -n "$SRUN" ] && [ -x "$SRUN" ] || die "srun not found ('$SRUN'); set SRUN to its path"
  [ -x "$LOCKSTEP" ] || die "$LOCKSTEP not found; run ./run build, or set LOCKSTEP"
  [ "${RESUME:-0}" != 1 ] || [ -n "${RUN_DIR:-}" ] || die "RESUME=1 needs RUN_DIR, the folder of the run to continue"
  export RUN_DIR=${RUN_DIR:-$ROOT/benchmarks/$(job_folder)/$1}
  mkdir -p "$RUN_DIR/profiles" "$RUN_DIR/torchrun_logs" 2>/dev/null || die "cannot create the run folder $RUN_DIR"
  export GIT_COMMIT=${GIT_COMMIT:-$(git -C "$ROOT" rev-parse HEAD 2>/dev/null || echo unknown)}
  SLURM_HOSTS=$("$SRUN" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 hostname | sort -u)
  [ -n "$SLURM_HOSTS" ] || die "no host answered"
  export SLURM_HOSTS                    # newline-separated: launcher_metadata.json splits it
  export MASTER_ADDR=${SLURM_HOSTS%%$'\n'*} MASTER_PORT=${MASTER_PORT:-29511}
  LOCKSTEP_TOKEN=${LOCKSTEP_TOKEN:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')} # of this attempt: for workers that meet over TCP
  export LOCKSTEP_TOKEN
  export TORCHRUN_LOGS=${TORCHRUN_LOGS:-1} NSYS=${NSYS:-0} NCCL_LOGS=${NCCL_LOGS:-0} DIST_DEBUG=${DIST_DEBUG:-0} LOCKSTEP
  resume=()
  if [ "$attempt" -gt 0 ] || [ "${RESUME:-0}" = 1 ]; then resume=(--resume); fi
  say "job $SLURM_JOB_ID attempt $attempt on $(echo "$SLURM_HOSTS" | tr '\n' ' ')-> $RUN_DIR"
  toggles
  evidence
}

toggles() {
  if [ "$NCCL_LOGS" = 1 ]; then
    export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH,NET,COLL NCCL_DEBUG_FILE="$RUN_DIR/nccl_rank_%h_%p.log"
    export NCCL_TOPO_DUMP_FILE="$RUN_DIR/nccl_topo.xml" NCCL_ASYNC_ERROR_HANDLING=1 TORCH_NCCL_ASYNC_ERROR_HANDLING=1
    export NCCL_IB_HCA=${NCCL_IB_HCA:-mlx5_0} NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-^lo,docker0}
  fi
  if [ "$DIST_DEBUG" = 1 ]; then
    export LS_LOG=${LS_LOG:-debug,comm=trace} TORCH_DISTRIBUTED_DEBUG=${TORCH_DISTRIBUTED_DEBUG:-DETAIL}
    export TORCH_NCCL_TRACE_BUFFER_SIZE=${TORCH_NCCL_TRACE_BUFFER_SIZE:-33554432}
  fi
  if [ "${NCU:-0}" = 1 ]; then say "NCU=1: only loads the environment; nothing is captured"; fi
  if [ "$NSYS" = 1 ]; then
    export NSYS_TRACE=${NSYS_TRACE:-cuda,nvtx,osrt} NSYS_SAMPLE=${NSYS_SAMPLE:-none} NSYS_CUDA_EVENT_TRACE=${NSYS_CUDA_EVENT_TRACE:-false}
    export NSYS_FORCE_OVERWRITE=${NSYS_FORCE_OVERWRITE:-true} NSYS_BIN=${NSYS_BIN:-$(command -v nsys || true)}
    export TMPDIR=${SLURM_TMPDIR:-$ROOT/.tmp} # short: nsys puts sockets there
    export TMP=$TMPDIR TEMP=$TMPDIR
    mkdir -p "$TMPDIR"
    if [ ! -x "$NSYS_BIN" ]; then say "NSYS=1, but nsys was not found: the run continues without it; set NSYS_BIN"; NSYS=0; fi
  fi
}

# What the master host says of its devices and links. A command that is missing or fails never fails the job.
evidence() {
  [ "$attempt" = 0 ] || return 0
  on_master() { "$SRUN" --nodes=1 --ntasks=1 --nodelist="$MASTER_ADDR" "$@" 2>&1; }
  command -v nvidia-smi >/dev/null && on_master nvidia-smi topo -m >"$RUN_DIR/topo.txt"
  command -v ibstat >/dev/null && on_master ibstat >"$RUN_DIR/ibstat.txt"
  return 0
}

# How many GPUs this node gave the job (--gres=gpu:N, --gpus-per-node=N); 0: none, and --device auto is the CPU.
gpus() {
  local list=${SLURM_JOB_GPUS:-}
  if [[ ${SLURM_GPUS_ON_NODE:-} =~ ^[0-9]+$ ]]; then echo "$SLURM_GPUS_ON_NODE"
  elif [[ $list =~ ^[0-9]+(,[0-9]+)*$ ]]; then list=${list//[0-9]/}; echo $((${#list} + 1))
  else echo 0; fi
}

# workers DEFAULT: of each node, as `each`: WORKERS, else one for each of its GPUs, else DEFAULT. A job that has GPUs must use them:
# --device auto would compute on the CPU where the plugin or a driver is missing.
workers() {
  local n
  n=$(gpus)
  each=${WORKERS:-$([ "$n" -gt 0 ] && echo "$n" || echo "$1")}
  [[ $each =~ ^[1-9][0-9]*$ ]] || die "WORKERS is '$each'; it must be the number of workers per node"
  if [ "$n" -gt 0 ]; then export LS_DEVICE=${LS_DEVICE:-cuda}; fi
  say "$each workers and $n GPUs per node"
}

# place: srun's words for `each` workers on every node, as `layout`; where the job was laid out for another number, they share its cores.
# Under nsys one task starts all workers of its node, so that there is one report per node: node.sh.
place() {
  local cores=${SLURM_CPUS_ON_NODE:-0}
  if [ "$NSYS" = 1 ]; then
    layout=(--mpi=none --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1)
    [ "$cores" = 0 ] || layout+=(--cpus-per-task="$cores")
    export NODE_WORKERS=$each LOCKSTEP_TOKEN=${LOCKSTEP_TOKEN:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')}
    return 0
  fi
  layout=(--mpi="${SRUN_MPI:-pmix}" --ntasks="$((each * SLURM_JOB_NUM_NODES))")
  if [ "$((each * SLURM_JOB_NUM_NODES))" = "$SLURM_NTASKS" ]; then
    [ -z "${SLURM_CPUS_PER_TASK:-}" ] || layout+=(--cpus-per-task="$SLURM_CPUS_PER_TASK") # srun does not take it from sbatch
    return 0
  fi
  layout+=(--ntasks-per-node="$each")
  if [ "$cores" -ge "$each" ]; then layout+=(--cpus-per-task="$((cores / each))"); else layout+=(--overcommit); fi
}

# compose WORDS...: what the job runs, as `words`: with the run folder, and --resume where an attempt goes on. Later flags win, so the
# arguments come after them. goes_on=0: the command has no --resume. `restart`: what starts srun again after a failure (MAX_RESTARTS).
compose() {
  goes_on=1
  restart=()
  case "${1:-} ${2:-}" in
    train\ *)
      [ "${MAX_RESTARTS:-0}" = 0 ] || restart=("$LOCKSTEP" launch --max_restarts "$MAX_RESTARTS" --)
      words=(train --checkpoint_path "$RUN_DIR" ${resume[@]+"${resume[@]}"} "${@:2}")
      ;;
    "bench scaling" | "bench strategies" | "bench ab") words=(bench "$2" --out "$RUN_DIR/bench" ${resume[@]+"${resume[@]}"} "${@:3}") ;;
    *)
      goes_on=0
      words=("$@")
      if [ ${#resume[@]} -gt 0 ]; then say "'$1' cannot resume; it starts from the beginning"; fi
      ;;
  esac
}

# spares: with HOT_SPARE or ELASTIC `lockstep launch` starts the workers itself, so that it can choose their nodes, as `by_node`. A job that
# goes on after a lost node is submitted with sbatch --no-kill; guard.sh queues it again if that is the node of this script.
spares() {
  local spare=${HOT_SPARE:-0}
  [[ $spare =~ ^[0-9]+$ ]] || die "HOT_SPARE is '$spare'; it must be the number of nodes that are kept free"
  if [ "$spare" = 0 ] && [ -z "${ELASTIC:-}" ]; then return 0; fi
  [ "$spare" -lt "$SLURM_JOB_NUM_NODES" ] || die "HOT_SPARE=$spare: the job has $SLURM_JOB_NUM_NODES nodes; at least one must be used"
  [ "$NSYS" = 0 ] || die "NSYS=1 is not possible with HOT_SPARE or ELASTIC"
  export PATH=${SRUN%/*}:$PATH
  by_node=("$LOCKSTEP" launch --slurm -n "$((each * (SLURM_JOB_NUM_NODES - spare)))" --hot_spare "$spare" --master_port "$MASTER_PORT")
  [ -z "${ELASTIC:-}" ] || by_node+=(--elastic "$ELASTIC")
  [ -z "${MAX_RESTARTS:-}" ] || by_node+=(--max_restarts "$MAX_RESTARTS")
  env -u SLURM_GPUS -u SLURM_GPUS_PER_TASK "$SRUN" --overlap --mpi=none --gres=none --nodes=1 --ntasks=1 --ntasks-per-node=1 \
    --nodelist="${SLURM_HOSTS##*$'\n'}" "$ROOT/scripts/slurm/guard.sh" </dev/null >/dev/null 2>&1 &
}

# run_words: what a job without a command of its own trains, as `run`. DATA, a folder of `lockstep prepare`: as `train --data`. TRAIN_DATA: the
# command and the log of the ZeRO scaling study. Later flags win, so GPT2_EXTRA_ARGS is last.
run_words() {
  local json=${DEEPSPEED_CONFIG:-src/deepspeed_config.json}
  local files=(--train_data_path "${TRAIN_DATA:-train_small.bin}" --val_data_path "${VAL_DATA:-val_small.bin}")
  if [ -n "${DATA:-}" ]; then
    [ -z "${TRAIN_DATA:-}${VAL_DATA:-}" ] || die "DATA and TRAIN_DATA or VAL_DATA are set; unset DATA, or the other two"
    [ -d "$DATA" ] || die "DATA=$DATA: no such folder; it must be one that 'lockstep prepare' wrote"
    run=(--data "$DATA")
  else
    [ -n "${TRAIN_DATA:-}" ] || [ -e train_small.bin ] || die "train_small.bin not found; set DATA to a folder that 'lockstep prepare' wrote"
    run=(--run_type optimized "${files[@]}" --epochs 1 --seq_length 512)
  fi
  run+=(--micro_batch_size_per_gpu "${MICRO_BATCH_SIZE_PER_GPU:-2}" --grad_accum_steps "${GRAD_ACCUM_STEPS:-1}")
  if [ -e "$json" ]; then run+=(--deepspeed_config "$json"); elif [ -n "${DEEPSPEED_CONFIG:-}" ]; then die "$json not found"; fi
  # shellcheck disable=SC2206 # a list of words
  run+=(${GPT2_EXTRA_ARGS:-})
}

near_limit() {
  if [ "$goes_on" = 0 ]; then say "the time limit is near; '${words[0]}' cannot resume, so it runs to the limit and is not requeued"; return; fi
  want_requeue=1
  say "the time limit is near: asking the workers to save"
  if [ ${#by_node[@]} -gt 0 ]; then kill -TERM "$pid"; else scancel --signal=TERM "$SLURM_JOB_ID"; fi # launch passes it on to all nodes
}

# launch COMMAND...: in the background, so that the shell hears signals; the exit code of the command.
launch() {
  want_requeue=0
  trap near_limit USR1
  trap 'say "received SIGTERM: waiting until the workers have saved"' TERM
  "$@" &
  local pid=$! code
  # A signal ends a wait with 128 + its number, and the command may end while the trap runs: only a wait after its end has its code.
  while kill -0 "$pid" 2>/dev/null; do wait "$pid"; done
  trap '' USR1 TERM
  wait "$pid"
  code=$?
  trap - TERM # Slurm ends the shell of a job that is queued again with it
  return "$code"
}

# finish CODE: queues the job again where its time ran out, before anything that takes time; ends the script.
finish() {
  if [ "$want_requeue" = 1 ] && [ "$1" != 0 ] && [ ! -e "$RUN_DIR/RUN_COMPLETE.txt" ]; then
    [ "$1" = 143 ] || say "the workers ended with $1 instead of 143; continuing from the last checkpoint"
    say "requeued: attempt $((attempt + 1)) resumes"
    if scontrol requeue "$SLURM_JOB_ID"; then
      sleep 30 # Slurm ends this shell; without it the job could count as done
      exit "$1"
    fi
    say "scontrol requeue failed; continue with RESUME=1 RUN_DIR=$RUN_DIR sbatch …"
  fi
  summarize_nsys
  exit "$1"
}

# The profile of the master host as text and as a summary, in the attempt that ends the job. Its failure is not the run's.
summarize_nsys() {
  [ "$NSYS" = 1 ] || return 0
  local out=$RUN_DIR/profiles/nsys_stats_$MASTER_ADDR.txt rep=$RUN_DIR/profiles/nsys_${SLURM_JOB_ID}_$MASTER_ADDR.nsys-rep
  [ -e "$rep" ] || { say "nsys wrote no report"; return 0; }
  "$NSYS_BIN" stats --report nvtx_sum,osrt_sum,cuda_api_sum,cuda_gpu_kern_sum "$rep" >"$out" 2>&1 ||
    "$NSYS_BIN" stats "$rep" >"$out" 2>&1 || { say "nsys stats failed on $rep"; rm -f "$out"; return 0; }
  "$LOCKSTEP" profile summarize --run_dir "$RUN_DIR" || say "no profile_summary.json"
}
