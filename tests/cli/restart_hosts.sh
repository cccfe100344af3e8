#!/usr/bin/env bash
# lockstep launch that restarts: workers on hosts, lost hosts with and without spares, elastic runs, and commands of other launchers.
# Hosts are pretended by a stand-in for ssh, which passes no variables on; one is lost while the file down.HOST exists, and once if once.HOST does.
# ls-test: long
. "$(dirname "$0")/../support/lib.sh"
. "$(dirname "$0")/../support/ranks.sh"
command -v pgrep >/dev/null || skip "pgrep is missing (package procps)"
cd "$SCRATCH" || exit 1
cat >rsh <<SH
#!/bin/sh
[ ! -e "$SCRATCH/down.\$1" ] || { echo "rsh: no route to \$1" >&2; exit 255; }
rm "$SCRATCH/once.\$1" 2>/dev/null && exit 255
export LOCKSTEP_HOST_ID=\$1
unset LOCKSTEP_ATTEMPT
shift
exec sh -c "\$*"
SH
chmod +x rsh
export LOCKSTEP_RSH=$SCRATCH/rsh
launch() { timeout -k 5 120 "$LOCKSTEP" launch --master_addr 127.0.0.1 --master_port "$(free_port)" "$@"; }
restarted_run

# a killed worker: the same hosts again
begin killed 12 launch --hosts a,b -n 4 --max_restarts 2 -- "${base[@]}" --checkpoint_path "$SCRATCH/killed"
kill -9 "$(on_host killed a | tail -n 1)"
alike killed
grep -q "restarting from $SCRATCH/killed/step-[123]0" killed.log || bad "killed: $(grep lockstep: killed.log)"
grep -q '"failure", .*"rank": 1, "host": "a", "cause": "killed", "detail": "rank 1 on a (pid [0-9]*) was killed by signal 9' killed/events.jsonl || bad "killed: $(grep failure killed/events.jsonl)"

# the same, and the other host reports first: rank 0 and the agent of the killed worker are stopped until the workers of host b have ended, whose
# failures are consequences
begin late 12 launch --hosts a,b -n 4 --max_restarts 2 -- "${base[@]}" --checkpoint_path "$SCRATCH/late"
first=$(on_host late a | head -n 1)
others=$(on_host late b)
agent=$(ps -o ppid= -p "$first" | tr -d ' ')
kill -STOP "$agent" "$first"
kill -9 "$(on_host late a | tail -n 1)"
none_left() { for p in $others; do ! kill -0 "$p" 2>/dev/null || return 1; done; }
await $pid none_left || bad "late: workers of host b are left"
kill -CONT "$first"
sleep 0.5
kill -CONT "$agent"
alike late
grep -q '"failure", .*"rank": 1, "host": "a", "cause": "killed", "detail": "rank 1 on a (pid [0-9]*) was killed by signal 9' late/events.jsonl || bad "late: $(grep failure late/events.jsonl)"

# a host fails before the first step: the start is that of attempt 2
touch once.b
begin early 12 launch --hosts a,b -n 2 --max_restarts 1 -- "${base[@]}" --checkpoint_path "$SCRATCH/early"
alike early
[ "$(grep -o '"event": "[a-z]*", "attempt": .' early/events.jsonl | tr -dc 'a-z0-9\n' | xargs)" = "eventfailureattempt1 eventstartattempt2 eventrestartattempt2" ] || bad "early: $(cat early/events.jsonl)"

# a run that cannot start, because the first host has no address: the event has the messages of the workers
expect 4 "attempt 1 failed before its first step: other: rank 0 on a\.\.b: " "$LOCKSTEP" launch --master_port "$(free_port)" --hosts a..b,c -n 2 --max_restarts 1 -- "${base[@]}" --comm_timeout 1 \
  --checkpoint_path "$SCRATCH/nowhere"
grep -q '"failure", .*"detail": "rank 0 on a\.\.b: rank 1 of 2 did not connect.*; rank 1 on c: rank 1 cannot find the host MASTER_ADDR=a\.\.b' nowhere/events.jsonl || bad "nowhere: $(cat nowhere/events.jsonl)"

# rank 0, which writes the events, is killed
LOCKSTEP_FAULT="kind=kill,rank=0,step=12" begin first 11 launch --hosts a,b -n 2 --max_restarts 1 -- "${base[@]}" --checkpoint_path "$SCRATCH/first"
alike first
grep -q '"failure", .*"rank": 0, "host": "a", "cause": "killed"' first/events.jsonl || bad "first: $(grep failure first/events.jsonl)"
# a host that computes wrong numbers: a spare replaces it; then a second one, and only the first one is left
LOCKSTEP_FAULT="kind=flip,rank=1,step=12,tensor=grad;kind=flip,rank=1,step=15,tensor=grad,attempt=2" begin wrong 11 launch --hosts 127.0.0.1,127.0.0.2,127.0.0.3 -n 4 --hot_spare 1 -- \
  "${base[@]}" --audit 1 --audit_depth step --checkpoint_path "$SCRATCH/wrong"
