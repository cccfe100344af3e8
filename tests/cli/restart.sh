#!/usr/bin/env bash
# Runs that restart after failures (--max_restarts): the bits of a run without failures, what is not restarted, and what is refused.
# ls-test: long
. "$(dirname "$0")/../support/lib.sh"
cd "$SCRATCH" || exit 1
tokens t.bin 20000
train=("$LOCKSTEP" train --train_data_path t.bin --model tiny --num_layers 2 --vocab_size 256 --seq_length 32
       --micro_batch_size_per_gpu 1 --global_batch_size 4 --max_steps 24 --threads 1)
"${train[@]}" --checkpoint_path ref >/dev/null 2>&1 || bad "the run without failures"

workers() { pgrep -P "$1"; }
lines() { [ "$(wc -l <"$1" 2>/dev/null || echo 0)" -ge "$2" ]; }
alike() { # RUN: the model and the optimizer of the run without failures, and one line per step
  same ref/epoch-1/model.safetensors "$1/epoch-1/model.safetensors"
  same ref/epoch-1/optimizer.safetensors "$1/epoch-1/optimizer.safetensors"
  [ "$(wc -l <"$1/metrics.jsonl")" = 24 ] || bad "$1: $(wc -l <"$1/metrics.jsonl") lines in metrics.jsonl, expected 24"
  [ ! -e "$1/earlier-1" ] || bad "$1 has earlier-1"
  [ ! -e "$1/run.lock" ] || bad "$1 has run.lock"
}
# pause RUN STEP [OPTIONS]: starts a run in whose first attempt worker $WAITS waits after STEP lines of metrics, for $PAUSE seconds: what follows comes
# before the next step, however fast the machine is
pause() {
  local run=$1 step=$2
  shift 2
  LOCKSTEP_FAULT="kind=slow,rank=${WAITS:-0},step=$((step + 1)),seconds=${PAUSE:-600}" "${train[@]}" --checkpoint_path "$run" "$@" >"$run.out" 2>"$run.err" &
  pid=$!
  await $pid lines "$run/metrics.jsonl" "$step" || bad "$run: no step $step: $(tail -n 3 "$run.err")"
}
# hurt RUN STEP [OPTIONS]: starts a run and kills its last worker after STEP lines of metrics
hurt() {
  pause "$@"
  kill -9 "$(workers $pid | tail -n 1)"
}
ends() { # CODE RUN
  wait $pid
  local got=$?
  [ $got = "$1" ] || bad "$2: exit code $got, expected $1: $(tail -n 3 "$2.err")"
}

# one worker, which has a parent; with --json
hurt one 10 --max_restarts 2 --save_every 8 --json
ends 0 one
alike one
python3 -c 'import json; json.load(open("one.out"))' || bad "--json: stdout is not one JSON object"
grep -q "attempt 1 failed after step .*: killed: rank 0 .* was killed by signal 9" one.err || bad "one: no line of the failure"
grep -q "restarting from one/step-\(8\|16\) in 0.5 s (restart 1 of 2 without a new checkpoint)" one.err || bad "one: no line of the restart"
python3 - <<'PY' || bad "one: events.jsonl"
import json
e = {o["event"]: o for o in map(json.loads, open("one/events.jsonl"))}
f, r = e["failure"], e["restart"]
assert f["attempt"] == 1 and f["rank"] == 0 and f["cause"] == "killed" and f["step"] >= 10 and f["host"], f
assert r["attempt"] == 2 and r["workers"] == 1 and r["from_step"] in (8, 16) and r["lost_steps"] == f["step"] - r["from_step"], r # where the kill came
assert 0.5 <= r["lost_seconds"] < 10 and r["repeated_seconds"] > 0 and r["backoff_seconds"] == 0.5, r
PY

# several workers; nothing is saved yet, so the run starts again at step 0 and keeps its folder
WAITS=1 hurt two 5 -n 2 --strategy zero1 --max_restarts 1
ends 0 two
alike two
grep -q "restarting from step 0" two.err || bad "two: not from step 0: $(grep lockstep two.err)"

