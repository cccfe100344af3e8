#!/usr/bin/env bash
# Signals: a stopped rank is named and the run ends; a second SIGTERM ends at once; SIGTERM in a validation and before the first step; nothing is left running.
source "$(dirname "$0")/../support/lib.sh"
tokens "$SCRATCH/t.bin" 60000
head -c 4000000 /dev/zero >"$SCRATCH/long.bin" # for steps that take minutes
base=(train --train_data_path "$SCRATCH/t.bin" --model tiny --seq_length 64 --micro_batch_size_per_gpu 2 --save_every 0)

# left NAME: no process of this run exists
left() {
  pgrep -f "checkpoint_path $SCRATCH/$1 " >/dev/null && bad "$1: a process is left: $(pgrep -af "checkpoint_path $SCRATCH/$1 ")"
}
# ends PID CODE MOST NAME: exit code and seconds from now on
ends() {
  local begin=$SECONDS
  wait "$1"
  local code=$? took=$((SECONDS - begin))
  [ $code = "$2" ] || bad "$4: exit code $code, expected $2: $(tail -3 "$SCRATCH/$4.err")"
  [ $took -le "$3" ] || bad "$4: took $took s, at most $3 s are allowed"
  left "$4"
}
begin() { # NAME OPTIONS...: in the background; its pid in $pid
  local name=$1
  shift
  "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/$name" "$@" >"$SCRATCH/$name.log" 2>"$SCRATCH/$name.err" &
  pid=$!
}
steps() { await "$pid" [ -s "$SCRATCH/$1/metrics.jsonl" ] || bad "$1: no step: $(tail -3 "$SCRATCH/$1.err")"; }

# kill -STOP of a rank: the other ranks detect it, the rank is named, all processes end
begin stopped -n 3 --global_batch_size 6 --no_deterministic --comm_timeout 5 --epochs 500 --max_steps 1000000
steps stopped
victim=$(pgrep -P "$pid" | sed -n 2p)
kill -STOP "$victim"
ends "$pid" 4 29 stopped
grep -q "rank 1 (pid $victim) is stopped (SIGSTOP)" "$SCRATCH/stopped.err" || bad "the stopped rank is not named: $(tail -5 "$SCRATCH/stopped.err")"
grep -q "no progress for .*; rank 1 is stopped (SIGSTOP, pid $victim)" "$SCRATCH/stopped.err" || bad "the table of the hang is not printed: $(tail -5 "$SCRATCH/stopped.err")"
[ -d "/proc/$victim" ] && bad "the stopped rank is left"
# in a pipeline, where ranks wait for a message: no waiting rank is blamed
begin piped -n 2 --pp 2 --global_batch_size 4 --comm_timeout 5 --epochs 500 --max_steps 1000000
steps piped
victim=$(pgrep -P "$pid" | sed -n 2p)
kill -STOP "$victim"
ends "$pid" 4 29 piped
grep -q "no progress for .*; rank 1 is stopped (SIGSTOP, pid $victim)" "$SCRATCH/piped.err" || bad "a pipeline: the stopped rank is not named: $(tail -5 "$SCRATCH/piped.err")"
grep -q "look at rank" "$SCRATCH/piped.err" && bad "a pipeline: another rank is blamed: $(grep "look at" "$SCRATCH/piped.err")"

