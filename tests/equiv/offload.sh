#!/usr/bin/env bash
# --offload_optimizer cpu on the emulated device: weights and moments have the bits of a run that keeps them on the device, with every precision and strategy, in
# pipelines and tensor parallelism, after a resume in either direction; the device holds that much less; and what cannot be offloaded is refused.
. "$(dirname "$0")/../support/lib.sh"
export LS_PLUGIN_DIR=${LS_BUILD:-$LS_SOURCE/build}/emu LS_GEMM_TUNE=0 XDG_CACHE_HOME=$SCRATCH/cache
[ -f "$LS_PLUGIN_DIR/lockstep_cuda.so" ] || skip "no emulated device: built with the tests (LS_TESTS)"
d=$SCRATCH/d
mkdir -p "$d" && tokens "$d/train.bin" 3000
# run NAME [options]: some steps into $SCRATCH/NAME
run() {
  local name=$1
  shift
  timeout 120 "$LOCKSTEP" train --data "$d" --model tiny --vocab_size 301 --num_layers 2 --num_heads 2 --embedding_size 64 --seq_length 16 --micro_batch_size_per_gpu 1 --global_batch_size 2 --max_steps 2 \
    --device cuda --verbose --checkpoint_path "$SCRATCH/$name" "$@" >"$SCRATCH/$name.out" 2>&1 ||
    { bad "$name: exit code $?: $(tail -n 3 "$SCRATCH/$name.out")"; return 1; }
}
bits() { # A B: the same parameters and moments
  local f n=0
  for f in $(cd "$SCRATCH/$1/epoch-1" && find . -name '*.safetensors'); do same "$SCRATCH/$1/epoch-1/$f" "$SCRATCH/$2/epoch-1/$f" && n=$((n + 1)); done
  [ $n -ge 2 ] || bad "$1 and $2: $n files compared"
}
both() { # NAME [options]: with and without
  local name=$1
  shift
  run "$name" "$@" && run "$name-off" --offload_optimizer cpu "$@" && bits "$name" "$name-off"
}
device_mib() { awk '/^  total/ { print $2; exit }' "$SCRATCH/$1.out"; }
part_mib() { awk -v p="$2" '$1 == p { print $2; exit }' "$SCRATCH/$1.out"; }

LS_LOG=parallel=debug both bf16 --strategy zero1 --precision bf16
both fp32 --strategy zero1 --precision fp32 --decay matrices
both fp16 --strategy zero2 --precision fp16 --clip 0.01
[ -z "${LS_TEST_ALL:-}" ] || both wide --strategy zero1 --precision bf16 --decay matrices --embedding_size 512 --num_heads 8 --num_layers 1 --seq_length 8 --global_batch_size 1 # units of several slices
[ -z "${LS_TEST_ALL:-}" ] || both random --strategy zero3 --precision bf16 --stochastic_rounding
[ -z "${LS_TEST_ALL:-}" ] || { LS_EMU_PROTECT=1 run protected --strategy zero1 --precision bf16 --offload_optimizer cpu && bits bf16 protected; }
run single --strategy single --precision bf16 --offload_optimizer cpu && bits bf16 single
LS_SIMD=generic run generic --strategy zero1 --precision bf16 --offload_optimizer cpu && bits bf16 generic # a CPU that rounds otherwise leaves all units to the GPU
for s in zero1 zero2 zero3; do run "$s-2" -n 2 --strategy $s --precision bf16 --offload_optimizer cpu && bits bf16 "$s-2"; done
run audit-2 -n 2 --strategy zero2 --precision bf16 --offload_optimizer cpu --audit 2 && bits bf16 audit-2 # the update of step 2 copies gradients
run pp-2 -n 2 --pp 2 --precision fp32 --strategy zero1 --decay matrices --offload_optimizer cpu && bits fp32 pp-2
[ -z "${LS_TEST_ALL:-}" ] || both tp-2 -n 2 --tp 2 --strategy zero1 --precision bf16

