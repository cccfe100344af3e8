#!/usr/bin/env bash
# Workers over the fake NCCL, on the emulated device, when one of them is killed or stopped, when NCCL reports an error in the middle of a step, and
# when its abort does not return: all workers end in less than 30 s, with exit code 4 and a message that names the rank, no process is left, and the
# run resumes from its checkpoint and ends with the bits of one worker. SIGTERM saves and ends; a second one ends at once, whatever hangs.
. "$(dirname "$0")/../support/lib.sh"
command -v pgrep >/dev/null || skip "pgrep is missing (package procps)"
export LS_PLUGIN_DIR=${LS_BUILD:-$LS_SOURCE/build}/emu_nccl XDG_CACHE_HOME=$SCRATCH/cache LS_EMU_DEVICES=4
[ -f "$LS_PLUGIN_DIR/lockstep_cuda.so" ] && [ -f "$LS_PLUGIN_DIR/lockstep_nccl.so" ] || skip "no emulated device (LS_TESTS, LS_EMULATE)"
tokens "$SCRATCH/ids.bin" 3000
base=(train --train_data_path "$SCRATCH/ids.bin" --model tiny --num_layers 2 --num_heads 2 --embedding_size 64 --seq_length 8 --micro_batch_size_per_gpu 1
      --global_batch_size 4 --max_steps 10 --save_every 2 --threads 1 --device cuda --precision fp32 --comm_timeout 4)
timeout -k 5 200 "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/one" >"$SCRATCH/one.log" 2>&1 || bad "one worker: $(tail -n 2 "$SCRATCH/one.log")"

workers() { pgrep -f "checkpoint_path $SCRATCH/$1( |$)"; }
# start NAME [options]: in the background, until its first checkpoint; $pid
start() {
  name=$1
  shift
  "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/$name" "$@" --comm nccl >"$SCRATCH/$name.log" 2>&1 &
  pid=$!
}
first_checkpoint() { await $pid [ -d "$SCRATCH/$name/step-2" ] || bad "$name: no step-2: $(tail -n 2 "$SCRATCH/$name.log")"; }
rank() { pgrep -P $pid | sed -n "$(($1 + 1))p"; } # workers are started in the order of their ranks
# ends CODE WORDS: the run ends by itself in time
ends() {
  local begin=$SECONDS code
  while kill -0 $pid 2>/dev/null && [ $((SECONDS - begin)) -lt 30 ]; do sleep 0.1; done
  if kill -0 $pid 2>/dev/null; then
    bad "$name: still running after 30 s: $(tail -n 2 "$SCRATCH/$name.log")"
    # shellcheck disable=SC2046
    kill -9 $pid $(workers "$name") 2>/dev/null
  fi
  wait $pid 2>/dev/null
  code=$?
  [ $code = "$1" ] || bad "$name: exit code $code, expected $1: $(grep -v '^\[\|^step' "$SCRATCH/$name.log" | tail -n 2)"
  grep -q -- "$2" "$SCRATCH/$name.log" || bad "$name: '$2' is not printed: $(grep -v '^\[\|^step' "$SCRATCH/$name.log" | tail -n 3)"
  [ -z "$(workers "$name")" ] || { bad "$name: a worker outlived the run"; workers "$name" | xargs -r kill -9; }
}
resumes() { # [options]: ends with the bits of one worker
  local f
  timeout -k 5 200 "$LOCKSTEP" "${base[@]}" --comm nccl --checkpoint_path "$SCRATCH/$name" --resume "$@" >"$SCRATCH/$name.log" 2>&1 ||
    bad "$name: resume: exit code $?: $(tail -n 2 "$SCRATCH/$name.log")"
  for f in model optimizer; do same "$SCRATCH/one/epoch-1/$f.safetensors" "$SCRATCH/$name/epoch-1/$f.safetensors"; done
}

start killed -n 2 --strategy ddp && first_checkpoint
kill -9 "$(rank 1)"
ends 4 "rank 1.*was killed by signal 9"
resumes -n 2 --strategy ddp

# streams are full: threads wait for room in them, and the watchdog still ends the run and names the rank
LS_EMU_DEPTH=200 start stopped -n 2 --strategy zero3 --bucket 200 && first_checkpoint
kill -STOP "$(rank 1)"
begin=$SECONDS
ends 4 "no progress for .*rank 1 is stopped"
[ $((SECONDS - begin)) -le 9 ] || bad "stopped: the abort waited for room in a stream ($((SECONDS - begin)) s)"