# a damaged checkpoint is not used, and not lost
pause torn 18 --max_restarts 1 --save_every 8
await $pid test -e torn/step-16/checksums.json
kill -STOP $pid
kill -9 "$(workers $pid)"
printf X | dd of=torn/step-16/model.safetensors bs=1 seek=5000 conv=notrunc 2>/dev/null
kill -CONT $pid
ends 0 torn
alike torn
grep -q "damaged checkpoint is not used: .*step-16" torn.err || bad "torn: the damaged checkpoint is not named"
[ -d torn/damaged-step-16 ] || bad "torn: the damaged checkpoint is gone"
grep -q "restarting from torn/step-8" torn.err || bad "torn: not from step-8"

# the same of a checkpoint whose copy in memory is whole: the copy is used
pause both 18 --max_restarts 1 --save_every 8 --save_memory_every 8
await $pid test -e both/step-16/checksums.json
kill -STOP $pid
kill -9 "$(workers $pid)"
truncate -s 100 both/step-16/trainer_state.json
kill -CONT $pid
ends 0 both
alike both
grep -q "damaged checkpoint is not used: both/step-16/trainer_state.json" both.err && [ -d both/damaged-step-16 ] || bad "both: the damaged checkpoint is not named: $(ls both)"
grep -q "resumed from /dev/shm/.*/step-16" both.err || bad "both: not from memory: $(grep resumed both.err)"

# a copy of a live run's folder has no copies in memory, and leaves those of the live run alone
WAITS=1 pause live 14 -n 2 --max_restarts 1 --save_every 8 --save_memory_every 4
cp -a live forked
rm -f forked/run.lock forked/supervise.lock
expect 0 "the copy in memory was not found: .*the run folder was copied or moved" "$LOCKSTEP" train --resume forked
grep -q "resumed from forked/step-8" err || bad "forked: $(grep resumed err)"
alike forked
kill -9 "$(workers $pid | tail -n 1)"
ends 0 live
alike live
grep -q "resumed from /dev/shm/.*/step-12" live.err || bad "live: not from its own memory: $(grep resumed live.err)"
# the model of a run whose only checkpoint is in memory
keep held
LOCKSTEP_FAULT="kind=kill,rank=0,step=12" "$LOCKSTEP" train --train_data_path t.bin --init_from one --seq_length 32 --micro_batch_size_per_gpu 1 --global_batch_size 4 --max_steps 24 --threads 1 \
  --checkpoint_path held --save_memory_every 4 >/dev/null 2>&1
mv one away
expect 0 "resumed from /dev/shm/.*/step-8" "$LOCKSTEP" train --resume held
mv away one

# a noted copy that no host has: every new checkpoint allows --max_restarts again
LOCKSTEP_FAULT="kind=kill,rank=0,step=6" "${train[@]}" --checkpoint_path noted --save_every 2 --save_memory_every 4 >/dev/null 2>&1
echo " 23" >>noted/memory_copy
fault="kind=kill,rank=0,step"
LOCKSTEP_FAULT="$fault=8;$fault=12,attempt=2;$fault=16,attempt=3;$fault=20,attempt=4" expect 0 "the copy of step 23 in memory was not found" \
  "$LOCKSTEP" train --resume noted --save_memory_every 0 --max_restarts 2
