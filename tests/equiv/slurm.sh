#!/usr/bin/env bash
# A real Slurm on five hosts of namespaces (tests/support/slurm; needs root and Slurm's packages): the templates of scripts/slurm, submitted on
# 2 nodes x 2 workers and on 1 node. A job that is stopped near its limit, or by Slurm itself, saves, is queued again, resumes, and ends
# with the bits of one that was not. So does one that loses a node: a spare replaces it.
# ls-test: serial
. "$(dirname "$0")/../support/lib.sh"
[ "${LS_TEST_ALL:-0}" = 1 ] || skip "takes some minutes and starts a Slurm: LS_TEST_ALL=1 runs it"
[ "$(id -u)" = 0 ] || skip "making hosts needs root"
for k in slurmctld slurmd srun munged; do command -v $k >/dev/null || skip "$k is missing (packages slurmctld, slurmd, slurm-client, munge)"; done
. "$(dirname "$0")/../support/mpi.sh"
box=("$LS_SOURCE/tests/support/slurm" "/tmp/lockstep-slurm.$$") # munged needs a path that every user may search
at_end() { "${box[@]}" down >/dev/null 2>&1; }
"${box[@]}" up 5 --cpus 4 --gpus 2 --ttl 1200 >"$SCRATCH/up" 2>&1 || skip "no Slurm: $(tail -1 "$SCRATCH/up")"
chmod 755 "$SCRATCH"

mkdir -p "$SCRATCH/d" && tokens "$SCRATCH/d/train.bin" 60000 && tokens "$SCRATCH/d/val.bin" 2000 2
export TRAIN_DATA=$SCRATCH/d/train.bin VAL_DATA=$SCRATCH/d/val.bin LOCKSTEP MICRO_BATCH_SIZE_PER_GPU=1 GRAD_ACCUM_STEPS=2
model="--model tiny --seq_length 64 --dropout 0.1 --threads 1 --lr 1e-3 --save_every 20 --keep_last 2"
two=(--nodes=2 --ntasks-per-node=2 --cpus-per-task=1 --gres=gpu:2 --mem=0 --time=10 scripts/slurm/train_2node.sbatch)
one=(--cpus-per-task=2 --mem=0 --time=10 scripts/slurm/train_1node.sbatch)
submit() { # NAME STEPS SBATCH-ARGUMENTS...: prints the number of the job
  local name=$1 steps=$2; shift 2
  (cd "$LS_SOURCE" && RUN_DIR=$SCRATCH/$name GPT2_EXTRA_ARGS="$model --epochs 3 --max_steps $steps ${EXTRA:-}" \
    timeout -k 5 30 "${box[@]}" sbatch --parsable --export=ALL --output="$SCRATCH/$name.log" "$@")
}
ends() { # NAME JOB SECONDS
  local state
  state=$(timeout -k 5 $(($3 + 10)) "${box[@]}" wait "$2" "$3") || bad "$1: job $2 is $state: $(tail -5 "$SCRATCH/$1.log")"
}
at_step() { # NAME STEP: until the metrics have it
  for _ in $(seq 600); do
    [ -s "$SCRATCH/$1/metrics.jsonl" ] && [ "$(wc -l <"$SCRATCH/$1/metrics.jsonl")" -ge "$2" ] && return
    sleep 0.1
  done
  bad "$1 never came to step $2: $(tail -5 "$SCRATCH/$1.log")"
}
equal() { # NAME: the files of the uninterrupted run
  local last
  last=$(cd "$SCRATCH/whole" && ls -d epoch-* | tail -1)
  same "$SCRATCH/whole/$last/model.safetensors" "$SCRATCH/$1/$last/model.safetensors"
  same "$SCRATCH/whole/$last/optimizer.safetensors" "$SCRATCH/$1/$last/optimizer.safetensors"
}
resumed() { grep -q "resumed from" "$SCRATCH/$1.log" || bad "$1 did not resume: $(tail -5 "$SCRATCH/$1.log")"; }

