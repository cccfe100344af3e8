#!/usr/bin/env bash
# Workers with one device each that communicate over NCCL: the real program and the real plugins, on the emulated device and a fake libnccl that is
# as strict as hardware (docs/decisions/0013). Every layout has the bits of one worker (tensor parallelism: within its bound), ends by itself with exit
# code 0, and leaves no process or shared memory. LS_TEST_ALL=1: more sizes, and calls that wait for an idle device.
. "$(dirname "$0")/../support/lib.sh"
command -v pgrep >/dev/null || skip "pgrep is missing (package procps)"
export LS_PLUGIN_DIR=${LS_BUILD:-$LS_SOURCE/build}/emu_nccl XDG_CACHE_HOME=$SCRATCH/cache LS_EMU_DEVICES=4
[ -f "$LS_PLUGIN_DIR/lockstep_cuda.so" ] && [ -f "$LS_PLUGIN_DIR/lockstep_nccl.so" ] || skip "no emulated device (LS_TESTS, LS_EMULATE)"
tokens "$SCRATCH/ids.bin" 3000
base=(train --train_data_path "$SCRATCH/ids.bin" --model tiny --num_layers 2 --num_heads 2 --embedding_size 64 --seq_length 8 --micro_batch_size_per_gpu 1
      --global_batch_size 4 --max_steps 3 --threads 1 --device cuda --precision fp32)
# run NAME [options]: a run into $SCRATCH/NAME that must succeed within a minute and leave nothing
run() {
  local name=$1 code
  shift
  timeout -k 5 "${LS_TEST_LIMIT:-60}" "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/$name" "$@" >"$SCRATCH/$name.log" 2>&1
  code=$?
  [ $code = 0 ] || bad "$* ($name): exit code $code: $(tail -n 2 "$SCRATCH/$name.log")"
  pgrep -f "checkpoint_path $SCRATCH/$name( |$)" >/dev/null && bad "$*: a worker outlived the run"
  return $code
}
bits() { # NAME AS: parameters and moments of two runs
  local f
  for f in model optimizer; do same "$SCRATCH/$2/epoch-1/$f.safetensors" "$SCRATCH/$1/epoch-1/$f.safetensors"; done
}
near() { # NAME AS LIMIT: losses and norms of two runs
  python3 - "$SCRATCH/$1/metrics.jsonl" "$SCRATCH/$2/metrics.jsonl" "$3" <<'PY' || bad "$1 and $2 are not within $3"
import json, sys
a, b = ([json.loads(l) for l in open(p)] for p in sys.argv[1:3])
assert len(a) == len(b) == 3
for x, y in zip(a, b):
    for k in ("loss", "grad_norm"):
        assert abs(x[k] - y[k]) <= float(sys.argv[3]) * abs(x[k]), (x["step"], k, x[k], y[k])
PY
}

counted() { # RUN: its memory includes the buffers of NCCL's sums
  python3 - "$1/training_metrics.json" <<'PY'
import json, sys
m = json.load(open(sys.argv[1]))
ranks = m["lockstep"]["memory"]["per_rank"]
assert all(r["comm"] > 0 and r["device"] == r["planned"] + r["comm"] for r in ranks), ranks
assert m["epochs"][-1]["max_cuda_mem_allocated_bytes_global"] == max(r["device"] for r in ranks), m["epochs"][-1]
PY
}

# each LIMIT: rows "OPTIONS" from stdin, over NCCL; 0: the bits of one worker
each() {
  local words name
  while read -r words; do
    name=$(echo "$words" | tr -cd 'a-z0-9')
    # shellcheck disable=SC2086
    run "$name" $words --comm nccl || continue
    grep -q '"backend": *"nccl"' "$SCRATCH/$name/training_metrics.json" || bad "$words: not over NCCL"
    [ "$(grep -c '"shared": *true' "$SCRATCH/$name/training_metrics.json")" = $((LS_EMU_DEVICES == 1)) ] || bad "$words: gpu.shared"
    case $words in
    *no_deterministic* | "-n 2 --pp 2"*) ;; # no group has sums in a fixed order
    *) counted "$SCRATCH/$name" || bad "$words: NCCL's buffers are not in the files" ;;
    esac
    if [ "$1" = 0 ]; then bits "$name" one; else near "$name" one "$1"; fi
    rm -rf "${SCRATCH:?}/$name"
  done
}

run one --strategy single || done_tests
# the buffers of NCCL's sums belong to the memory of a run: refused before the first step, in one line
LS_EMU_MEMORY=40000000 expect 5 "NCCL's sums in a fixed order: 48.0 MiB" "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/large" \
  -n 2 --strategy ddp --comm nccl