# the whole run is stopped for longer than the limit (Ctrl-Z, a suspended job): it goes on, nobody is blamed
for layout in "--strategy ddp" "--pp 2"; do
  name=paused${layout##* }
  # shellcheck disable=SC2086
  begin $name -n 2 $layout --global_batch_size 4 --comm_timeout 3 --epochs 500 --max_steps 1000000
  steps "$name"
  mapfile -t all < <(echo "$pid"; pgrep -P "$pid")
  kill -STOP "${all[@]}"
  sleep 5
  kill -CONT "${all[@]}"
  before=$(wc -l <"$SCRATCH/$name/metrics.jsonl")
  further() { [ "$(wc -l <"$SCRATCH/$name/metrics.jsonl")" -gt $((before + 20)) ]; }
  await "$pid" further || bad "$name: it did not go on: $(tail -5 "$SCRATCH/$name.err")"
  kill -TERM "$pid"
  ends "$pid" 143 20 "$name"
  ! grep -q "no progress" "$SCRATCH/$name.err" || bad "$name: $(grep "no progress" "$SCRATCH/$name.err")"
done

# SIGTERM while a rank is stopped and no collective has a limit: the parent does not wait for it
begin unlimited -n 2 --global_batch_size 4 --comm_timeout 0 --epochs 500 --max_steps 1000000
steps unlimited
kill -STOP "$(pgrep -P "$pid" | sed -n 1p)"
kill -TERM "$pid"
ends "$pid" 4 29 unlimited
grep -q "rank 0 (pid [0-9]*) is stopped (SIGSTOP)" "$SCRATCH/unlimited.err" || bad "SIGTERM, stopped rank: $(tail -5 "$SCRATCH/unlimited.err")"

# a step that takes minutes: the first SIGTERM waits for its end, the second one does not
sizes=3; [ "${LS_TEST_ALL:-0}" = 1 ] && sizes="2 3"
for n in $sizes; do
  begin twice$n -n $n --global_batch_size $((n * 8192)) --train_data_path "$SCRATCH/long.bin" --no_deterministic --max_steps 2
  await "$pid" grep -q "^memory " "$SCRATCH/twice$n.err" || bad "twice$n does not start"
  await "$pid" [ -e "$SCRATCH/twice$n/metrics.jsonl" ] || bad "twice$n: no run folder"
  sleep 1
  kill -TERM "$pid"
  sleep 1.2
  kill -0 "$pid" 2>/dev/null || bad "twice$n: the first SIGTERM ended the run in the middle of a step: $(tail -3 "$SCRATCH/twice$n.err")"
  kill -TERM "$pid"
  ends "$pid" 143 20 twice$n
  grep -q "second signal" "$SCRATCH/twice$n.err" || bad "a second SIGTERM is not reported: $(tail -3 "$SCRATCH/twice$n.err")"
  grep -q "newest complete checkpoint" "$SCRATCH/twice$n.err" && bad "twice$n: reports a checkpoint, but none was saved: $(tail -3 "$SCRATCH/twice$n.err")"
done
begin int -n 2 --global_batch_size 16384 --train_data_path "$SCRATCH/long.bin" --max_steps 2
await "$pid" [ -e "$SCRATCH/int/metrics.jsonl" ] || bad "int: no run folder"
sleep 1 # into the first step
kill -INT "$pid" # background jobs of scripts may ignore SIGINT: the program has its own handler
sleep 1
kill -INT "$pid"
ends "$pid" 130 20 int

# in a validation that takes minutes: all workers stop together, the last step is saved and has its line in the metrics
truncate -s 100M "$SCRATCH/val.bin"
stops_in_validation() { # NAME OPTIONS...
  begin "$@" -n 2 --global_batch_size 4 --val_data_path "$SCRATCH/val.bin"
  await "$pid" [ -e "$SCRATCH/$1/metrics.jsonl" ] || bad "$1: no run folder"
  sleep 1.5
  kill -TERM "$pid"
  ends "$pid" 143 20 "$1"
  grep -q "saved .*step-1" "$SCRATCH/$1.err" && [ -d "$SCRATCH/$1/step-1" ] || bad "$1: step 1 is not saved: $(tail -3 "$SCRATCH/$1.err")"
  [ "$(wc -l <"$SCRATCH/$1/metrics.jsonl")" = 1 ] || bad "$1: $(wc -l <"$SCRATCH/$1/metrics.jsonl") lines of metrics, expected 1"
}
stops_in_validation epoch --strategy zero3 --max_steps 1
stops_in_validation every --pp 2 --max_steps 3 --eval_every 1

# before the first step there is nothing to save: at once. Alone (others of its world never come), and in the middle of loading
RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_PORT=$((20000 + $$ % 20000)) "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/alone" --global_batch_size 4 \
  >"$SCRATCH/alone.log" 2>"$SCRATCH/alone.err" &
pid=$!
sleep 0.7
kill -TERM "$pid"
ends "$pid" 143 20 alone
for n in 1 2; do
  begin early$n -n $n --reference_output --model gpt2 --global_batch_size $n --micro_batch_size_per_gpu 1 --max_steps 1
  await "$pid" grep -q "^Startup" "$SCRATCH/early$n.log" || bad "early$n does not start"
  kill -TERM "$pid"
  ends "$pid" 143 20 early$n
  grep -q "before the first step" "$SCRATCH/early$n.err" || bad "early$n: $(tail -3 "$SCRATCH/early$n.err")"
  [ -e "$SCRATCH/early$n/step-0" ] && bad "early$n: something was saved"
done
begin early_int -n 2 --reference_output --model gpt2 --global_batch_size 2 --micro_batch_size_per_gpu 1 --max_steps 1
await "$pid" grep -q "^Startup" "$SCRATCH/early_int.log" || bad "early_int does not start"
kill -INT "$pid"
ends "$pid" 130 20 early_int
grep -q "stopped by SIGINT before the first step" "$SCRATCH/early_int.err" || bad "early_int: $(tail -3 "$SCRATCH/early_int.err")"
# a signal that only one worker gets: the run ends the same way, and the worker is named
for signal in TERM:143 INT:130; do
  code=${signal#*:} signal=${signal%:*}
  begin "one$signal" -n 2 --model gpt2 --global_batch_size 2 --micro_batch_size_per_gpu 1 --max_steps 1
  second() { [ -n "$(pgrep -P "$pid" | sed -n 2p)" ]; }
  await "$pid" second || bad "one$signal does not start"
  kill "-$signal" "$(pgrep -P "$pid" | sed -n 2p)"
  ends "$pid" "$code" 20 "one$signal"
  [ "$(grep "^lockstep: " "$SCRATCH/one$signal.err")" = "lockstep: rank 1 was stopped by SIG$signal before the first step; nothing to save" ] ||
    bad "one$signal: $(tail -3 "$SCRATCH/one$signal.err")"
done
# a worker that is stopped before the workers have met: --comm_timeout holds from the first collective on
begin stopped -n 2 --comm_timeout 2
await "$pid" second || bad "stopped does not start"
kill -STOP "$(pgrep -P "$pid" | sed -n 1p)"
ends "$pid" 4 20 stopped
grep -q "rank 0 (pid [0-9]*) is stopped" "$SCRATCH/stopped.err" || bad "stopped: $(tail -3 "$SCRATCH/stopped.err")"
done_tests