# fakes of tools of a GPU cluster, to check where their output is stored
mkdir -p "$SCRATCH/bin"
printf '#!/bin/sh\necho "topology of $(hostname): $*"\n' >"$SCRATCH/bin/nvidia-smi"
printf '#!/bin/sh\necho "State: Active"; exit 1\n' >"$SCRATCH/bin/ibstat" # a failure of such a tool does not fail the job
cat >"$SCRATCH/bin/nsys" <<'SH'
#!/bin/bash
what=$1; shift
if [ "$what" = stats ]; then printf ' ** NVTX Range Summary (nvtx_sum):\n\n  60.0  12  3  4  PushPop  :train/allreduce_gradients\n'; exit; fi
while [ $# -gt 0 ]; do case $1 in --output) out=$2; shift 2 ;; --*) shift ;; *) break ;; esac; done
touch "$out.nsys-rep"
exec "$@"
SH
chmod +x "$SCRATCH"/bin/*
steps=150
PATH=$SCRATCH/bin:$PATH NCCL_LOGS=1 EXTRA=--profile submit whole $steps "${two[@]}" >"$SCRATCH/job" || bad "sbatch: $(cat "$SCRATCH/job")"
ends whole "$(cat "$SCRATCH/job")" 120
python3 - "$SCRATCH/whole" "$(cat "$SCRATCH/job")" <<'PY' || bad "the entries of the files about the job"
import json, sys
lm = json.load(open(sys.argv[1] + "/launcher_metadata.json"))
tm = json.load(open(sys.argv[1] + "/training_metrics.json"))
assert lm["slurm"] == {"job_id": sys.argv[2], "nodelist": "n[1-2]", "hosts": "n1\nn2"}, lm["slurm"]
assert lm["world_size"] == 4 and lm["rank0_host"] == "n1" and lm["env"]["MASTER_ADDR"] == "n1" and lm["env"]["MASTER_PORT"] == "29511", lm
assert lm["nccl_env"]["NCCL_DEBUG_FILE"] == sys.argv[1] + "/nccl_rank_%h_%p.log" and lm["nccl_env"]["NCCL_IB_HCA"] == "mlx5_0", lm["nccl_env"]
assert tm["scheduler"]["job_id"] == sys.argv[2] and tm["scheduler"]["partition"] == "all" and tm["scheduler"]["nnodes"] == "2", tm["scheduler"]
PY
python3 "$LS_SOURCE/tests/support/trace_check.py" "$SCRATCH/whole/profiles/trace.json" 4 step unit collective >"$SCRATCH/check" 2>&1 ||
  bad "the trace of two nodes: $(tail -3 "$SCRATCH/check")"
grep -q "topology of n1: topo -m" "$SCRATCH/whole/topo.txt" || bad "no topo.txt of the master host"
grep -q "State: Active" "$SCRATCH/whole/ibstat.txt" || bad "no ibstat.txt"
for h in n1 n2; do
  [ -s "$SCRATCH/whole/torchrun_logs/$(cat "$SCRATCH/job")_$h/attempt_0/1/stdout.log" ] || bad "no torchrun_logs of $h"
done

# near the limit (Slurm's signal to the batch shell, sent by hand: Slurm looks at limits every 30 s)
job=$(submit limit $steps "${two[@]}")
at_step limit 30
"${box[@]}" scancel --batch --signal=USR1 "$job"
# at the same time, on the rest of the machine: stopped by Slurm itself (requeue sends SIGTERM to the workers)
ends limit "$job" 120
resumed limit
grep -q "requeued: attempt 1" "$SCRATCH/limit.log" || bad "the script did not queue the job again"
[ -d "$SCRATCH/limit/torchrun_logs/${job}_n1/attempt_1" ] || bad "no logs of the second attempt"
equal limit

job=$(submit term $steps "${two[@]}")
at_step term 30
"${box[@]}" scontrol requeue "$job"
ends term "$job" 120
resumed term
equal term

# simple.sbatch as a stranger edits it (here also a model for a test): two nodes; its log has each step once, and no name of another program
mkdir -p "$SCRATCH/plain" && cp "$SCRATCH"/d/*.bin "$SCRATCH/plain"
sed -e 's/ --gres=gpu:4//' -e "s#^DATA=[^ ]*#DATA=$SCRATCH/plain#" -e 's/ntasks-per-node=4/ntasks-per-node=2/' -e 's/cpus-per-task=4/cpus-per-task=1/' \
  -e "s#^PATH=[^ ]*#PATH=${LOCKSTEP%/*}:\$PATH#" -e "s/--model gpt2/$model --max_steps $steps/" -e "s#\"runs/#\"$SCRATCH/runs/#" \
  "$LS_SOURCE/scripts/slurm/simple.sbatch" >"$SCRATCH/simple.sbatch"
job=$(timeout -k 5 30 "${box[@]}" sbatch --parsable --output="$SCRATCH/simple.log" "$SCRATCH/simple.sbatch")
ln -s "runs/slurm-$job" "$SCRATCH/simple"
at_step simple 30
"${box[@]}" scancel --signal=TERM "$job" # what Slurm sends before the limit
ends simple "$job" 120
resumed simple
[ -e "$SCRATCH/simple/RUN_COMPLETE.txt" ] || bad "simple.sbatch: the run is not complete: $(tail -3 "$SCRATCH/simple.log")"
job=$(cd "$LS_SOURCE" && unset TRAIN_DATA VAL_DATA && DATA=$SCRATCH/plain RUN_DIR=$SCRATCH/folder GPT2_EXTRA_ARGS="$model --max_steps 20" \
  timeout -k 5 30 "${box[@]}" sbatch --parsable --export=ALL --output="$SCRATCH/folder.log" "${two[@]}")
ends folder "$job" 120
for log in simple folder; do
  grep -q "torch\|Loss:" "$SCRATCH/$log.log" && bad "$log: words of another program: $(grep -m 2 "torch\|Loss:" "$SCRATCH/$log.log")"
  [ -z "$(sed -n 's|^step \([0-9]*/\).*|\1|p' "$SCRATCH/$log.log" | sort | uniq -d)" ] || bad "$log: a step is printed twice"
