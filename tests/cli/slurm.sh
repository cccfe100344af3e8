#!/usr/bin/env bash
# The templates of scripts/slurm with fakes of Slurm and of lockstep: the folder and the arguments of an attempt, the effect of a time limit on
# commands that can resume and on others, and which exit code the job has. equiv/slurm uses the real Slurm.
. "$(dirname "$0")/../support/lib.sh"
unset LS_DEVICE
cd "$SCRATCH" || exit 1
real=$LOCKSTEP
mkdir -p bin root/scripts && ln -s "$LS_SOURCE/scripts/slurm" root/scripts/slurm
export LOG=$SCRATCH/log PID=$SCRATCH/pid LOCKSTEP=$SCRATCH/bin/lockstep PATH=$SCRATCH/bin:$PATH

cat >bin/srun <<'SH'
#!/usr/bin/env bash
echo "srun $*" >>"$LOG"
case $* in *guard.sh) exit 0 ;; esac
while [ "${1#--}" != "$1" ]; do shift; done
export SLURM_LOCALID=0 SLURM_NODEID=0
exec "$@"
SH
# one worker that ends on SIGTERM, with $ENDS; without a signal it ends by itself, with 0
cat >bin/lockstep <<'SH'
#!/usr/bin/env bash
echo "lockstep $*" >>"$LOG"
[ "$1" != train ] || echo "LS_DEVICE=${LS_DEVICE:-}" >>"$LOG"
[ -z "${RANK:-}" ] || echo "rank $RANK of $WORLD_SIZE, local $LOCAL_RANK of $LOCAL_WORLD_SIZE, $MASTER_ADDR:$MASTER_PORT ${#LOCKSTEP_TOKEN}" >>"$LOG"
[ "${RANK:-}" != "${FAILS:-none}" ] || exit 4
[ -n "${ENDS:-}" ] || { echo done; exit 0; }
trap 'exit $ENDS' TERM
echo $$ >"$PID.new" && mv "$PID.new" "$PID"
for ((i = 0; i < 100; i++)); do
  [ -e "$PID.end" ] && exit 0
  /bin/sleep 0.05