alike noted
[ "$(grep -c "restarting from noted/step-.*(restart 1 of 2" err)" = 4 ] || bad "noted: $(grep restarting err)"

# --resume: a checkpoint that cannot be read does not matter beside a newer one, in memory (kept) or on the disk (old); the newest one does
keep kept
LOCKSTEP_FAULT="kind=kill,rank=0,step=20" "${train[@]}" --checkpoint_path kept --save_every 8 --save_memory_every 1 >/dev/null 2>&1
truncate -s 100 kept/step-16/trainer_state.json
expect 0 "not the newest: kept/step-16/trainer_state.json" "$LOCKSTEP" train --resume kept
grep -q "resumed from /dev/shm/.*/step-1[89]" err || bad "kept: not from memory: $(grep resumed err)"
alike kept
LOCKSTEP_FAULT="kind=kill,rank=0,step=20" "${train[@]}" --checkpoint_path old --save_every 8 >/dev/null 2>&1
truncate -s 100 old/step-8/trainer_state.json
cp -r old older
expect 0 "not the newest: old/step-8/trainer_state.json" "$LOCKSTEP" train --resume old
grep -q "resumed from old/step-16" err || bad "old: $(grep resumed err)"
alike old
expect 0 "resumed from older/step-16" "$LOCKSTEP" train --resume older --max_restarts 1
alike older
rm -rf old/epoch-1
truncate -s 100 old/step-16/trainer_state.json
expect 3 "old/step-16/trainer_state.json: .*restore old/step-16 from a copy" "$LOCKSTEP" train --resume old

# nor by the first attempt of a resumed run; without restarts a person decides
cp -a torn found
rm -r found/damaged-step-16 found/epoch-1 found/RUN_COMPLETE.txt
printf X | dd of=found/step-16/model.safetensors bs=1 seek=5000 conv=notrunc 2>/dev/null
expect 3 "remove found/step-16 to resume from it" "$LOCKSTEP" train --resume found
expect 0 "damaged checkpoint is not used: .*step-16" "$LOCKSTEP" train --resume found --max_restarts 2
alike found
[ -d found/damaged-step-16 ] || bad "found: the damaged checkpoint is gone"
grep -q "resumed from found/step-8" err || bad "found: not from step-8: $(cat err)"
# every checkpoint damaged: a resumed run does not begin again by itself, and nothing is renamed
cp -a found lost
rm -r lost/damaged-step-16 lost/epoch-1 lost/RUN_COMPLETE.txt
for k in lost/step-*; do printf X | dd of=$k/model.safetensors bs=1 seek=5000 conv=notrunc 2>/dev/null; done
echo 0123456789abcdef 16 >lost/memory_copy # of copies that are gone
expect 3 "every checkpoint is damaged; restore one from a copy, or train in another folder$" "$LOCKSTEP" train --resume lost --max_restarts 2
compgen -G "lost/step-*" >/dev/null || bad "lost: the checkpoints are gone: $(ls lost)"

# weights of --init_from: the model is that of the checkpoints, also after the one that it was read from is renamed, removed, or the run is moved
from=("$LOCKSTEP" train --train_data_path t.bin --init_from ref --seq_length 32 --micro_batch_size_per_gpu 1 --global_batch_size 4 --max_steps 24 --threads 1)
"${from[@]}" --checkpoint_path tuned >/dev/null 2>&1 || bad "--init_from"
LOCKSTEP_FAULT="kind=kill,rank=0,step=20" "${from[@]}" --checkpoint_path cut --save_every 8 >/dev/null 2>&1
cp -a cut pruned
printf X | dd of=cut/step-16/model.safetensors bs=1 seek=5000 conv=notrunc 2>/dev/null
expect 0 "resumed from cut/step-8" "$LOCKSTEP" train --resume cut --max_restarts 2
same tuned/epoch-1/model.safetensors cut/epoch-1/model.safetensors
LOCKSTEP_FAULT="kind=kill,rank=0,step=23" expect 0 "restarting from pruned/step-2[02]" "$LOCKSTEP" train --resume pruned --max_restarts 2 --save_every 2 --keep_last 1
same tuned/epoch-1/model.safetensors pruned/epoch-1/model.safetensors
LOCKSTEP_FAULT="kind=kill,rank=0,step=20" "${from[@]}" --checkpoint_path went --save_every 8 >/dev/null 2>&1
LOCKSTEP_FAULT="kind=kill,rank=0,step=22" "$LOCKSTEP" train --resume went >/dev/null 2>&1
mv went gone
expect 0 "resumed from gone/step-16" "$LOCKSTEP" train --resume gone
same tuned/epoch-1/model.safetensors gone/epoch-1/model.safetensors

# the same of an options.json with the path of one
LOCKSTEP_FAULT="kind=kill,rank=0,step=20" "${from[@]}" --checkpoint_path past --save_every 8 >/dev/null 2>&1
sed -i "s#\"init_from\": .*#\"model\": \"$PWD/past/step-16\",#" past/options.json
printf X | dd of=past/step-16/model.safetensors bs=1 seek=5000 conv=notrunc 2>/dev/null
expect 0 "resumed from past/step-8" "$LOCKSTEP" train --resume past --max_restarts 2
same tuned/epoch-1/model.safetensors past/epoch-1/model.safetensors

# the command that was stopped, with --resume: its --model is that of the run by whatever path, also where the run has its own; another one is refused
mkdir files && cp ref/epoch-1/config.json files
sed 's/"n_layer": 2/"n_layer": 3/' files/config.json >files/deeper.json
sed 's/"resid_pdrop": 0.1/"resid_pdrop": 0.2/' files/config.json >files/dropout.json
named() { # MODEL WORDS: a run with this model, stopped twice; WORDS name it where another one is refused
  local again=("$LOCKSTEP" train --train_data_path t.bin --model "$1" --seq_length 32 --micro_batch_size_per_gpu 1 --global_batch_size 4 --max_steps 24 --threads 1 --save_every 4 --checkpoint_path named) other
  rm -rf named
  LOCKSTEP_FAULT="kind=term,rank=0,step=10" expect 143 "" "${again[@]}"
  for other in gpt2 files/deeper.json files/dropout.json; do
    expect 2 "^lockstep: invalid configuration: --model $other: the run in named has another model ($2)" "$LOCKSTEP" train --resume named --model "$other"
  done
  LOCKSTEP_FAULT="kind=term,rank=0,step=15" expect 143 "resumed from named/step-" "${again[@]}" --resume named
  expect 0 "resumed from named/step-1" "${again[@]}" --resume named
  alike named
  expect 0 "nothing is left to do" "$LOCKSTEP" train --resume named --model "$PWD/files"
}
named files/config.json "$PWD/files/config.json"
named ref/epoch-1 "that of its checkpoints"
named ref "that of its checkpoints"

# a checkpoint that cannot be read for a moment is not damaged: it is read again, and used
LOCKSTEP_FAULT="kind=kill,rank=0,step=18;kind=read,rank=-1,path=step-16/model.safetensors" expect 0 "cannot read eio/step-16/model.safetensors .*Input/output error; the checkpoints are read again in 0.5 s" \
  "${train[@]}" --checkpoint_path eio --max_restarts 1 --save_every 8
alike eio
grep -q "restarting from eio/step-16" err || bad "eio: $(grep restarting err)"
compgen -G "eio/damaged-*" >/dev/null && bad "eio: a whole checkpoint was renamed"

# the limit: killed in every attempt, without a checkpoint
fault="kind=kill,rank=0,step=3,attempt"
LOCKSTEP_FAULT="$fault=1;$fault=2" expect 4 "not restarted: --max_restarts 1 allows no more restarts" "${train[@]}" --checkpoint_path often --max_restarts 1
[ "$(grep -c "restarting from step 0" err)" = 1 ] || bad "often: $(grep restarting err)"

# a failure of the program that comes again after the same step, whatever the limit is
fault="kind=abort,rank=0,step=3,attempt"
LOCKSTEP_FAULT="$fault=1;$fault=2;$fault=3" expect 4 "not restarted: the same failure 3 times in a row after step 2" \
  "${train[@]}" --checkpoint_path again --max_restarts 10
# a disk that stays full, wherever that is found: one line has the command that continues the run
fault="kind=enospc,rank=0,path=metrics.jsonl"
LOCKSTEP_FAULT="$fault,step=13,attempt=1;$fault,step=12,attempt=2;$fault,step=11,attempt=3" \
  expect 3 "not restarted: the disk failed 3 times in a row without a new checkpoint (.*metrics.jsonl.*No space left.*); make room before the run is continued" \
  "${train[@]}" --checkpoint_path full --max_restarts 2 --save_every 8
[ "$(grep -- --resume err)" = "lockstep: to continue: lockstep train --resume full --max_restarts 2" ] || bad "full: $(grep -- --resume err)"
[ -e full/step-8 ] || bad "full: $(ls full)"
# the same where --max_restarts is the smaller limit
LOCKSTEP_FAULT="$fault,step=13,attempt=1;$fault,step=12,attempt=2" \
  expect 3 "not restarted: --max_restarts 1 allows no more restarts without a new checkpoint; make room before the run is continued" \
  "${train[@]}" --checkpoint_path once --max_restarts 1 --save_every 8
[ "$(grep -- --resume err)" = "lockstep: to continue: lockstep train --resume once --max_restarts 1" ] || bad "once: $(grep -- --resume err)"
# once training has begun, a disk that fails at the start of an attempt costs that attempt; the event names the worker whose file it is
LOCKSTEP_FAULT="kind=kill,rank=1,step=10;kind=read,rank=0,attempt=2;$fault,attempt=3,path=options.json" expect 0 "attempt 3 failed before its first step: disk: " \
  "${train[@]}" --checkpoint_path starts -n 2 --max_restarts 4 --save_every 8
alike starts
LOCKSTEP_FAULT="kind=enospc,rank=0,step=8" expect 0 "No space left" "${train[@]}" --checkpoint_path whose -n 4 --strategy zero1 --save_failures stop --max_restarts 2 --save_every 8
grep -q '"failure", .*"rank": 0, .*"cause": "disk"' whose/events.jsonl || bad "whose: $(grep failure whose/events.jsonl)"
# also before the first step, when the others only agree on its failure
fault="kind=enospc,rank=0,path=options.json,attempt"
LOCKSTEP_FAULT="kind=kill,rank=1,step=5;$fault=2;$fault=3;kind=read,rank=2,attempt=4" expect 0 "attempt 2 failed before its first step: disk: rank 0 failed: .*options.json.*No space left" \
  "${train[@]}" --checkpoint_path agreed -n 4 --max_restarts 6 --save_every 2
alike agreed
grep -q "attempt 4 failed before its first step: disk: rank 0 failed: worker 2: cannot read .*step-[24].*Input/output error" err || bad "agreed: $(grep "attempt 4" err)"
[ "$(grep -c "^lockstep: rank .*: I/O error: " err)" = 3 ] || bad "agreed: a failure is not printed once: $(grep "I/O error" err)"
[ "$(grep -c '"failure", "attempt": [23], "rank": 0, .*"cause": "disk", "detail": "rank 0 failed: .*No space left' agreed/events.jsonl)" = 2 ] || bad "agreed: $(grep failure agreed/events.jsonl)"
grep -q '"failure", "attempt": 4, "rank": 2, .*"cause": "disk"' agreed/events.jsonl || bad "agreed: $(grep failure agreed/events.jsonl)"
# the epochs of an elastic run do not depend on the number of workers
expect 2 "--max_train_steps counts micro-batches of one worker" "${train[@]}" --checkpoint_path epochs -n 2 --elastic 1:2 --max_train_steps 8
# an elastic run that has as few workers as it may have starts again with them
LOCKSTEP_FAULT="kind=kill,rank=1,step=4;kind=kill,rank=0,step=6,attempt=2" expect 0 "continuing with 1 worker instead of 2" \
  "${train[@]}" --checkpoint_path fewest -n 2 --elastic 1:2 --save_every 1
alike fewest
# so does one that no smaller layout could continue
"${train[@]}" --checkpoint_path tensor -n 2 --tp 2 >/dev/null 2>&1 || bad "tensor: the run without failures"
LOCKSTEP_FAULT="kind=kill,rank=1,step=5" expect 0 "the run starts again with 2 workers: no layout of 1 worker gives the same bits" \
  "${train[@]}" --checkpoint_path whole -n 2 --tp 2 --elastic 1:2 --save_every 3
grep -q "restarting from whole/step-3" err || bad "whole: $(grep lockstep: err)"
same tensor/epoch-1/model.safetensors whole/epoch-1/model.safetensors
grep '"resize"' whole/events.jsonl && bad "whole: a change of workers is recorded"
# a worker that exits without a word
LOCKSTEP_FAULT="kind=exit,rank=1,step=3,attempt=1" expect 0 "attempt 1 failed after step 2: exited: rank 1 .* exited" \
  "${train[@]}" -n 2 --checkpoint_path exits --max_restarts 1
alike exits
grep -q '"failure", .*"rank": 1, .*"cause": "exited"' exits/events.jsonl || bad "exits: $(grep failure exits/events.jsonl)"
# also with the code of success: others would wait for it for ever
LOCKSTEP_FAULT="kind=exit,rank=1,step=3,code=0" expect 0 "attempt 1 failed after step 2: exited: rank 1 .* exited with code 0" \
  "${train[@]}" -n 2 --checkpoint_path exits0 --max_restarts 1
alike exits0
LOCKSTEP_FAULT="kind=exit,rank=0,step=3,code=0" expect 4 "rank 0 .* exited with code 0 before its work was done" \
  "${train[@]}" -n 2 --checkpoint_path exits1

if [ -n "${LS_TEST_ALL:-}" ]; then
  # a checkpoint that stays unreadable is passed over after half a minute: an older one is whole
  LOCKSTEP_FAULT="kind=kill,rank=0,step=18;kind=read,rank=-1,count=1000,path=step-16" expect 0 "restarting from unread/step-8" \
    "${train[@]}" --checkpoint_path unread --max_restarts 1 --save_every 8
  alike unread
  # a single worker that is stopped is killed after 30 s; one of several by the limit of a collective
  LOCKSTEP_FAULT="kind=stop,rank=0,step=3,attempt=1" expect 0 "attempt 1 failed after step 2: stopped: " \
    "${train[@]}" --checkpoint_path stopped --max_restarts 1
  alike stopped
  LOCKSTEP_FAULT="kind=stop,rank=1,step=3,attempt=1" expect 0 "attempt 1 failed after step 2: stopped: " \
    "${train[@]}" -n 2 --comm_timeout 3 --checkpoint_path stopped2 --max_restarts 1
  alike stopped2
  # all of them: nobody waits for a collective
  LOCKSTEP_FAULT="kind=stop,rank=0,step=3,attempt=1;kind=stop,rank=1,step=3,attempt=1" expect 0 "attempt 1 failed after step 2: stopped: " \
    "${train[@]}" -n 2 --comm_timeout 60 --checkpoint_path stopped_all --max_restarts 1
  alike stopped_all
  # GPUs: a spare replaces the GPU of a lost worker
  emu=${LS_BUILD:-$LS_SOURCE/build}/emu
  if [ -f "$emu/lockstep_cuda.so" ]; then
    export LS_PLUGIN_DIR=$emu XDG_CACHE_HOME=$SCRATCH/cache LS_GEMM_TUNE=0
    gpu=("${train[@]}" --num_heads 2 --embedding_size 32 --max_steps 6 --device cuda -n 2 --hot_spare 1 --reference_output)
    LS_EMU_DEVICES=2 expect 2 "need 3 GPUs; 2 are visible" "${gpu[@]}" --checkpoint_path no
    LS_EMU_DEVICES=3 LOCKSTEP_FAULT="kind=kill,rank=0,step=3,attempt=1" expect 0 "GPU 0 of rank 0 is used last" "${gpu[@]}" --checkpoint_path gpu
    grep -q "world_size=2 CUDA_VISIBLE_DEVICES=1,2,0" out || bad "gpu: $(grep Startup out)"
    unset LS_PLUGIN_DIR
  fi
fi

# options.json is damaged: the message tells what to do, and that works
cp -a cut unread_options
rm -r unread_options/epoch-1 unread_options/RUN_COMPLETE.txt
echo '{' >unread_options/options.json
expect 3 "damaged: give train the options of the run and its --precision, with --checkpoint_path unread_options --resume" \
  "$LOCKSTEP" train --resume unread_options --max_restarts 1
sed 's/"seq_length": 32/"seq_length": "abc"/' cut/options.json >unread_options/options.json
expect 3 "unread_options/options.json: .*abc.*; the file is damaged" "$LOCKSTEP" train --resume unread_options
expect 0 "resumed from unread_options/step-16" "${from[@]}" --precision fp32 --checkpoint_path unread_options --resume --max_restarts 1
same tuned/epoch-1/model.safetensors unread_options/epoch-1/model.safetensors

# the pipeline of a DeepSpeed JSON is left out where the number of workers excludes it, with and without --pp
echo '{"train_batch_size": 4, "train_micro_batch_size_per_gpu": 1, "pipeline": {"stages": 3}}' >stages.json
"${train[@]}" --deepspeed_config stages.json --pp 1 --checkpoint_path unstaged >/dev/null 2>&1 || bad "unstaged"
for pp in "" "--pp 3"; do
  rm -rf staged
  # shellcheck disable=SC2086
  LOCKSTEP_FAULT="kind=kill,rank=0,step=20" "${train[@]}" -n 3 $pp --deepspeed_config stages.json --checkpoint_path staged --save_every 8 >/dev/null 2>&1
  expect 0 "pipeline.stages of the earlier run needs a multiple of 3 workers: left out" "$LOCKSTEP" train --resume staged -n 2
  same unstaged/epoch-1/model.safetensors staged/epoch-1/model.safetensors
  same unstaged/epoch-1/optimizer.safetensors staged/epoch-1/optimizer.safetensors
done

# what is not restarted: signals of the user, bad usage, a loss that is not a number
PAUSE=5 pause term 4 --max_restarts 5
kill -TERM $pid
ends 143 term
grep -q "stopped by SIGTERM: saved term/step-[0-9]*$" term.err || bad "term: nothing saved, or a worker gives advice: $(tail -n 2 term.err)"
grep -q "^lockstep: to continue: lockstep train --resume term --max_restarts 5$" term.err || bad "term: no advice: $(tail -n 2 term.err)"
expect 0 "the run was started with --max_restarts 5; --resume does not take this over" "$LOCKSTEP" train --resume term
"$LOCKSTEP" train --resume term 2>&1 | grep "started with" && bad "term: the line comes again"
grep -q restarting term.err && bad "term: restarted after SIGTERM"
# a signal during the wait before a restart: one line with the options of the user
fault="kind=kill,rank=0,step=3,attempt"
LOCKSTEP_FAULT="$fault=1;$fault=2" "${train[@]}" --checkpoint_path wait --max_restarts 5 >wait.out 2>wait.err &
pid=$!
await $pid grep -q "restart 2 of 5" wait.err
kill -TERM $pid
ends 143 wait
[ "$(grep -- --resume wait.err)" = "lockstep: to continue: lockstep train --resume wait --max_restarts 5" ] || bad "wait: $(tail -n 3 wait.err)"
# the command that is printed for an elastic run works, also after the number of workers and with it the pipeline has changed
LOCKSTEP_FAULT="kind=kill,rank=3,step=3;kind=slow,rank=0,step=6,seconds=5,attempt=2" "${train[@]}" --checkpoint_path shrunk -n 4 --pp 2 --elastic 2:4 --save_every 1 >shrunk.out 2>shrunk.err &
pid=$!
await $pid lines shrunk/metrics.jsonl 5
kill -TERM $pid
ends 143 shrunk
grep -q "continuing with 3 workers instead of 4" shrunk.err || bad "shrunk: $(tail -n 3 shrunk.err)"
cp -a shrunk grown
cp -a shrunk plain
cp -a shrunk alone
grep -q "^lockstep: to continue: lockstep train --resume shrunk --elastic 2:4$" shrunk.err || bad "shrunk: $(tail -n 2 shrunk.err)"
expect 0 "resumed from shrunk/step-" "$LOCKSTEP" train --resume shrunk --elastic 2:4
alike shrunk
expect 2 "needs a multiple of 3 workers" "$LOCKSTEP" train --resume grown -n 4 --pp 3 --elastic 2:4
expect 2 "n 3 is outside" "$LOCKSTEP" train --resume grown --elastic 1:2
expect 0 "resumed from grown/step-" "$LOCKSTEP" train --resume grown -n 4 --elastic 2:4
alike grown
# without --elastic the pipeline that was chosen is left out where it does not fit; again in the next attempt, and until the number of workers fits
LOCKSTEP_FAULT="kind=kill,rank=1,step=16" expect 0 "^--pp of the earlier run needs a multiple of 3 workers: left out$" "$LOCKSTEP" train --resume plain -n 4 --strategy zero2 --max_restarts 1
alike plain
LOCKSTEP_FAULT="kind=kill,rank=0,step=12" "$LOCKSTEP" train --resume alone -n 1 >/dev/null 2>&1
expect 0 "^--pp of the earlier run needs a multiple of 3 workers: left out$" "$LOCKSTEP" train --resume alone --max_restarts 1
alike alone
grep -q '"n": 4' grown/options.json || bad "grown: $(cat grown/options.json)"

# a run that is resumed while another one ends in its folder continues from what that one leaves
# late N WORDS FILES: a run without its last files, which come back while `--resume -n N` waits for the lock
late() {
  local n=$1 words=$2
  shift 2
  rm -rf late aside && cp -a eio late && mkdir aside
  mv late/step-16 late/epoch-1 late/RUN_COMPLETE.txt aside
  exec 9>late/run.lock && flock -n 9
  "$LOCKSTEP" train --resume late -n "$n" >late.out 2>&1 9>&- &
  pid=$!
  sleep 1.5
  (cd aside && mv "$@" ../late)
  exec 9>&-
  ends 0 late
  grep -q "$words" late.out || bad "late $n: $(cat late.out)"
}
late 1 "resumed from late/step-16" step-16
late 2 "nothing is left to do" step-16 epoch-1 RUN_COMPLETE.txt
# a signal to one worker stops the run, too
LOCKSTEP_FAULT="kind=term,rank=2,step=5" expect 143 "saved termed/step-" "${train[@]}" --checkpoint_path termed -n 4 --max_restarts 2
tail -n 1 termed/events.jsonl | grep -q '"end", .*"state": "stopped"' || bad "termed: $(tail -n 1 termed/events.jsonl)"
# a stop that cannot be saved has failed; what is left is named
unsaved() { # RUN OPTIONS
  local run=$1
  shift
  LOCKSTEP_FAULT="kind=enospc,rank=0,step=10,path=.tmp-,count=100000" "${train[@]}" --checkpoint_path "$run" -n 2 --save_every 8 --save_failures warn \
    --epochs 500 --max_steps 100000 "$@" >"$run.out" 2>"$run.err" &
  pid=$!
  await $pid lines "$run/metrics.jsonl" 12 || bad "$run: no step 12"
  kill -TERM $pid
  ends 3 "$run"
  grep -q "could not be saved before the stop; the newest checkpoint is $run/step-8" "$run.err" || bad "$run: $(tail -n 3 "$run.err")"
  [ "$(grep -c "to continue: lockstep train --resume $run" "$run.err")" = 1 ] || bad "$run: not one command: $(tail -n 3 "$run.err")"
  tail -n 1 "$run/events.jsonl" | grep -q '"end", .*"state": "failed", "reason": ".*No space left' || bad "$run: $(tail -n 1 "$run/events.jsonl")"
}
unsaved lone
unsaved watched --max_restarts 5
grep -q '"failure", .*"rank": 0, .*"cause": "disk"' watched/events.jsonl || bad "watched: no cause: $(tail -n 2 watched/events.jsonl)"
grep -q restarting watched.err && bad "watched: restarted after SIGTERM"
expect 2 "hot_spare 1 does nothing with --max_restarts 0" "${train[@]}" -n 2 --hot_spare 1 --max_restarts 0 --checkpoint_path no
expect 2 "must be MIN:MAX" "${train[@]}" -n 2 --elastic 4 --checkpoint_path no
expect 2 "lockstep launch --max_restarts 3 -- torchrun" env RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 \
  MASTER_ADDR=127.0.0.1 MASTER_PORT=29999 "${train[@]}" --max_restarts 2 --checkpoint_path no
expect 3 "missing.bin" "${train[@]}" --train_data_path missing.bin --max_restarts 2 --checkpoint_path no
[ ! -e no ] || bad "a refused run has made its folder"
mkdir -p odd/events.jsonl
expect 3 "odd/events.jsonl is not a regular file, and restarts write to it; remove it$" "${train[@]}" --max_restarts 2 --checkpoint_path odd
done_tests