[ "$(grep -c 'not enough memory' "$SCRATCH/err")" = 1 ] || bad "no memory: $(cat "$SCRATCH/err")"
# plan --check compares them, too
run both -n 4 --tp 2 --strategy ddp --comm nccl
expect 0 "rank 0   NCCL's sums *100663296 *100663296  equal" "$LOCKSTEP" plan --check "$SCRATCH/both" --cluster h200
grep -q "NCCL's sums 96.0" "$SCRATCH/both.log" || bad "the line of NCCL's buffers: $(grep NCCL "$SCRATCH/both.log")"
# each worker has the GPU that its line names; ranks with the same one share it
run named -n 2 --reference_output --strategy ddp --device cuda:1 --comm local
[ "$(grep -c 'torch.cuda.current_device=1$' "$SCRATCH/named.log")" = 2 ] || bad "start lines: $(grep Startup "$SCRATCH/named.log")"
grep -q '"shared": *true' "$SCRATCH/named/training_metrics.json" || bad "cuda:1 for two ranks is not shared"
LS_EMU_DEVICES=1 run wrapped -n 2 --reference_output --strategy ddp --comm local
[ "$(grep -c 'torch.cuda.current_device=0$' "$SCRATCH/wrapped.log")" = 2 ] || bad "start lines: $(grep Startup "$SCRATCH/wrapped.log")"
# ddp (with tp), zero1-3, gpipe and 1f1b are tested elsewhere here, under harder conditions; dp and interleaved with LS_TEST_ALL
each 0 <<'E2'
-n 2 --pp 2 --schedule zb
-n 4 --pp 2 --strategy zero1
E2
each 1e-4 <<'E2'
-n 2 --tp 2 --sequence_parallel
-n 2 --strategy ddp --no_deterministic
E2

# four ranks on one GPU: the kernels of their collectives must fit on it at the same time
LS_EMU_DEVICES=1 NCCL_MULTI_RANK_GPU_ENABLE=1 each 0 <<'E2'
-n 4 --strategy zero2
E2

# As many collectives and marks as GPT-2 124M has in a step (160 buckets of a million elements in each of two micro-batches, about thirty marks per
# bucket): the slots of the ring of marks are reused several times
each 0 <<'E2'
-n 2 --strategy zero3 --bucket 450
E2

# NCCL accepts its calls late: the messages of the update are not queued yet when the next step begins, and no other operation may use their memory
# first (an operation on freed memory loses the device)
FAKE_NCCL_SLOW=500 each 0 <<'E2'
-n 2 --strategy zero1 --bucket 450
E2

# a device whose streams share hardware queues, and which waits until it is idle when a graph is created or code is loaded: no waiting kernel may be
# queued before work that its peer needs
LS_EMU_QUEUES=4 LS_EMU_SYNC=cudaGraphInstantiateWithFlags,launch each 0 <<'E2'
-n 2 --pp 2 --schedule gpipe
-n 2 --pp 2 --schedule 1f1b
E2

if [ "${LS_TEST_ALL:-0}" = 1 ]; then
  each 0 <<'E2'
-n 2 --strategy dp
-n 2 --pp 2 --interleave 2
-n 2 --strategy ddp --bucket 450
-n 2 --strategy zero2 --bucket 450 --gather_bucket 1400
E2
  LS_EMU_QUEUES=2 LS_EMU_SYNC=all each 0 <<'E2'
-n 2 --strategy dp
-n 2 --strategy zero1
-n 2 --strategy zero3
-n 2 --pp 2 --schedule naive
-n 2 --pp 2 --schedule zb
-n 4 --pp 4
-n 4 --pp 2 --strategy zero2
E2
  each 0 <<'E2'
-n 2 --strategy ddp
-n 2 --strategy zero1
-n 2 --strategy zero2
-n 2 --strategy zero3
-n 2 --pp 2 --schedule naive
-n 2 --pp 2 --schedule gpipe
-n 2 --pp 2 --schedule 1f1b
-n 4 --strategy dp
-n 4 --strategy ddp
-n 4 --strategy zero1
-n 4 --strategy zero3
-n 4 --pp 4 --schedule gpipe
-n 4 --pp 2 --schedule zb --strategy zero3
-n 4 --pp 2 --schedule gpipe --strategy zero2
E2
  each 1e-4 <<'E2'
-n 2 --tp 2
-n 4 --tp 4
-n 4 --pp 2 --tp 2
-n 4 --tp 2 --strategy zero2
-n 4 --strategy zero2 --no_deterministic
-n 2 --strategy zero3 --no_deterministic
-n 4 --pp 2 --no_deterministic
E2
  for k in $(seq 20); do run "again$k" -n 2 --pp 2 --comm nccl && bits "again$k" one; done
fi
done_tests