# without clipping, units are updated during the backward pass: the same parameters, moments, losses and norms
series() { python3 -c 'import json, sys; print([(r["loss"], r["grad_norm"], r["lr"]) for r in map(json.loads, open(sys.argv[1]))])' "$SCRATCH/$1/metrics.jsonl"; }
early() { # BASE NAME [options]
  local base=$1 name=$2
  shift 2
  LS_LOG=parallel=debug run "$name" --clip 0 --offload_optimizer cpu "$@" && bits "$base" "$name"
  [ "$(series "$base")" = "$(series "$name")" ] || bad "$name: $(series "$name"), without offload $(series "$base")"
  grep -q "units updated by the CPU from the backward pass on" "$SCRATCH/$name.out" || bad "$name: not updated during the backward pass"
}
run free --strategy zero1 --precision bf16 --clip 0
LS_EMU_PROTECT=1 early free free-protected --strategy single --precision bf16
early free free-2 -n 2 --strategy zero2 --precision bf16
early free free-3 -n 2 --strategy zero3 --precision bf16 --pp 2 --schedule zb
if [ -n "${LS_TEST_ALL:-}" ]; then
  run untied --strategy zero1 --precision fp32 --clip 0 --variant r1 --global_batch_size 1 && early untied untied-off --strategy zero1 --precision fp32 --variant r1 --global_batch_size 1
fi
grep -q "units updated by the CPU, " "$SCRATCH/bf16-off.out" || bad "with clipping, the update is not after the norm: $(grep 'units updated' "$SCRATCH/bf16-off.out")"

# what the device no longer holds is the optimizer's state, to the last byte that is printed
python3 - "$(device_mib bf16)" "$(device_mib bf16-off)" "$(part_mib bf16 optimizer)" <<'PY' || bad "memory: $(device_mib bf16) MiB on the device, $(device_mib bf16-off) with offload, state $(part_mib bf16 optimizer)"
import sys
whole, off, state = map(float, sys.argv[1:])
assert state > 0.5 and abs(whole - off - state) < 0.16, (whole, off, state)
PY

python3 - "$SCRATCH/bf16/training_metrics.json" "$SCRATCH/bf16-off/training_metrics.json" <<'PY' || bad "memory of the device and of the host in training_metrics.json"
import json, sys
there, off = (json.load(open(p))["lockstep"]["memory"] for p in sys.argv[1:])
assert off["optimizer"] == 0 and off["host"] - there["host"] >= there["optimizer"] > 0, (there, off)
assert off["device"] == off["planned"] and there["device"] - off["device"] > 0.9 * there["optimizer"], (there, off)
PY
expect 2 "needs a GPU" "$LOCKSTEP" verify --device cpu -n 1 --offload_optimizer cpu

# once units are updated, a step is completed before a signal stops the run: what is saved is the state of a step
LS_EMU_PROTECT=1 timeout 60 "$LOCKSTEP" train --data "$d" --model tiny --vocab_size 301 --num_layers 2 --num_heads 2 --embedding_size 64 --seq_length 16 --micro_batch_size_per_gpu 1 --global_batch_size 1 --max_steps 40 \
  --lr_schedule constant --device cuda --strategy zero1 --precision bf16 --clip 0 --offload_optimizer cpu --checkpoint_path "$SCRATCH/stopped" >"$SCRATCH/stopped.out" 2>&1 &
pid=$!
until [ "$(cat "$SCRATCH/stopped/metrics.jsonl" 2>/dev/null | wc -l)" -ge 2 ] || ! kill -0 $pid 2>/dev/null; do sleep 0.03; done
kill -TERM $pid
wait $pid
[ $? = 143 ] || bad "SIGTERM: $(tail -n 2 "$SCRATCH/stopped.out")"
n=$(ls "$SCRATCH/stopped" | sed -n 's/^step-//p')
run whole --strategy zero1 --precision bf16 --clip 0 --global_batch_size 1 --max_steps "${n:-1}" --lr_schedule constant
for f in model optimizer; do same "$SCRATCH/stopped/step-$n/$f.safetensors" "$SCRATCH/whole/epoch-1/$f.safetensors"; done

