#!/usr/bin/env bash
# Elastic runs: 8 -> 4 -> 3 -> 2 -> 8 workers in one run, by requests and by a lost worker, give the bits of one worker.
# ls-test: long
. "$(dirname "$0")/../support/lib.sh"
cd "$SCRATCH" || exit 1
tokens t.bin 40000
train=("$LOCKSTEP" train --train_data_path t.bin --model tiny --num_layers 2 --vocab_size 256 --seq_length 32
       --micro_batch_size_per_gpu 1 --global_batch_size 8 --max_steps 120 --save_every 50 --threads 1)
"${train[@]}" --checkpoint_path one >/dev/null 2>&1 || bad "one worker"

# requests come while the run trains, on any machine: two steps take at least so long
slow=$(for s in $(seq 2 2 120); do printf 'kind=slow,step=%s,seconds=0.08,attempt=0;' "$s"; done)
slow=${slow%;}

lines() { [ "$(wc -l <"$1" 2>/dev/null || echo 0)" -ge "$2" ]; }
started() { [ "$(grep -c '"start".*"world_size": '"$2"',' "$1/events.jsonl")" -ge "$3" ]; }
progress() { # RUN N COUNT: the COUNT-th start with N workers, and a step after it
  await $pid started "$1" "$2" "$3" || { bad "$1: no start with $2 workers: $(tail -n 3 "$1.err")"; return; }
  local have
  have=$(wc -l <"$1/metrics.jsonl")
  await $pid lines "$1/metrics.jsonl" $((have + 2)) || bad "$1: no step with $2 workers"
}
alike() {
  wait $pid || bad "$1: exit code $?: $(tail -n 3 "$1.err")"
  same one/epoch-1/model.safetensors "$1/epoch-1/model.safetensors"
  same one/epoch-1/optimizer.safetensors "$1/epoch-1/optimizer.safetensors"
  [ "$(wc -l <"$1/metrics.jsonl")" = 120 ] || bad "$1: $(wc -l <"$1/metrics.jsonl") lines in metrics.jsonl"
}
resize() {
  "$LOCKSTEP" resize "$1" "$2" >resize.log 2>&1 || bad "$1: resize to $2: $(cat resize.log)"
}

# there and back by requests; one worker is lost on the way
there_and_back() { # RUN OPTIONS...
  local run=$1
  shift
  LOCKSTEP_FAULT=$slow "${train[@]}" -n 8 --elastic 2:8 --checkpoint_path "$run" "$@" >"$run.out" 2>"$run.err" &
  pid=$!
  progress "$run" 8 1
  resize "$run" 4
  progress "$run" 4 1
  resize "$run" 4
  grep -q "^$run has 4 workers already$" resize.log || bad "$run: the same number: $(cat resize.log)"
  kill -9 "$(pgrep -P $pid | tail -n 1)" # 3 replicas cannot divide the batch: a pipeline of 3 stages can
  progress "$run" 3 1
  grep -q '"world_size": 3, .*"dp": 1, "pp": 3' "$run/events.jsonl" || bad "$run: 3 workers are no pipeline"
  resize "$run" 2
  progress "$run" 2 1
  resize "$run" 8
  alike "$run"
  grep -q "a worker was lost" "$run/events.jsonl" || bad "$run: no event of the lost worker"
  [ "$(grep -c '"resize"' "$run/events.jsonl")" = 4 ] || bad "$run: $(grep -c '"resize"' "$run/events.jsonl") resize events"
}
there_and_back pipe --strategy zero1 --pp 2
if [ -n "${LS_TEST_ALL:-}" ]; then
  there_and_back ddp --strategy ddp
  there_and_back zero1 --strategy zero1
  there_and_back zero2 --strategy zero2
  there_and_back zero3 --strategy zero3
  # one worker of a pipeline, and back
  LOCKSTEP_FAULT=$slow "${train[@]}" -n 2 --pp 2 --schedule gpipe --elastic 1:2 --checkpoint_path alone >alone.out 2>alone.err &
  pid=$!
  progress alone 2 1
  kill -9 "$(pgrep -P $pid | tail -n 1)"
  progress alone 1 1
  resize alone 2
  alike alone
fi

# requests that are refused leave the run as it is; a spare keeps the number of workers
LOCKSTEP_FAULT=$slow "${train[@]}" -n 4 --elastic 1:8 --hot_spare 1 --checkpoint_path spare >spare.out 2>spare.err &
pid=$!
progress spare 4 1
expect 2 "outside of --elastic 1:8" "$LOCKSTEP" resize spare 9
expect 2 "spare refuses: 7 workers cannot share the global batch evenly: .*; ask for [456] or 8 workers" "$LOCKSTEP" resize spare 7
"$LOCKSTEP" resize spare 9 >other.log 2>&1 & other=$! # two requests at once: each gets its own answer
expect 2 "7 workers cannot share" "$LOCKSTEP" resize spare 7
wait $other
[ $? = 2 ] && grep -q "outside of --elastic 1:8" other.log || bad "two requests: $(cat other.log)"
kill -9 "$(pgrep -P $pid | tail -n 1)"
progress spare 4 2
alike spare
grep -q "a spare replaces the lost worker (0 left)" spare.err || bad "spare: $(grep lockstep spare.err)"
# the worker that an audit blames is left out, and the step is repeated without it
LOCKSTEP_FAULT="kind=flip,rank=1,step=14,tensor=param,unit=1,element=5,bit=20,attempt=1" \
  "${train[@]}" -n 4 --elastic 2:4 --audit 4 --checkpoint_path wrong >wrong.out 2>wrong.err &
pid=$!
alike wrong
grep -q '"rank": 1, .*"cause": "corruption"' wrong/events.jsonl || bad "wrong: $(grep failure wrong/events.jsonl)"
grep -q '"from": 4, "to": 3' wrong/events.jsonl || bad "wrong: the worker was not left out"
expect 3 "no such run folder" "$LOCKSTEP" resize nowhere 2
expect 2 "give a run folder" "$LOCKSTEP" resize spare
expect 2 "outside" "${train[@]}" -n 9 --elastic 1:8 --checkpoint_path no
done_tests
