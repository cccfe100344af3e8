#!/usr/bin/env bash
# Saving: equal runs on any layout, with and without --save_async, write equal checkpoints; a disk that fails costs a checkpoint and, with
# --save_failures warn, not the run; a failed worker restarts from
# the copy in memory; an interval is chosen.
. "$(dirname "$0")/../support/lib.sh"
cd "$SCRATCH" || exit 1
mkdir d && tokens d/train.bin 8000
base=(train --data d --model tiny --num_layers 1 --seq_length 32 --micro_batch_size_per_gpu 1 --global_batch_size 4 --lr 1e-3 --threads 1 --max_steps 16)
run() { local name=$1; shift; timeout 60 "$LOCKSTEP" "${base[@]}" --checkpoint_path "$name" "$@" >"$name.log" 2>&1; }
ok() { local name=$1; run "$@" || bad "$name: $(tail -n 3 "$name.log")"; }
# every file of a checkpoint but timings.json
same_checkpoint() {
  local f
  for f in config.json generation_config.json model.safetensors optimizer.safetensors trainer_state.json checksums.json; do same "$1/$f" "$2/$f"; done
}

ok one --save_every 8
ok again --save_every 8 --save_async
ok ddp --save_every 8 --save_async -n 2
ok zero --save_every 8 --save_async -n 4 --strategy zero3
ok pipe --save_every 8 --save_async -n 2 --pp 2 --strategy zero1
for r in again ddp zero pipe; do
  for c in step-8 epoch-1; do same_checkpoint one/$c $r/$c; done
done
grep -q '"total_time"' one/epoch-1/timings.json || bad "timings.json has no times"
grep -q '"total_time"\|wall_time' one/epoch-1/trainer_state.json && bad "trainer_state.json has times"

# a disk that is slower than the limit of a collective: the other workers wait for it, in a step, after the last one, and with an audit
for how in "" "--save_async" "--audit 4"; do
  LOCKSTEP_FAULT="kind=slow,rank=0,step=8,phase=save,path=step-8,seconds=2.5;kind=slow,rank=1,step=16,phase=save,path=epoch-1,seconds=2.5" \
    ok slow --save_every 8 -n 2 --comm_timeout 1 $how
  for c in step-8 epoch-1; do same_checkpoint one/$c slow/$c; done
done

# saves that are due while the last one is being written are left out, with one line
LOCKSTEP_FAULT="kind=slow,rank=0,step=1,phase=save,path=/.tmp-step-1-,seconds=2" ok dense --save_every 1 --save_async -n 2
[ "$(grep "no checkpoint:" dense.log)" = "step 2  no checkpoint: step-1 is still being written; saves that are due meanwhile are left out; a larger --save_every gives it the time" ] ||
  bad "not one line about checkpoints that were left out: $(grep "no checkpoint:" dense.log)"
same_checkpoint one/epoch-1 dense/epoch-1