# a validation after such an update is stopped at once, and the step before it is saved
mkdir "$SCRATCH/dv" && cp "$d/train.bin" "$SCRATCH/dv" && cp "$d/train.bin" "$SCRATCH/dv/val.bin"
LOCKSTEP_FAULT=kind=term,step=2,phase=validate timeout 60 "$LOCKSTEP" train --data "$SCRATCH/dv" --model tiny --vocab_size 301 --num_layers 2 --num_heads 2 --embedding_size 64 --seq_length 16 --micro_batch_size_per_gpu 1 \
  --global_batch_size 2 --max_steps 2 --device cuda --strategy zero1 --precision bf16 --clip 0 --offload_optimizer cpu --checkpoint_path "$SCRATCH/checked" >"$SCRATCH/checked.out" 2>&1
[ $? = 143 ] || bad "SIGTERM in a validation: $(tail -n 2 "$SCRATCH/checked.out")"
for f in model optimizer; do same "$SCRATCH/free/epoch-1/$f.safetensors" "$SCRATCH/checked/step-2/$f.safetensors"; done

# checkpoints are the same files: a run goes on with the other setting
for way in "there none cpu" "back cpu none"; do
  set -- $way
  run "$1" --strategy zero1 --precision bf16 --max_steps 1 --save_every 1 --lr_schedule constant --offload_optimizer "$2" &&
    run "$1" --strategy zero1 --precision bf16 --max_steps 2 --resume --lr_schedule constant --offload_optimizer "$3"
done
bits there back

# DeepSpeed's block
config() { printf '{"train_micro_batch_size_per_gpu": 1, "train_batch_size": 2, "bf16": {"enabled": true}, "zero_optimization": {"stage": %s, "offload_optimizer": %s}}' "$1" "$2" >"$SCRATCH/ds.json"; }
print() { "$LOCKSTEP" train --data "$d" --model tiny --vocab_size 301 --device cuda --print_config --deepspeed "$SCRATCH/ds.json" "$@" 2>&1; }
config 1 '{"device": "cpu", "pin_memory": true}'
print | grep -q 'offload_optimizer *cpu.*zero_optimization.offload_optimizer.device' || bad "the JSON's offload_optimizer: $(print | grep offload)"
print --offload_optimizer none | grep -q 'offload_optimizer *none' || bad "--offload_optimizer none: $(print --offload_optimizer none | grep offload)"
config 1 '{"device": "nvme"}'
expect 2 "is 'nvme', which is not supported; use cpu" print
printf '{"train_batch_size": 2, "zero_optimization": {"stage": 1, "cpu_offload": true, "offload_optimizer": {"device": "none"}}}' >"$SCRATCH/ds.json"
expect 2 "remove one of them" print
config 2 '{"device": "cpu", "ratio": 0.5}'
expect 2 "the whole state is offloaded" print
config 0 '{"device": "cpu"}'
expect 2 "needs 'zero_optimization.stage' 1, 2 or 3" print
expect 2 "needs --strategy zero1, zero2 or zero3" "$LOCKSTEP" train --data "$d" --model tiny --vocab_size 301 --device cuda -n 2 --strategy ddp --offload_optimizer cpu --print_config
"$LOCKSTEP" train --data "$d" --model tiny --vocab_size 301 --device cpu --strategy zero1 --offload_optimizer cpu --seq_length 16 --max_steps 1 --checkpoint_path "$SCRATCH/host" >"$SCRATCH/host.out" 2>&1 ||
  bad "on the CPU: $(tail -n 2 "$SCRATCH/host.out")"
grep -q "has no effect on the CPU" "$SCRATCH/host.out" || bad "no note about the CPU"
done_tests
