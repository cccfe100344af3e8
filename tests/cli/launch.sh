#!/usr/bin/env bash
# lockstep launch, with a stand-in for ssh that runs the command here and pretends to be the host: bits of one worker, prefixes, exit codes, signals,
# hosts that cannot be reached, and no process left behind whatever dies.
. "$(dirname "$0")/../support/lib.sh"
. "$(dirname "$0")/../support/ranks.sh"
command -v pgrep >/dev/null || skip "pgrep is missing (package procps)"
cat >"$SCRATCH/rsh" <<'SH'
#!/bin/sh
[ "$1" != nowhere ] || { echo "rsh: no route to $1" >&2; exit 255; }
[ "$1" != hangs ] || exec sleep 300
export LOCKSTEP_HOST_ID=$1
shift
exec sh -c "$*"
SH
chmod +x "$SCRATCH/rsh"
export LOCKSTEP_RSH=$SCRATCH/rsh
launch() { timeout -k 5 120 "$LOCKSTEP" launch --master_addr 127.0.0.1 --master_port "$(free_port)" "$@"; }
mkdir -p "$SCRATCH/d" && tokens "$SCRATCH/d/train.bin" 20000
base=(train --data "$SCRATCH/d" --model tiny --num_layers 2 --seq_length 32 --micro_batch_size_per_gpu 1 --global_batch_size 4 --lr 1e-3 --threads 1)
long=(--epochs 200 --max_steps 100000)

# the bits of one worker; every line has its rank; the token is on no command line, and made anew
"$LOCKSTEP" "${base[@]}" --max_steps 3 --checkpoint_path "$SCRATCH/one" >"$SCRATCH/log" 2>&1 || bad "one worker: $(tail -3 "$SCRATCH/log")"
cd "$SCRATCH" || exit 1
launch --hosts a,b -n 4 --env SOME=thing -- "${base[@]}" --reference_output --max_steps 3 --checkpoint_path two >"$SCRATCH/out" 2>"$SCRATCH/err" || bad "launch: $(tail -3 "$SCRATCH/err")"
same "$SCRATCH/one/epoch-1/model.safetensors" "$SCRATCH/two/epoch-1/model.safetensors" # in the folder where launch was started
grep -qv '^\[rank [0-3]\] ' "$SCRATCH/out" && bad "a line without its rank: $(grep -v '^\[rank' "$SCRATCH/out" | head -1)"
[ "$(grep -c '^\[rank 3\] \[Rank 3\] EXITING cleanly$' "$SCRATCH/out")" = 1 ] || bad "the last line of rank 3 is missing"
grep -q '"started_by": "lockstep launch"' two/launcher_metadata.json || bad "the launcher is not named"
grep -q '"hosts": 2' two/launcher_metadata.json || bad "not two hosts"
printf '# two hosts\na slots=2\nb slots=1\n' >hosts
launch --hostfile hosts --no_prefix -- doctor >"$SCRATCH/out" 2>&1 || bad "a hostfile: $(tail -3 "$SCRATCH/out")"
grep -q '^\[rank' "$SCRATCH/out" && bad "--no_prefix has no effect"

# exit codes
expect 2 "invalid configuration" launch --hosts a,b -n 2 -- "${base[@]}" --strategy single --checkpoint_path "$SCRATCH/x"
expect 2 "'nonsense' is not a lockstep command" launch --hosts a,b -n 2 -- nonsense
expect 2 "without the word lockstep, such as: -- train" launch --hosts a,b -n 2 -- lockstep train --data x
expect 4 "cannot start workers on host nowhere" launch --hosts a,nowhere -n 2 -- "${base[@]}" --max_steps 1 --checkpoint_path "$SCRATCH/x"
expect 4 "cannot start workers on host b" launch --hosts b -n 1 --program /no/such/lockstep -- doctor
expect 2 "listed twice" launch --hosts a,a -n 2 -- doctor
expect 2 "fewer workers than hosts" launch --hosts a,b -n 1 -- doctor
expect 2 "leave one of them out" launch --hosts a:2,b:2 -n 3 -- doctor
expect 2 "for every host" launch --hosts a:2,b -- doctor
expect 2 "a command is missing" launch --hosts a -n 1
expect 2 "is not the name of a host" launch --hosts=-oProxyCommand=x -n 1 -- doctor
expect 3 "slots=N" launch --hostfile <(echo "a b c") -n 1 -- doctor
expect 2 "launch cannot start itself" launch --hosts a -n 1 -- launch
expect 3 "no job" "$LOCKSTEP" launch --agent <<<"hello, this is not a job"