done
grep -q "^step [0-9]*/" "$SCRATCH/whole.log" && bad "whole: the steps have the lines of the study and our own"

# a worker is killed: the job starts its step again, from the newest checkpoint
job=$(LOCKSTEP_FAULT="kind=kill,rank=3,step=35,attempt=1" MAX_RESTARTS=2 submit killed $steps "${two[@]}")
ends killed "$job" 120
resumed killed
equal killed
grep -q '"event": "failure", "attempt": 1, "rank": 3, "host": "n2", "cause": "killed"' "$SCRATCH/killed/events.jsonl" || bad "killed: $(grep failure "$SCRATCH/killed/events.jsonl")"

# one node, four workers that share memory: the same bits; when scancel ends it, it saves and is not queued again
job=$(WORKERS=4 submit node $steps "${one[@]}")
at_step node 30
"${box[@]}" scancel "$job"
timeout -k 5 60 "${box[@]}" wait "$job" 40 >"$SCRATCH/state" && bad "a job that was ended counts as done"
grep -q "saved $SCRATCH/node/step-" "$SCRATCH/node.log" || bad "nothing was saved: $(tail -5 "$SCRATCH/node.log")"
job=$(PATH=$SCRATCH/bin:$PATH NSYS=1 RESUME=1 WORKERS=4 submit node $steps "${one[@]}")
ends node "$job" 120
resumed node
equal node
[ -e "$SCRATCH/node/profiles/nsys_${job}_n1.nsys-rep" ] || bad "no nsys report: $(ls "$SCRATCH/node/profiles")"
grep -q '"allreduce_gradients_over_20pct": true' "$SCRATCH/node/profiles/profile_summary.json" || bad "no summary of nsys"

