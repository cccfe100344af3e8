#!/usr/bin/env bash
# lockstep launch --slurm with stand-ins for srun and scontrol: the nodes and tasks of the job, what srun is called with, and a lost node, for
# which the real srun ends with 0. A node is lost while the file down.NODE exists. equiv/slurm uses the real Slurm.
# ls-test: long
. "$(dirname "$0")/../support/lib.sh"
. "$(dirname "$0")/../support/ranks.sh"
command -v pgrep >/dev/null || skip "pgrep is missing (package procps)"
cd "$SCRATCH" || exit 1
mkdir bin
cat >bin/srun <<'SH'
#!/usr/bin/env bash
echo "srun $* (SLURM_GPUS=${SLURM_GPUS:-} SLURM_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-})" >>"$SCRATCH/log"
while [ "$1" != --nodelist ]; do shift; done
node=$2
shift 2
[ ! -e "$SCRATCH/down.$node" ] || { echo "srun: error: Unable to create step" >&2; exit "${SLURM_EXIT_ERROR:-1}"; }
export LOCKSTEP_HOST_ID=$node
"$@" # on the node
code=$?
[ ! -e "$SCRATCH/down.$node" ] || { echo "srun: error: Node failure on $node" >&2; exit 0; }
exit $code
SH
cat >bin/scontrol <<'SH'
#!/usr/bin/env bash
[ "$*" = "show hostnames" ] && [ "$SLURM_JOB_NODELIST" != bad ] || exit 1
for k in $SLURM_JOB_NODELIST; do echo "127.0.0.$k"; done
SH
chmod +x bin/*
export SCRATCH PATH=$SCRATCH/bin:$PATH
unset LOCKSTEP_RSH SLURM_NTASKS_PER_NODE
export SLURM_JOB_ID=7 SLURM_JOB_NODELIST="2 3 4"
launch() { timeout -k 5 120 "$LOCKSTEP" launch --slurm --master_port "$(free_port)" "$@"; }
restarted_run

lost() { # RUN NODE SPARE COMMAND...: the node is lost after 12 steps, the run ends with the bits of one worker
  local run=$1 node=$2 spare=$3
  shift 3
  begin "$run" 12 "$@" -- "${base[@]}" --checkpoint_path "$SCRATCH/$run"
  touch "down.$node"
  # shellcheck disable=SC2046
  kill -9 $(on_host "$run" "$node") 2>/dev/null
  alike "$run"
  rm "down.$node"
  grep -q "spare host $spare is used" "$run.log" || bad "$run: $(grep lockstep: "$run.log")"
  grep -q '"failure", .*"host": "'"$node"'", "cause": "host lost"' "$run/events.jsonl" || bad "$run: $(grep failure "$run/events.jsonl")"
}
called() { grep -q -- "$1" log || bad "$2: no '$1' in: $(cat log)"; }

# two nodes with the tasks of the job, and a spare
export SLURM_GPUS_ON_NODE=2 SLURM_GPUS=6 SLURM_CPUS_PER_TASK=1
SLURM_NTASKS_PER_NODE=2 lost spare 127.0.0.3 127.0.0.4 launch --hot_spare 1
called "^srun --overlap .*--nodes=1 --ntasks=1 --ntasks-per-node=1 --gres=gpu:2 --nodelist 127.0.0.3 sh -c exec $LOCKSTEP launch --agent (SLURM_GPUS= SLURM_CPUS_PER_TASK=)$" "a worker"
called "--nodelist 127.0.0.3 sh -c exec $LOCKSTEP --version " "the question"
grep -q "127.0.0.5" log && bad "a node that the job does not have: $(cat log)"
grep -q '"gpus": "6"' spare/training_metrics.json || bad "workers do not get SLURM_GPUS"
[ "$(grep -c '"world_size": 4' spare/events.jsonl)" = 2 ] || bad "not twice with 4 workers: $(grep start spare/events.jsonl)"
unset SLURM_GPUS_ON_NODE SLURM_GPUS SLURM_CPUS_PER_TASK

# the only node is lost, and srun ends with 0
: >log
SLURM_JOB_NODELIST="2 3" lost only 127.0.0.2 127.0.0.3 launch -n 2 --hot_spare 1
called "--ntasks-per-node=1 --nodelist" "without GPUs"
printf '#!/bin/sh\nexit 0\n' >bin/early
chmod +x bin/early
expect 4 "the connection to host 127.0.0.2 ended before its workers did" launch -n 3 --rsh early -- doctor # --rsh instead of srun

# scancel signals the steps and the script, not at the same moment: a worker that saves must get one signal of its agent
cat >worker <<'SH'
#!/usr/bin/env bash
[ "$1" != launch ] || exec -a "$SCRATCH/agent" "$LOCKSTEP" "$@"
trap 'echo term >>"$SCRATCH/terms"' TERM
echo $$ >"$SCRATCH/started"
for ((i = 0; i < 400; i++)); do [ ! -e "$SCRATCH/saved" ] || exit 143; sleep 0.05; done
SH
chmod +x worker
export LOCKSTEP
SLURM_JOB_NODELIST=2 timeout -k 5 60 "$LOCKSTEP" launch --slurm -n 1 --program "$SCRATCH/worker" -- train >stop.log 2>&1 &
pid=$!
await $pid test -s started || bad "no worker: $(cat stop.log)"
kill -TERM "$(pgrep -f "^$SCRATCH/agent launch")"
await $pid test -s terms || bad "no signal: $(cat stop.log)"
kill -TERM $pid # timeout passes it on
await $pid grep -q stopping stop.log || bad "launch does not stop: $(cat stop.log)"
sleep 0.5
touch saved
wait $pid
code=$?
[ $code = 143 ] && [ "$(wc -l <terms)" = 1 ] || bad "stopped twice: exit code $code, $(wc -l <terms) signals: $(cat stop.log)"

# refused
touch down.127.0.0.4
expect 4 "cannot start workers on host 127.0.0.4: 'srun' ended with exit code 255" launch -n 3 -- doctor
expect 2 "-n N is missing" launch -- doctor
expect 2 "give one of them" launch --hosts a -n 1 -- doctor
expect 4 "lists no nodes of SLURM_JOB_NODELIST=bad" env SLURM_JOB_NODELIST=bad "$LOCKSTEP" launch --slurm -n 1 -- doctor
expect 2 "is no Slurm job" env -u SLURM_JOB_NODELIST "$LOCKSTEP" launch --slurm -n 1 -- doctor
expect 2 "needs --hosts or --slurm" "$LOCKSTEP" launch --hot_spare 1 -- srun lockstep train
done_tests