# one Ctrl-C while a remote shell hangs (-o: a process that launch has just forked has its command line, too)
launch --hosts a,hangs -n 2 -- "${base[@]}" --max_steps 1 --checkpoint_path "$SCRATCH/hangs" >"$SCRATCH/hangs.log" 2>&1 &
job=$!
await $job pgrep -f "^$LOCKSTEP train .*$SCRATCH/hangs( |$)" >/dev/null || bad "hangs: no worker starts: $(cat "$SCRATCH/hangs.log")"
SECONDS=0
kill -INT "$(pgrep -o -f "^$LOCKSTEP launch .*$SCRATCH/hangs( |$)")"
wait $job
got=$?
[ $got = 130 ] && [ $SECONDS -lt 60 ] || bad "a shell that hangs: exit code $got after $SECONDS s: $(cat "$SCRATCH/hangs.log")"
grep -q "stopping; press Ctrl-C again to kill the workers" "$SCRATCH/hangs.log" || bad "a shell that hangs: $(cat "$SCRATCH/hangs.log")"
grep -q "host hangs does not answer; its remote shell is killed" "$SCRATCH/hangs.log" || bad "the shell that hangs is not named: $(cat "$SCRATCH/hangs.log")"

# fault NAME SIGNAL WHO CODE: a run whose WHO gets SIGNAL ends with CODE, and nothing is left
fault() {
  local name=$1 sig=$2 who=$3 code=$4 victim job got
  launch --hosts a,b -n 4 -- "${base[@]}" "${long[@]}" --comm_timeout 3 --checkpoint_path "$SCRATCH/$name" >"$SCRATCH/$name.log" 2>&1 &
  job=$!
  await $job grep -qs "step 10/" "$SCRATCH/$name.log" || bad "$name: no step 10: $(tail -3 "$SCRATCH/$name.log")"
  case $who in
    rank) victim=$(pgrep -f "^$LOCKSTEP train .*$SCRATCH/$name( |$)" | shuf -n 1) ;;
    agent) victim=$(pgrep -f "^$LOCKSTEP train .*$SCRATCH/$name( |$)" | shuf -n 1); victim=$(ps -o ppid= -p "$victim") ;;
    launch) victim=$(pgrep -o -f "^$LOCKSTEP launch .*$SCRATCH/$name( |$)") ;;
  esac
  # shellcheck disable=SC2086
  kill -"$sig" $victim
  wait $job
  got=$?
  [ $got = "$code" ] || bad "$name: exit code $got, expected $code: $(tail -n 3 "$SCRATCH/$name.log")"
  left() { pgrep -f "checkpoint_path $SCRATCH/$name( |$)" >/dev/null; }
  for _ in $(seq 300); do left || return 0; sleep 0.05; done
  bad "$name: processes are left: $(pgrep -af "checkpoint_path $SCRATCH/$name( |$)" | head -2)"
}
fault killed KILL rank 4
grep -q "was killed by signal 9" "$SCRATCH/killed.log" || bad "the killed rank is not named: $(tail -3 "$SCRATCH/killed.log")"
fault saved TERM launch 143
ls -d "$SCRATCH"/saved/step-* >/dev/null 2>&1 || bad "SIGTERM: nothing was saved: $(tail -3 "$SCRATCH/saved.log")"
fault orphans KILL launch 137
if [ "${LS_TEST_ALL:-0}" = 1 ]; then
  fault stopped STOP rank 4
  grep -q "is stopped (SIGSTOP)" "$SCRATCH/stopped.log" || bad "the stopped rank is not named: $(tail -3 "$SCRATCH/stopped.log")"
  fault agentless KILL agent 4
  for k in 1 2 3 4 5 6; do # stopped or killed at any moment of the start: noticed within the limit
    launch --hosts a,b -n 4 -- "${base[@]}" "${long[@]}" --comm_timeout 3 --checkpoint_path "$SCRATCH/early$k" >"$SCRATCH/early.log" 2>&1 &
    job=$!
    running() { pgrep -f "^$LOCKSTEP train .*$SCRATCH/early$k( |$)" >/dev/null; }
    await $job running || bad "early$k: no worker starts: $(tail -3 "$SCRATCH/early.log")"
    sleep "0.0$((RANDOM % 10))"
    SECONDS=0
    kill -"$([ $((k % 3)) = 0 ] && echo KILL || echo STOP)" "$(pgrep -f "^$LOCKSTEP train .*$SCRATCH/early$k( |$)" | shuf -n 1)"
    wait $job
    got=$?
    [ $got = 4 ] && [ $SECONDS -lt 60 ] || bad "early$k: exit code $got after $SECONDS s: $(tail -n 3 "$SCRATCH/early.log")"
    running && bad "early$k: processes are left"
  done
fi
done_tests