# a rank is named by its number in the world, not in the group that waits
start grid -n 4 --pp 2 && first_checkpoint
victim=$(rank 3)
kill -STOP "$victim"
ends 4 "no progress for .*rank 3 is stopped (SIGSTOP, pid $victim)"

# as 'stopped', and ncclCommAbort of the rank that detects it does not return
FAKE_NCCL_HANG_ABORT=0 start hung -n 2 --strategy ddp && first_checkpoint
kill -STOP "$(rank 1)"
ends 4 "rank 1"

# an error that NCCL reports in the background, in the middle of a step (the third step: each has some dozens of groups of calls)
FAKE_NCCL_FAIL=1:60 start failed -n 2 --strategy zero1 --comm_timeout 25
await $pid grep -q "^step 2/" "$SCRATCH/failed.log"
ends 4 "rank 1.*remote process exited"
[ -z "${LS_TEST_ALL:-}" ] || resumes -n 2 --strategy zero1
FAKE_NCCL_FAIL=1:20 FAKE_NCCL_HANG_ABORT=1 start pipe -n 2 --pp 2
await $pid grep -q "^step 1/" "$SCRATCH/pipe.log"
ends 4 "rank 1"

# the device of one rank fails after the groups are joined: its peer is in another wait, and the failure is reported without waiting for it
name=start
for r in 1 0; do
  fail=
  [ $r = 0 ] || fail=cudaMemcpyAsync:1
  RANK=$r WORLD_SIZE=2 LOCAL_RANK=$r MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 20000)) LS_EMU_FAIL=$fail timeout -k 5 60 "$LOCKSTEP" "${base[@]}" \
    --checkpoint_path "$SCRATCH/start" --comm nccl --comm_timeout 40 >"$SCRATCH/start$r.log" 2>&1 &
done
begin=$SECONDS
wait -n && bad "start: the failure of a device is ignored"
wait -n && bad "start: a worker does not learn of the failure"
[ $((SECONDS - begin)) -le 8 ] || bad "start: reported after $((SECONDS - begin)) s"
grep -q "rank 1 .*device failed: .*cudaMemcpyAsync" "$SCRATCH/start1.log" || bad "start: $(tail -n 2 "$SCRATCH/start1.log")"

# SIGTERM in a run that hangs (without a time limit): the first requests the end, the second ends it
FAKE_NCCL_FAIL=1:60 FAKE_NCCL_HANG_ABORT=1 start term -n 2 --strategy ddp --comm_timeout 400
await $pid grep -q "^step 1/" "$SCRATCH/term.log"
kill -STOP "$(rank 1)"
sleep 1
kill -TERM $pid
sleep 1
kill -TERM $pid
ends 143 ""
for f in /dev/shm/lockstep-fake-nccl-*; do # lockstep-fake-nccl-PID-...: those of living processes belong to tests that run beside this
  pid=${f#*-nccl-}; pid=${pid%%-*}
  [ ! -e "$f" ] || kill -0 "$pid" 2>/dev/null || bad "shared memory was not removed: $f"
done

# a rank that cannot join: its peers, which wait for it in NCCL, end with it; --comm auto continues without NCCL
FAKE_NCCL_REFUSE=1 start joining -n 2 --strategy ddp --comm_timeout 400
begin=$SECONDS
ends 4 "rank 1.*NCCL"
[ $((SECONDS - begin)) -le 20 ] || bad "joining: the other rank waited ($((SECONDS - begin)) s)"
FAKE_NCCL_REFUSE=0 timeout -k 5 60 "$LOCKSTEP" "${base[@]}" --comm auto -n 2 --strategy ddp --max_steps 1 --checkpoint_path "$SCRATCH/falls" >"$SCRATCH/falls.log" 2>&1 ||
  bad "--comm auto without NCCL: $(tail -n 3 "$SCRATCH/falls.log")"

# what every rank refuses is printed once
LS_PLUGIN_DIR=${LS_BUILD:-$LS_SOURCE/build}/emu start refused -n 4 --strategy ddp
ends 2 "rank 0: not supported here: .*lockstep_nccl.so does not exist"
[ "$(grep -c "^lockstep: " "$SCRATCH/refused.log")" = 1 ] || bad "a refusal: $(grep "^lockstep: " "$SCRATCH/refused.log")"
done_tests