alike wrong
[ "$(grep -o "^lockstep: [a-z ]*host 127.*" wrong.log | sed 's/127.0.0//' | xargs)" = "lockstep: host .1 is avoided from now on: its numbers were wrong lockstep: spare host .3 is used lockstep: host .2 is avoided from now on: its numbers were wrong lockstep: host .1 is used again, although it computed wrong numbers: no other host is left" ] ||
  bad "wrong: $(grep lockstep: wrong.log)"
# a resumed run, every checkpoint on the disk is damaged: the hosts are asked for copies in their memory; without any nothing begins again
keep copies 2
LOCKSTEP_FAULT="kind=kill,rank=1,step=25" launch --hosts a,b -n 2 -- "${base[@]}" --save_memory_every 3 --checkpoint_path "$SCRATCH/copies" >copies.log 2>&1
for k in copies/step-*; do printf X | dd of="$k/model.safetensors" bs=1 seek=5000 conv=notrunc 2>/dev/null; done
cp -a copies lacking # copies in memory belong to the other folder
expect 0 "resumed from /dev/shm/.*/step-24" launch --hosts a,b -n 2 --max_restarts 1 -- "${base[@]}" --checkpoint_path "$SCRATCH/copies" --resume
same one/epoch-1/model.safetensors copies/epoch-1/model.safetensors
expect 3 "there is no older complete checkpoint" launch --hosts a,b -n 2 --max_restarts 1 -- "${base[@]}" --checkpoint_path "$SCRATCH/lacking" --resume
[ -d lacking/step-20 ] || bad "lacking: $(ls lacking)"
# a lost host: a spare replaces it
begin spare 12 launch --hosts a,b,c -n 4 --hot_spare 1 -- "${base[@]}" --checkpoint_path "$SCRATCH/spare"
touch down.b
# shellcheck disable=SC2046
kill -9 $(on_host spare b)
alike spare
grep -q "spare host c is used" spare.log || bad "spare: $(grep lockstep: spare.log)"
grep -q '"cause": "host lost"' spare/events.jsonl || bad "spare: $(cat spare/events.jsonl)"
rm down.b

# an elastic run that no smaller layout could continue: the same hosts are tried again
"$LOCKSTEP" "${base[@]}" -n 2 --tp 2 --checkpoint_path tensor >/dev/null 2>&1 || bad "tensor: the run without failures"
begin whole 12 launch --hosts a,b -n 2 --elastic 1:2 -- "${base[@]}" --tp 2 --checkpoint_path "$SCRATCH/whole"
touch down.b
# shellcheck disable=SC2046
kill -9 $(on_host whole b)
await $pid grep -q "the run starts again with 2 workers: no layout of 1 worker gives the same bits" whole.log || bad "whole: $(grep lockstep: whole.log)"
rm down.b
wait $pid || bad "whole: exit code $?: $(tail -n 3 whole.log)"
same tensor/epoch-1/model.safetensors whole/epoch-1/model.safetensors

# the command of another launcher: here one that starts two workers as torchrun does
cat >two <<SH
#!/bin/bash
export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$(free_port) LOCKSTEP_TOKEN=some
RANK=0 LOCAL_RANK=0 "\$@" & first=\$!
RANK=1 LOCAL_RANK=1 "\$@"; code=\$?
wait \$first; other=\$?
exit \$((other > code ? other : code))
SH
chmod +x two
LOCKSTEP_FAULT="kind=kill,rank=1,step=15,attempt=1" begin other 12 "$LOCKSTEP" launch --max_restarts 1 -- ./two "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/other"
alike other
grep -q '"failure", "attempt": 1, "rank": 1, .*"cause": "killed", "detail": "rank 1 ' other/events.jsonl || bad "other: $(grep failure other/events.jsonl)" # as rank 0 knows it

# workers that exit without a word: the launcher hands on a code that has another meaning
for r in 1 0; do
  rm -rf silent
  LOCKSTEP_FAULT="kind=exit,rank=$r,step=15,code=2,attempt=1" begin silent 12 "$LOCKSTEP" launch --max_restarts 1 -- ./two "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/silent"
  alike silent
  [ $r = 0 ] || grep -q '"rank": 1, .*"cause": "exited", "detail": "rank 1 ' silent/events.jsonl || bad "silent: $(grep failure silent/events.jsonl)"
done

# the same from another host: only the lost connection is known
sed 's/LOCAL_WORLD_SIZE=2/LOCAL_WORLD_SIZE=1/; s/LOCAL_RANK=0/& LOCKSTEP_HOST_ID=a/; s/LOCAL_RANK=1/LOCAL_RANK=0 LOCKSTEP_HOST_ID=b/' two >across
chmod +x across
LOCKSTEP_FAULT="kind=exit,rank=1,step=15,code=2,attempt=1" begin across_hosts 12 "$LOCKSTEP" launch --max_restarts 1 -- ./across "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/across_hosts"
alike across_hosts
grep -q '"rank": 1, .*"cause": "connection lost", "detail": "the connection with rank 1 ' across_hosts/events.jsonl || bad "across_hosts: $(grep failure across_hosts/events.jsonl)"