# without RUN_DIR: a job has its own folder in all its attempts, and does not resume from a checkpoint of another job, however many steps that has
mkdir -p "$SCRATCH/root/scripts" && ln -s "$LS_SOURCE/scripts/slurm" "$SCRATCH/root/scripts/slurm"
own() { # LOG STEPS SEED: prints the number of the job
  (cd "$SCRATCH/root" && unset RUN_DIR && WORKERS=2 GPT2_EXTRA_ARGS="$model --epochs 3 --max_steps $2 --seed $3" \
    timeout -k 5 30 "${box[@]}" sbatch --parsable --export=ALL --output="$SCRATCH/$1.log" "${one[@]}")
}
job=$(own first 300 1)
ends first "$job" 120
job=$(own second 200 2)
ln -s "root/benchmarks/slurm_$job/1node" "$SCRATCH/second"
at_step second 30
"${box[@]}" scancel --batch --signal=USR1 "$job"
ends second "$job" 120
grep -q "resumed from $SCRATCH/root/benchmarks/slurm_$job/1node/step-" "$SCRATCH/second.log" || bad "the job's own checkpoint: $(tail -5 "$SCRATCH/second.log")"
grep -q "checkpoint_path=$SCRATCH/root/benchmarks/slurm_$job/1node" "$SCRATCH/second.log" || bad "another folder: $(tail -5 "$SCRATCH/second.log")"

# a job that reaches its real time limit: Slurm checks limits every 30 s
job=$(EXTRA="--save_every 0 --keep_last 0 --epochs 1000" submit timed 100000 --time=1 --signal=B:USR1@50 "${two[@]/--time=10/--nice=0}")
for _ in $(seq 90); do grep -q "requeued: attempt" "$SCRATCH/timed.log" 2>/dev/null && break; sleep 1; done
grep -q "the time limit is near" "$SCRATCH/timed.log" || bad "Slurm gave no notice: $(tail -3 "$SCRATCH/timed.log")"
ls -d "$SCRATCH"/timed/step-* >/dev/null 2>&1 || bad "nothing was saved before the limit: $(tail -3 "$SCRATCH/timed.log")"
"${box[@]}" scancel "$job"
timeout -k 5 60 "${box[@]}" wait "$job" 40 >/dev/null

# 2 nodes x 2 workers and a spare. The network of a node is cut: its workers end by themselves, and the spare replaces it
hosts=("$LS_SOURCE/tests/support/hosts" "${box[1]}/net")
three=(--no-kill "${two[@]/--nodes=2/--nodes=3}")
job=$(HOT_SPARE=1 EXTRA="--comm_timeout 5" submit cut $steps "${three[@]}")
at_step cut 30
"${hosts[@]}" on head ip link set to-n2 down
ends cut "$job" 150
resumed cut
equal cut
grep -q "spare host n3 is used" "$SCRATCH/cut.log" || bad "cut: $(grep lockstep: "$SCRATCH/cut.log")"
grep -q '"event": "failure", "attempt": 1, .*"host": "n2", "cause": "host lost", "detail": "host n2 does not answer"' "$SCRATCH/cut/events.jsonl" ||
  bad "cut: $(grep failure "$SCRATCH/cut/events.jsonl")"
[ "$(grep -c '"event": "failure"' "$SCRATCH/cut/events.jsonl")" = 1 ] || bad "cut: more than one failure"
"${hosts[@]}" on n2 pgrep -f "$SCRATCH/cut" >/dev/null && bad "cut: processes are left on n2"

# the same job is stopped near its limit: launch passes it on to all nodes
job=$(HOT_SPARE=1 submit spare_limit $steps "${three[@]}")
at_step spare_limit 30
"${box[@]}" scancel --batch --signal=USR1 "$job"
ends spare_limit "$job" 120
resumed spare_limit
equal spare_limit
grep -q "requeued: attempt 1" "$SCRATCH/spare_limit.log" || bad "spare_limit: the script did not queue the job again"

# the first node is lost, and the script with it: the guard queues the job again
job=$(HOT_SPARE=1 EXTRA="--comm_timeout 5" submit first $steps "${three[@]}")
at_step first 30
node=$(sed -n "s/^slurm: job $job attempt 0 on \([^ ]*\) .*/\1/p" "$SCRATCH/first.log")
"${hosts[@]}" kill "$node"
ends first "$job" 240
resumed first
equal first
grep "job $job attempt 1 on " "$SCRATCH/first.log" | grep -qv " $node " || bad "first: $(grep slurm: "$SCRATCH/first.log")"
done_tests