# a disk that fails: the run stops (exit 3), or goes on and saves the next one; the last one must be saved
fault() { LOCKSTEP_FAULT=$1 run "${@:2}"; }
for how in "" "--save_async" "-n 2" "-n 2 --save_async"; do
  rm -rf f
  # shellcheck disable=SC2086
  fault kind=enospc,rank=0,step=4,path=model.safetensors f --save_every 4 --save_failures warn $how || bad "$how: a full disk ended the run: $(tail -n 3 f.log)"
  grep -q "warning: the checkpoint of step 4 was not saved: .*No space left" f.log || bad "$how: no warning: $(tail -n 5 f.log)"
  grep -q '"event": "checkpoint_failed", "step": 4, "name": "step-4", "reason": ".*No space left' f/events.jsonl || bad "$how: no event"
  [ ! -e f/step-4 ] || bad "$how: step-4 exists"
  [ "$(sed -n 's/.*"event": "checkpoint", .*"name": "\([^"]*\)".*/\1/p' f/events.jsonl | sort | xargs)" = "$(cd f && shopt -s nullglob && echo epoch-* step-*)" ] || bad "$how: events: $(grep '"checkpoint"' f/events.jsonl; ls f)"
  same_checkpoint one/epoch-1 f/epoch-1
done
fault kind=fsync,rank=0,step=4,path=model.safetensors s --save_every 4; code=$?
[ $code = 3 ] && grep -q "cannot sync s/.tmp-step-4-.*/model.safetensors" s.log || bad "exit code $code, expected 3: $(tail -n 2 s.log)"
grep -q '"event": "checkpoint"' s/events.jsonl && bad "an event of a checkpoint that does not exist: $(cat s/events.jsonl)"
fault kind=enospc,rank=0,step=16,path=optimizer again --save_every 8 --save_failures warn -n 2 || bad "the last save was not tried again: $(tail -n 3 again.log)"
grep -q "warning: the last checkpoint was not saved: .*No space left.*; trying again in 0.5 s" again.log || bad "no warning: $(tail -n 3 again.log)"
grep -q '"event": "checkpoint_failed", "step": 16, "name": "epoch-1", "reason": ".*No space left' again/events.jsonl || bad "no event: $(tail -n 3 again/events.jsonl)"
same_checkpoint one/epoch-1 again/epoch-1
fault kind=enospc,rank=0,step=16,path=optimizer,count=100000 last --save_every 8 --save_failures warn; code=$?
[ $code = 3 ] && [ -e last/step-8 ] && [ ! -e last/epoch-1 ] && [ ! -e last/RUN_COMPLETE.txt ] || bad "the last save failed: exit code $code: $(ls last)"
ok last --save_every 8 --resume
same_checkpoint one/epoch-1 last/epoch-1

# a supervised run continues from the copy in memory, which is gone at its end
LOCKSTEP_FAULT="kind=kill,rank=1,step=11" ok memory --save_memory_every 3 -n 2 --max_restarts 1
grep -q "^resumed from /dev/shm/lockstep-$(id -u)/[0-9a-f-]*/step-9$" memory.log || bad "not resumed from memory: $(grep resumed memory.log)"
grep -q '"event": "restart".*"from_step": 9, "lost_steps": 1,' memory/events.jsonl || bad "lost steps: $(grep restart memory/events.jsonl)"
same_checkpoint one/epoch-1 memory/epoch-1
where=$(sed -n 's!^resumed from \(/dev/shm/.*\)/step-9$!\1!p' memory.log)
[ -n "$where" ] && [ ! -e "$where" ] && [ ! -e memory/memory_copy ] || bad "memory is left: $where"

# a checkpoint on the disk waits for a copy in memory that is still being written: it is not left out
LOCKSTEP_FAULT="kind=slow,rank=0,step=7,phase=save,path=/.tmp-step-7-,seconds=0.5" ok mixed --save_every 8 --save_memory_every 7 --save_async -n 2
grep -q "no checkpoint:" mixed.log && bad "mixed: $(grep "no checkpoint:" mixed.log)"
for c in step-8 epoch-1; do same_checkpoint one/$c mixed/$c; done

# a copy in memory does not wait for a disk that is slow, and is not left out
for n in 1 2; do
  LOCKSTEP_FAULT="kind=slow,rank=0,step=4,phase=save,path=slow$n/.tmp-step-4-,seconds=60;kind=kill,rank=0,step=13" ok "slow$n" --save_every 4 --save_memory_every 4 --save_async -n $n --max_restarts 1
  grep -q '"event": "restart".*"from_step": 12, "lost_steps": 0,' "slow$n/events.jsonl" || bad "-n $n: the copy was left out: $(grep restart "slow$n/events.jsonl")"
  same_checkpoint one/epoch-1 "slow$n/epoch-1"
done

# but no copy is later than the checkpoint of an epoch that is being written: the restarted run writes it again
LOCKSTEP_FAULT="kind=slow,rank=0,step=8,phase=save,path=/.tmp-epoch-1-,seconds=60;kind=kill,rank=0,step=11" ok epochs --global_batch_size 32 --epochs 2 --max_steps 14 --save_memory_every 2 --save_async --max_restarts 1
grep -q '"event": "restart".*"from_step": 6,' epochs/events.jsonl && [ -e epochs/epoch-1 ] || bad "epoch-1 is lost: $(ls epochs) $(grep restart epochs/events.jsonl)"

# an interval that is chosen
ok auto --save_every auto --mtbf 0.001 -n 2
grep -q "^step 11  saving every [0-9]* steps*: a save takes .* s of training, a step .* s, and a host fails every 0.001 hours" auto.log || bad "no interval: $(grep sav auto.log)"
grep -q '"event": "save_every", "step": 11, "steps": [1-9]' auto/events.jsonl || bad "no event with the interval"
grep -q '"save_every": "auto"' auto/options.json || bad "options.json: $(grep save_every auto/options.json)"
same_checkpoint one/epoch-1 auto/epoch-1
# with --save_async it is at least the time of a write
LOCKSTEP_FAULT="kind=slow,rank=0,step=10,phase=save,path=/.tmp-step-10-,seconds=0.1" ok paced --save_every auto --mtbf 0.001 --save_async --max_steps 60 --save_memory_every 5
python3 - paced/events.jsonl <<'EOF' || bad "the interval is shorter than a write: $(grep sav paced.log)"
import json, sys
e = [x for x in map(json.loads, open(sys.argv[1])) if x["event"] == "save_every"]
assert len(e) == 1 and e[0]["write_seconds"] >= 0.1 and e[0]["steps"] * e[0]["step_seconds"] >= e[0]["write_seconds"], e
EOF
expect 2 "needs --save_every auto" "$LOCKSTEP" "${base[@]}" --checkpoint_path x --mtbf 5
expect 2 "not a whole number or auto" "$LOCKSTEP" "${base[@]}" --checkpoint_path x --save_every often
expect 2 "must be at least 0" "$LOCKSTEP" "${base[@]}" --checkpoint_path x --save_every -1
expect 2 "needs --keep_last" "$LOCKSTEP" "${base[@]}" --checkpoint_path x --save_every 2 --keep_hours 5
done_tests