# a launcher that is killed: its workers, in sessions of their own, are ended before a checkpoint is chosen
sed 's/"\$@"/setsid "$@"/' two >apart
chmod +x apart
begin left 12 "$LOCKSTEP" launch --max_restarts 1 -- ./apart "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/left"
workers=$(pgrep -f "^$LOCKSTEP train .*$SCRATCH/left( |\$)")
# shellcheck disable=SC2086
kill -STOP $workers
kill -9 "$(pgrep -f "^/bin/bash ./apart .*$SCRATCH/left( |\$)" | head -n 1)"
await $pid grep -q "attempt 1 failed" left.log || bad "left: no restart: $(tail -n 3 left.log)"
for p in $workers; do
  kill -0 "$p" 2>/dev/null && bad "left: worker $p outlives its launcher" && kill -9 "$p"
done
alike left

if [ -n "${LS_TEST_ALL:-}" ]; then # fewer workers without a lost host, all of them when it answers again: asked every 15 s
  base=("${base[@]}" --max_steps 2400)
  "$LOCKSTEP" "${base[@]}" --checkpoint_path one2400 >/dev/null 2>&1
  begin elastic 12 launch --hosts a,b -n 4 --elastic 2:4 -- "${base[@]}" --checkpoint_path "$SCRATCH/elastic"
  touch down.b
  # shellcheck disable=SC2046
  kill -9 $(on_host elastic b)
  await $pid grep -q '"start".*"world_size": 2' elastic/events.jsonl || bad "elastic: not with 2: $(tail -n 3 elastic.log)"
  rm down.b
  await $pid grep -q '"why": "workers returned"' elastic/events.jsonl || bad "elastic: does not grow: $(tail -n 3 elastic.log)"
  wait $pid || bad "elastic: exit code $?"
  grep "to continue:" elastic.log && bad "elastic: a worker of a run that goes on by itself gives advice"
  same one2400/epoch-1/model.safetensors elastic/epoch-1/model.safetensors
fi

# refused
# a second supervisor, or one in the folder of a run without: nothing changes there
mkdir live held
echo '{"event": "start", "step": 0}' | tee live/events.jsonl >held/events.jsonl
cp live/events.jsonl before.jsonl
echo 3 | tee live/asked >held/resize
as_train() { "$LOCKSTEP" launch --max_restarts 1 -- sh -c "$2" lockstep train --train_data_path t.bin --checkpoint_path "$1"; }
"$LOCKSTEP" launch --max_restarts 1 -- sh -c 'mv live/asked live/resize; exec sleep 60' lockstep train --train_data_path t.bin --checkpoint_path live 2>live.log &
pid=$!
await $pid [ -e live/resize ] || bad "live: $(cat live.log)"
expect 2 "another process holds live/supervise.lock (pid $pid on host " as_train live 'exit 4'
expect 2 "live is a run of lockstep launch: .*follows its hosts" "$LOCKSTEP" resize live 2
kill -TERM $pid
wait $pid
exec 9>held/run.lock
flock -n 9 && echo "pid 4711 on host elsewhere, since 2026-01-01T00:00:00Z" >&9
expect 2 "held/run.lock (pid 4711 on host elsewhere" as_train held 'exit 4'
exec 9>&-
for d in live held; do
  same before.jsonl $d/events.jsonl
  [ -e $d/resize ] || bad "$d: the request is gone"
  [ ! -e $d/supervise.lock ] || bad "$d has supervise.lock"
done
# a command that fails before it trains
expect 2 "bad words" as_train never 'echo bad words; exit 2'
[ ! -e never ] || bad "never: $(ls never)"
expect 2 "bad words" as_train held 'echo bad words; exit 2'
same before.jsonl held/events.jsonl

expect 2 "are for train" "$LOCKSTEP" launch --hosts a -n 1 --max_restarts 1 -- doctor
expect 2 "no words .lockstep train" "$LOCKSTEP" launch --max_restarts 1 -- mpirun -n 2 something
expect 2 "remove --max_restarts from the train command" "$LOCKSTEP" launch --max_restarts 1 -- mpirun -n 2 lockstep train --train_data_path t.bin --max_restarts 2 --checkpoint_path no
expect 2 "remove --elastic from the train command" "$LOCKSTEP" launch --hosts a -n 1 --max_restarts 1 -- train --train_data_path t.bin --elastic 1:2 --checkpoint_path no
[ ! -e no ] || bad "a refused run has made its folder"
expect 2 "needs --hosts" "$LOCKSTEP" launch --elastic 1:2 -- mpirun -n 2 lockstep train
expect 2 "at least one must be used" "$LOCKSTEP" launch --hosts a -n 1 --hot_spare 1 -- train
expect 2 "hot_spare 1 does nothing with --max_restarts 0" "$LOCKSTEP" launch --hosts a,b -n 1 --hot_spare 1 --max_restarts 0 -- train
expect 2 "use lockstep launch --hosts" launch --hosts a -n 2 -- "${base[@]}" --max_restarts 1 --checkpoint_path "$SCRATCH/no"
done_tests