done
SH
# the worker has ended before scancel returns: the batch shell is in its trap then
cat >bin/scancel <<'SH'
#!/usr/bin/env bash
echo "scancel $*" >>"$LOG"
kill -TERM "$(cat "$PID")"
while kill -0 "$(cat "$PID")" 2>/dev/null; do /bin/sleep 0.02; done
/bin/sleep 0.3
SH
printf '#!/usr/bin/env bash\necho "scontrol $*" >>"$LOG"\nexit "${SCONTROL:-0}"\n' >bin/scontrol
printf '#!/usr/bin/env bash\nexit 0\n' >bin/sleep
printf '#!/usr/bin/env bash\ncat "$SCRATCH/today"\n' >bin/date
cat >bin/nsys <<'SH'
#!/usr/bin/env bash
echo "nsys $*" >>"$LOG"
[ "$1" = profile ] || { echo "a table"; exit 0; }
shift
while [ $# -gt 0 ]; do case $1 in --output) touch "$2.nsys-rep"; shift 2 ;; --*) shift ;; *) break ;; esac; done
exec "$@"
SH
chmod +x bin/*
export SCRATCH
echo 2026-01-01 >today
touch train_small.bin

# job ID ATTEMPT SCRIPT [ARGUMENTS...]: as Slurm starts it, with an empty log
job() {
  local id=$1 n=$2 script=$LS_SOURCE/scripts/slurm/$3
  shift 3
  : >"$LOG"
  SLURM_JOB_ID=$id SLURM_RESTART_COUNT=$n SLURM_SUBMIT_DIR=$SCRATCH/root SLURM_JOB_NUM_NODES=1 SLURM_NTASKS=1 \
    timeout 60 bash "$script" "$@" >"$SCRATCH/printed" 2>&1
}
has() { grep -q -- "$1" "$LOG" || bad "$2: no '$1' in: $(cat "$LOG" "$SCRATCH/printed")"; }
has_not() { grep -q -- "$1" "$LOG" && bad "$2: '$1' in: $(cat "$LOG")"; }
printed() { grep -q -- "$1" "$SCRATCH/printed" || bad "'$1' was not printed: $(cat "$SCRATCH/printed")"; }
# limit ENDS CODE JOB-ARGUMENTS...: the signal of the time limit while the job runs; CODE is the exit code of the job
limit() {
  local code=$2 pid got
  export ENDS=$1
  shift 2
  rm -f "$PID" "$PID.end"
  : >"$SCRATCH/printed"
  SLURM_JOB_ID=$1 SLURM_RESTART_COUNT=$2 SLURM_SUBMIT_DIR=$SCRATCH/root SLURM_JOB_NUM_NODES=${JOB_NODES:-1} SLURM_NTASKS=${JOB_NODES:-1} LOG=$LOG \
    bash "$LS_SOURCE/scripts/slurm/$3" "${@:4}" >"$SCRATCH/printed" 2>&1 &
  pid=$!
  await "$pid" test -e "$PID" || bad "$*: never started: $(cat "$SCRATCH/printed")"
  kill -USR1 "$pid"
  await "$pid" grep -q "the time limit is near" "$SCRATCH/printed" || bad "$*: no message about the limit: $(cat "$SCRATCH/printed")"
  grep -q "cannot resume" "$SCRATCH/printed" && touch "$PID.end"
  wait "$pid"
  got=$?
  [ "$got" = "$code" ] || bad "$*: the job ends with $got, not $code: $(cat "$SCRATCH/printed")"
  unset ENDS
}

# --- modules of the cluster ---
module() { echo "module $*" >>"$LOG"; [ "$2" != missing/1 ]; }
export -f module
MODULES="cuda/12.9 nccl/2" job 3 0 train_1node.sbatch || bad "MODULES: $(cat "$SCRATCH/printed")"
has "^module load cuda/12.9 nccl/2$" "MODULES"
MODULES=missing/1 job 3 0 train_1node.sbatch && bad "a module that does not load"
printed "module load missing/1 failed"
unset -f module
if [ ! -e /etc/profile.d/modules.sh ]; then
  MODULES=cuda job 3 0 train_1node.sbatch && bad "MODULES without 'module'"
  printed "this node has no command 'module'"
fi

# --- one folder per job, in all its attempts ---
for t in 1node 2node; do
  d=$SCRATCH/root/benchmarks
  [ $t = 1node ] && name=1node || name=8gpu_2node
  job 7 0 train_$t.sbatch || bad "$t: job 7: $(cat printed)"
  has "--checkpoint_path $d/slurm_7/$name " "$t"
  has_not "--resume" "$t, first attempt"
  echo 2026-01-02 >today # past midnight
  job 7 1 train_$t.sbatch || bad "$t: job 7 again: $(cat printed)"
  has "--checkpoint_path $d/slurm_7/$name --resume " "$t, queued again"
  job 8 0 train_$t.sbatch || bad "$t: job 8: $(cat printed)"
  has "--checkpoint_path $d/slurm_8/$name " "$t, another job"
  SLURM_ARRAY_JOB_ID=20 SLURM_ARRAY_TASK_ID=3 job 23 1 train_$t.sbatch || bad "$t: array: $(cat printed)"
  has "--checkpoint_path $d/slurm_20_3/$name --resume " "$t, a task of an array"
  MAX_RESTARTS=3 job 8 1 train_$t.sbatch || bad "$t: MAX_RESTARTS: $(cat printed)"
  has "^lockstep launch --max_restarts 3 -- [^ ]*srun .*lockstep train --checkpoint_path $d/slurm_8/$name --resume " "$t, MAX_RESTARTS"
  RUN_DIR=$SCRATCH/mine job 9 0 train_$t.sbatch || bad "$t: RUN_DIR: $(cat printed)"
  has "--checkpoint_path $SCRATCH/mine " "$t, RUN_DIR"
  GPT2_EXTRA_ARGS="--lr 1" job 9 0 train_$t.sbatch
  has "--lr 1$" "$t, later flags win"
done
RESUME=1 job 10 0 train_1node.sbatch && bad "RESUME=1 without a folder"
printed "RESUME=1 needs RUN_DIR"
RESUME=1 RUN_DIR=$SCRATCH/mine job 10 0 train_1node.sbatch
has "--checkpoint_path $SCRATCH/mine --resume " "RESUME=1"

# --- one worker per GPU of a node, if the job has GPUs ---
has "^lockstep train .*-n 4 --run_type" "without GPUs"
SLURM_GPUS_ON_NODE=8 job 11 0 train_1node.sbatch
has "-n 8 --run_type" "eight GPUs"
printed "8 workers and 8 GPUs per node"
has "^LS_DEVICE=cuda$" "GPUs of the job are used, or it fails"
LS_DEVICE=auto SLURM_GPUS_ON_NODE=8 job 11 0 train_1node.sbatch
has "^LS_DEVICE=auto$" "LS_DEVICE of the user"
SLURM_JOB_GPUS=0,3 job 11 0 train_1node.sbatch
has "-n 2 --run_type" "two GPUs by their numbers"
SLURM_GPUS_ON_NODE=0 job 11 0 train_1node.sbatch
has "-n 4 --run_type" "no GPUs"
has "^LS_DEVICE=$" "no GPUs: left to --device auto"
SLURM_GPUS_ON_NODE=8 WORKERS=3 job 11 0 train_1node.sbatch
has "-n 3 --run_type" "WORKERS wins"
WORKERS=many job 11 0 train_1node.sbatch && bad "WORKERS=many"
printed "WORKERS is 'many'"
# nodes [VARIABLES] ARGUMENTS: two nodes of four tasks; srun must get the arguments
nodes() {
  : >"$LOG"
  env SLURM_JOB_ID=12 SLURM_SUBMIT_DIR="$SCRATCH/root" SLURM_JOB_NUM_NODES=2 SLURM_NTASKS=8 SLURM_CPUS_ON_NODE=16 "${@:1:$#-1}" \
    timeout 60 bash "$LS_SOURCE/scripts/slurm/train_2node.sbatch" >"$SCRATCH/printed" 2>&1 || bad "two nodes: $(cat "$SCRATCH/printed")"
  has "^srun --kill-on-bad-exit=0 --wait=300 ${*: -1} [^-].*lockstep train" "two nodes, $*"
}
nodes "--mpi=pmix --ntasks=8"
nodes SRUN_MPI=pmi2 "--mpi=pmi2 --ntasks=8"
nodes SLURM_CPUS_PER_TASK=4 "--mpi=pmix --ntasks=8 --cpus-per-task=4"
nodes SLURM_GPUS_ON_NODE=4 SLURM_CPUS_PER_TASK=4 "--mpi=pmix --ntasks=8 --cpus-per-task=4"
nodes SLURM_GPUS_ON_NODE=8 SLURM_CPUS_PER_TASK=4 "--mpi=pmix --ntasks=16 --ntasks-per-node=8 --cpus-per-task=2"
nodes SLURM_GPUS_ON_NODE=8 SLURM_CPUS_ON_NODE=4 "--mpi=pmix --ntasks=16 --ntasks-per-node=8 --overcommit"
nodes SLURM_GPUS_ON_NODE=8 WORKERS=1 "--mpi=pmix --ntasks=2 --ntasks-per-node=1 --cpus-per-task=16"

# --- the data: a folder of `prepare`, or the files of the study ---
mkdir data
for t in 1node 2node; do
  DATA=data MICRO_BATCH_SIZE_PER_GPU=4 GPT2_EXTRA_ARGS="--model tiny" job 17 0 train_$t.sbatch || bad "$t: DATA: $(cat printed)"
  has " --data data --micro_batch_size_per_gpu 4 --grad_accum_steps 1 --model tiny$" "$t, DATA"
  has_not "run_type\|train_data_path" "$t, DATA"
  DATA=none job 17 0 train_$t.sbatch && bad "$t: DATA=none"
  printed "DATA=none: no such folder"
  DATA=data VAL_DATA=v.bin job 17 0 train_$t.sbatch && bad "$t: DATA and VAL_DATA"
  printed "unset DATA, or the other two"
  (mv train_small.bin t.bin; job 18 0 train_$t.sbatch && bad "$t: no data"; mv t.bin train_small.bin; exit "$n_bad") || bad "$t without data"
  printed "set DATA to a folder that 'lockstep prepare' wrote"
  [ ! -e "$SCRATCH/root/benchmarks/slurm_18" ] || bad "$t: a run folder without data"
  TRAIN_DATA=t.bin job 17 0 train_$t.sbatch
  has "--run_type optimized --train_data_path t.bin --val_data_path val_small.bin --epochs 1 --seq_length 512 " "$t, TRAIN_DATA"
  grep -q "^#SBATCH.*partition" "$LS_SOURCE/scripts/slurm/train_$t.sbatch" && bad "$t names a partition"
done

# --- simple.sbatch: what a stranger edits and copies ---
simple=$LS_SOURCE/scripts/slurm/simple.sbatch
[ "$(grep -vc '^#!' "$simple")" -le 13 ] || bad "simple.sbatch is no longer simple"
# three lines at most are edited: all with numbers of nodes, tasks and GPUs, the data, and no other is marked
marked() { grep -E "$1" "$simple" | cut -d' ' -f1,2; }
[ "$(marked '# <--')" = "$(marked '^DATA=|^#SBATCH.*--(nodes|ntasks|gres)')" ] || bad "simple.sbatch marks $(marked '# <--')"
[ "$(grep -c '# <--' "$simple")" -le 3 ] || bad "simple.sbatch: more than three lines to edit"
grep -E '^#SBATCH|^DATA=' "$simple" | while IFS= read -r line; do grep -qFx -- "$line" "$LS_SOURCE/docs/SLURM.md" || echo "$line"; done >differ
[ ! -s differ ] || bad "docs/SLURM.md has other lines: $(cat differ)"
cp "$simple" . && sed -i "s#^DATA=[^ ]*#DATA=$SCRATCH/data#" simple.sbatch
# plain VARIABLES...: the script as Slurm starts it; exits with its exit code
plain() { : >"$LOG"; env SLURM_JOB_ID=60 SLURM_CPUS_PER_TASK=4 "$@" timeout 60 bash ./simple.sbatch >printed 2>&1; }
plain A=b || bad "simple.sbatch: $(cat printed)"
has "^srun --mpi=pmix --kill-on-bad-exit=0 --cpus-per-task=4 lockstep train --data $SCRATCH/data --model gpt2 --checkpoint_path runs/slurm-60$" "simple.sbatch"
plain SLURM_GPUS_ON_NODE=4 SLURM_RESTART_COUNT=1
has "^lockstep train .*runs/slurm-60 --device cuda --resume$" "simple.sbatch on GPUs, again"
has_not scontrol "simple.sbatch that is done"
plain RANK=0 FAILS=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=a MASTER_PORT=1 LOCKSTEP_TOKEN=t
[ $? = 4 ] || bad "simple.sbatch: the exit code of a failure"
has_not scontrol "simple.sbatch that failed"
rm -f "$PID" "$PID.end"
plain ENDS=143 &
await $! test -e "$PID" || bad "simple.sbatch never started: $(cat printed)"
kill -TERM "$(cat "$PID")"
wait $!
has "^scontrol requeue 60$" "simple.sbatch at the limit"
tokens data/train.bin 3000 && expect 0 "resume .* true" "$real" train --data data --model gpt2 --checkpoint_path none --device cpu --resume --print_config

# --- spares: launch starts the workers, a guard is on the last node ---
# hot NODES [VARIABLES] ARGUMENTS: launch must get the arguments
hot() {
  : >"$LOG"
  env SLURM_JOB_ID=14 SLURM_SUBMIT_DIR="$SCRATCH/root" SLURM_JOB_NUM_NODES="$1" SLURM_NTASKS=$((2 * $1)) "${@:2:$#-2}" \
    timeout 60 bash "$LS_SOURCE/scripts/slurm/train_2node.sbatch" >"$SCRATCH/printed" 2>&1 || bad "$*: $(cat "$SCRATCH/printed")"
  has "^lockstep launch --slurm ${*: -1} -- train --checkpoint_path $SCRATCH/root/benchmarks/slurm_14/8gpu_2node --run_type" "spares, $*"
  for _ in $(seq 100); do grep -q guard.sh "$LOG" && break; /bin/sleep 0.05; done # it is started in the background
  has_not "srun .*task.sh" "spares, $*: the workers of launch alone"
  has "^srun .*--gres=none .*--nodelist=$(hostname) [^ ]*scripts/slurm/guard.sh$" "spares, $*: the guard"
}
hot 3 HOT_SPARE=1 "-n 4 --hot_spare 1 --master_port 29511"
hot 3 HOT_SPARE=1 WORKERS=4 MASTER_PORT=3000 MAX_RESTARTS=9 "-n 8 --hot_spare 1 --master_port 3000 --max_restarts 9"
hot 3 ELASTIC=2:6 "-n 6 --hot_spare 0 --master_port 29511 --elastic 2:6"
HOT_SPARE=0 job 15 0 train_2node.sbatch
has "^srun --kill-on-bad-exit=0" "HOT_SPARE=0"
HOT_SPARE=1 job 15 0 train_2node.sbatch && bad "no node left for workers"
printed "at least one must be used"
HOT_SPARE=one job 15 0 train_2node.sbatch && bad "HOT_SPARE=one"
printed "HOT_SPARE is 'one'"
ELASTIC=1:2 NSYS=1 job 15 0 train_2node.sbatch && bad "ELASTIC under nsys"
printed "NSYS=1 is not possible with HOT_SPARE or ELASTIC"
HOT_SPARE=1 job 15 0 train_1node.sbatch && bad "HOT_SPARE on one node"
printed "are for several nodes"
# the guard: queues the job again when its batch host is none of its nodes; with an answer that it does not understand it waits
cat >bin/scontrol <<'SH'
#!/usr/bin/env bash
echo "scontrol $*" >>"$LOG"
read -r now <"$SCRATCH/turn"
echo $((now + 1)) >"$SCRATCH/turn"
case "$* $now" in
  "-o show job 16 0") exit 1 ;;
  "-o show job 16 1") echo "JobId=16 something else" ;;
  "-o show job 16 2") echo "JobId=16 ReqNodeList=n9 ExcNodeList=(null) NodeList=n[1-3] BatchHost=n1 NumNodes=3" ;;
  "show hostnames n[1-3] 3") printf 'n1\nn2\nn3\n' ;;
  "-o show job 16 4") echo "JobId=16 ReqNodeList=n1 ExcNodeList=(null) NodeList=n[1-3] BatchHost=n1 NumNodes=3" ;;
  "show hostnames n[1-3] 5") exit 1 ;;
  "-o show job 16 6") echo "JobId=16 ReqNodeList=n1 ExcNodeList=(null) NodeList=n[2-3] BatchHost=n1 NumNodes=2" ;;
  "show hostnames n[2-3] 7") printf 'n2\nn3\n' ;;
  "requeue 16 8") kill "$PPID" ;;
  *) echo "unexpected: $* $now" >>"$LOG"; kill "$PPID" ;;
esac
SH
: >"$LOG"
echo 0 >turn
(SLURM_JOB_ID=16 timeout 60 "$LS_SOURCE/scripts/slurm/guard.sh") 2>/dev/null
has "^scontrol requeue 16$" "the guard"
[ "$(cat turn)" = 9 ] || bad "the guard: $(cat "$LOG")"
printf '#!/usr/bin/env bash\necho "scontrol $*" >>"$LOG"\nexit "${SCONTROL:-0}"\n' >bin/scontrol

# under nsys a task starts all workers of its node: one report, of the master host, as the scaling study; they join over TCP
me=$(hostname)
nodes NSYS=1 SLURM_GPUS_ON_NODE=3 "--mpi=none --ntasks=2 --ntasks-per-node=1 --cpus-per-task=16"
[ "$(grep -c "^nsys profile" "$LOG")" = 1 ] || bad "not one report per node: $(cat "$LOG")"
for k in 0 1 2; do
  has "^rank $k of 6, local $k of 3, $me:29511 32$" "worker $k"
  grep -q . "$SCRATCH/root/benchmarks/slurm_12/8gpu_2node/torchrun_logs/12_$me/attempt_0/$k/stdout.log" || bad "no log of worker $k"
done
[ "$(ls "$SCRATCH/root/benchmarks/slurm_12/8gpu_2node/profiles")" = "nsys_12_$me.nsys-rep
nsys_stats_$me.txt" ] || bad "profiles: $(ls "$SCRATCH/root/benchmarks/slurm_12/8gpu_2node/profiles")"
[ "$(grep -c "^nsys stats" "$LOG")" = 1 ] || bad "not one text per node"
: >"$LOG"
NSYS=1 FAILS=1 WORKERS=2 RUN_DIR=$SCRATCH/fails job 13 0 train_2node.sbatch
[ $? = 4 ] || bad "a worker that fails under nsys: $(cat printed)"

# --- the time limit: saved and queued again; the exit code is that of the workers, not of the signal ---
: >"$LOG"
limit 143 143 30 0 train_1node.sbatch
has "^scontrol requeue 30" "at the limit"
printed "attempt 1 resumes"
: >"$LOG"
HOT_SPARE=1 JOB_NODES=2 limit 143 143 33 0 train_2node.sbatch # SIGTERM to launch
has "^scontrol requeue 33" "at the limit, with spares"
has_not "scancel" "at the limit, with spares"
: >"$LOG"
limit 0 0 31 0 train_2node.sbatch # done while the shell was in its trap
has_not scontrol "a run that is done"
: >"$LOG"
SCONTROL=1 limit 143 143 32 0 train_1node.sbatch
printed "scontrol requeue failed; continue with RESUME=1 RUN_DIR="

# --- other commands in the same place ---
: >"$LOG"
limit 143 143 40 0 train_1node.sbatch bench scaling -n 1,2 -- --data d
has "lockstep bench scaling --out $SCRATCH/root/benchmarks/slurm_40/1node/bench -n 1,2 -- --data d$" "bench"
has "^scontrol requeue 40" "bench at the limit"
job 40 1 train_1node.sbatch bench scaling -n 1,2 -- --data d
has "lockstep bench scaling --out $SCRATCH/root/benchmarks/slurm_40/1node/bench --resume -n 1,2 -- --data d$" "bench, queued again"
job 41 1 train_1node.sbatch train -n 2
has "lockstep train --checkpoint_path $SCRATCH/root/benchmarks/slurm_41/1node --resume -n 2$" "train in own words"
for words in "bench comm" "doctor"; do
  : >"$LOG"
  limit 143 0 42 0 train_1node.sbatch $words
  has_not "scontrol\|scancel" "$words at the limit"
  printed "'${words%% *}' cannot resume, so it runs to the limit and is not requeued"
  job 42 1 train_1node.sbatch $words
  has "lockstep $words$" "$words, queued again by Slurm"
  printed "'${words%% *}' cannot resume; it starts from the beginning"
done
# lockstep accepts the arguments that a second attempt adds
tokens t.bin 3000
for words in "bench scaling" "bench strategies" "bench ab --a=--lr=1 --b=--lr=2"; do
  LOCKSTEP=$real job 43 1 train_1node.sbatch $words -n 1 --dry_run -- --train_data_path "$SCRATCH/t.bin" --model tiny --seq_length 16 ||
    bad "$words --resume: $(cat printed)"
done

# --- nsys: --profile_mode is an option of train; nothing slow runs between the end of the workers and the requeue ---
NSYS=1 job 50 0 train_1node.sbatch doctor || bad "NSYS=1 doctor: $(cat printed)"
has "^nsys profile .*lockstep doctor$" "doctor under nsys"
NSYS=1 job 51 0 train_1node.sbatch || bad "NSYS=1: $(cat printed)"
has "^lockstep train .*--profile_mode$" "train under nsys"
has "^nsys stats" "the summary at the end"
: >"$LOG"
NSYS=1 limit 143 143 52 0 train_1node.sbatch
has "^scontrol requeue 52" "under nsys"
has_not "^nsys stats" "between the workers' end and the requeue"
done_tests
