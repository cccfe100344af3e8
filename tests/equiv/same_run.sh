#!/usr/bin/env bash
# Workers that are started separately must have the same settings, data, weights and kernels: what differs is refused before the first step, on every
# rank, with the key, both values and both ranks. The failure of any single rank is printed by that rank, and no other rank waits for it.
. "$(dirname "$0")/../support/lib.sh"
. "$(dirname "$0")/../support/ranks.sh"
for k in 1 2; do mkdir -p "$SCRATCH/d$k" && tokens "$SCRATCH/d$k/train.bin" 20000 $k && tokens "$SCRATCH/d$k/val.bin" 2000 7; done
mkdir -p "$SCRATCH/e1" && cp "$SCRATCH/d1/train.bin" "$SCRATCH/e1" && tokens "$SCRATCH/e1/val.bin" 2000 8
mkdir -p "$SCRATCH/noval" && cp "$SCRATCH/d1/train.bin" "$SCRATCH/noval"
mkdir -p "$SCRATCH/copy" && cp "$SCRATCH"/d1/*.bin "$SCRATCH/copy"
base=(train --data "$SCRATCH/d1" --model tiny --num_layers 2 --seq_length 32 --micro_batch_size_per_gpu 1 --global_batch_size 4 --threads 1 --max_steps 2
      --max_val_steps 1)

# other NAME LAYOUT OPTIONS...: the same command on every rank, with OPTIONS added on rank 1 alone
other() {
  local name=$1 layout=$2
  shift 2
  SECONDS=0
  # shellcheck disable=SC2016
  MORE="$*" ranks "$name" "$layout" sh -c 'more=; [ "$RANK" != 1 ] || more=$MORE; exec "$@" $more' _ "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/$name.run"
}
# refused NAME CODE TEXT: both ranks have ended with CODE, TEXT was printed once, and nothing was trained
refused() {
  [ "$(cat "$SCRATCH/$1".?.code | tr '\n' ' ')" = "$2 $2 " ] || bad "$1: exit codes $(cat "$SCRATCH/$1".?.code | tr '\n' ' '): $(tail -n 2 "$SCRATCH/$1".?)"
  [ "$(cat "$SCRATCH/$1".? | grep -c "$3")" = 1 ] || bad "$1: '$3' is not printed once: $(tail -n 3 "$SCRATCH/$1".?)"
  [ ! -e "$SCRATCH/$1.run/metrics.jsonl" ] || [ ! -s "$SCRATCH/$1.run/metrics.jsonl" ] || bad "$1: something was trained"
  [ $SECONDS -lt 60 ] || bad "$1: it took $SECONDS s"
}

while IFS='|' read -r name layout options text; do
  # shellcheck disable=SC2086
  other "$name" "$layout" $options
  refused "$name" 2 "$text"
done <<TESTS
lr|1 1|--lr 0.02|the workers differ: lr is [0-9.e-]* on rank 0 (.*) and 0.02 on rank 1 (.*); start every worker
seed|2|--seed 7|seed is 1337 on rank 0 (.*) and 7 on rank 1
clip|2|--clip 0.5|is [0-9.]* on rank 0 (.*) and 0.5 on rank 1
betas|2|--betas 0.8,0.99|beta1 is 0.9 on rank 0 (.*) and 0.8 on rank 1
dropout|1 1|--dropout 0.3|pdrop is [0-9.]* on rank 0 (.*) and 0.3 on rank 1
length|2|--seq_length 16|seq_length is 32 on rank 0 (.*) and 16 on rank 1
schedule|2|--lr_schedule constant|lr_schedule is [a-z]* on rank 0 (.*) and constant on rank 1
data|1 1|--data $SCRATCH/d2|the training data is 20000 tokens .* on rank 0 (.*) and 20000 tokens .* on rank 1 .*copy them to every host
val|2|--data $SCRATCH/e1|the validation data is 2000 tokens
noval|2|--data $SCRATCH/noval|the validation data is 2000 tokens .* and none on rank 1
TESTS

# the same data in another folder, another number of threads and another run folder are fine
other copy 2 --data "$SCRATCH/copy" --threads 2 --checkpoint_path "$SCRATCH/copy.run" || bad "a copy of the data: $(tail -n 2 "$SCRATCH"/copy.?)"

# kernels of another CPU
if LS_SIMD=scalar "$LOCKSTEP" doctor >"$SCRATCH/log" 2>&1; then
  # shellcheck disable=SC2016
  SECONDS=0; ranks simd 2 sh -c '[ "$RANK" != 1 ] || export LS_SIMD=scalar; exec "$@"' _ "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/simd.run"
  refused simd 2 "the kernel family is .* and cpu: scalar vectors.* on rank 1"
fi

# weights to start from, and checkpoints to resume
for k in 1 2; do
  "$LOCKSTEP" "${base[@]}" --seed $k --checkpoint_path "$SCRATCH/w$k" >"$SCRATCH/log" 2>&1 || bad "weights $k: $(tail -2 "$SCRATCH/log")"
done
base+=(--init_from "$SCRATCH/w1/epoch-1" --model "$SCRATCH/w1/epoch-1")
other weights 2 --init_from "$SCRATCH/w2/epoch-1"
refused weights 2 "different weights: their hash is .* on rank 0 (.*) and .* on rank 1"
base+=(--resume)
mkdir -p "$SCRATCH/resume.run" && cp -r "$SCRATCH/w1/epoch-1" "$SCRATCH/resume.run"
other resume 2 --checkpoint_path "$SCRATCH/nothing"
refused resume 2 "the newest checkpoint is epoch-1 on rank 0 (.*) and none on rank 1"

# a failure of rank 1 alone, or of both; with auto the configuration is known after the workers have joined
base=("${base[@]:0:${#base[@]}-5}")
for LS_DEVICE in cpu auto; do
  other long 2 --seq_length 5000
  refused long 2 "lockstep: rank 1 on .*: invalid configuration: .*5000"
  other missing "1 1" --data "$SCRATCH/missing"
  refused missing 3 "lockstep: rank 1 on .*: I/O error: .*missing"
  grep -q "lockstep: rank 1 failed: I/O error; its output has the reason" "$SCRATCH/missing.0" || bad "rank 0 of two hosts: $(tail -n 2 "$SCRATCH/missing.0")"
  SECONDS=0; ranks all 2 "$LOCKSTEP" "${base[@]}" --seq_length 5000 --checkpoint_path "$SCRATCH/all.run"
  refused all 2 "lockstep: rank 0 on .*: invalid configuration: .*5000"
  refused all 2 "5000"
done
base+=(--comm_timeout 2)
other early 2 --device nonsense
grep -q "lockstep: rank 1 on .*: .*--device 'nonsense'" "$SCRATCH/early.1" || bad "early: rank 1: $(cat "$SCRATCH/early.1")"
[ "$(cat "$SCRATCH/early.0.code")" = 4 ] && grep -q "rank 1 of 2 did not connect within 2 s" "$SCRATCH/early.0" || bad "early: rank 0: $(tail -n 2 "$SCRATCH/early.0")"
done_tests
