#!/usr/bin/env bash
# Every card as its owner meets it, on the emulated device (LS_EMU_GPU, LS_EMU_CODE): one that cannot be used is named in the first line, with the command that
# mends it; precisions follow from what the card has; what it does not have is refused before anything is made.
. "$(dirname "$0")/../support/lib.sh"
unset LS_DEVICE
export LS_PLUGIN_DIR=${LS_BUILD:-$LS_SOURCE/build}/emu XDG_CACHE_HOME=$SCRATCH/cache LS_GEMM_TUNE=0
[ -f "$LS_PLUGIN_DIR/lockstep_cuda.so" ] || skip "no emulated device: built with the tests (LS_TESTS)"
cd "$SCRATCH" || exit 1
for i in $(seq 300); do echo "line $i of a text about $((i % 7)) kings"; done >text.txt
mkdir d && tokens d/train.bin 2000 && tokens d/val.bin 200 2
base=(train --data d --model tiny --num_layers 1 --num_heads 2 --embedding_size 32 --seq_length 16 --micro_batch_size_per_gpu 1 --max_steps 2)

# --- a card that cannot be used ---
# unusable CARD CODE WORDS...: the first two lines, doctor and a refusal have all words
unusable() {
  local card=$1 code=$2 w
  shift 2
  LS_EMU_GPU=$card LS_EMU_CODE=$code "$LOCKSTEP" train text.txt --checkpoint_path "$card" --max_steps 1 --threads 1 >"$card.log" 2>&1 || bad "$card: no run on the CPU: $(tail -n 2 "$card.log")"
  for w; do head -n 2 "$card.log" | grep -qF "$w" || bad "$card: '$w' is not in the first two lines: $(head -n 2 "$card.log")"; done
  expect 4 "" env LS_EMU_GPU="$card" LS_EMU_CODE="$code" "$LOCKSTEP" doctor
  for w; do grep '^lockstep: ' err | grep -qF "$w" || bad "$card: doctor ends without '$w': $(tail -n 1 err)"; done
  expect 2 "" env LS_EMU_GPU="$card" LS_EMU_CODE="$code" "$LOCKSTEP" "${base[@]}" --checkpoint_path "no-$card" --device cuda
  for w; do grep '^lockstep: ' err | grep -qF "$w" || bad "$card: --device cuda is refused without '$w': $(tail -n 1 err)"; done
  [ ! -e "no-$card" ] || bad "$card: a run folder was made"
}
unusable t4 90 "Tesla T4 cannot be used" "no code for compute capability 7.5" "LS_CUDA_ARCH=75 ./run build"
unusable v100 75 "Tesla V100-SXM2-16GB cannot be used" "no code for compute capability 7.0" "build it with CUDA 12"
expect 0 "commands without --device compute on CPU (--device\|commands without --device compute on CPU" env LS_DEVICE=cpu LS_EMU_GPU=t4 LS_EMU_CODE=90 "$LOCKSTEP" doctor
# too old: one line, and nothing fails
LS_EMU_GPU=k80 "$LOCKSTEP" train text.txt --checkpoint_path k80 --max_steps 1 --threads 1 >k80.log 2>&1 || bad "k80: $(tail -n 2 k80.log)"
[ "$(head -n 1 k80.log)" = "device: CPU (Tesla K80 is not supported (compute capability 3.7, Lockstep needs 7.0))" ] || bad "k80: $(head -n 1 k80.log)"
[ "$(grep -c K80 k80.log)" = 1 ] || bad "k80 is named more than once"
expect 0 "Tesla K80 is not supported" env LS_EMU_GPU=k80 "$LOCKSTEP" doctor
expect 2 "Tesla K80 is not supported (compute capability 3.7, Lockstep needs 7.0)" env LS_EMU_GPU=k80 "$LOCKSTEP" "${base[@]}" --device cuda
# what doctor prints of a card
row() { expect 0 "$3" env LS_EMU_GPU="$1" LS_EMU_CODE="$2" "$LOCKSTEP" doctor; }
row t4 "" "Tesla T4, 15 GiB, .* capability 7.5, fp32 fp16, kernels of Turing, native code of 7.5"
row a100 80 "capability 8.0, fp32 tf32 fp16 bf16, kernels of Ampere, native code of 8.0"
row h100 75 "capability 9.0, fp32 fp16, kernels of Turing, PTX of 7.5"
expect 0 "device  *ok .* and .* in fp16" env LS_EMU_GPU=v100 "$LOCKSTEP" doctor --device cuda

# --- precisions ---
for p in fp16 bf16 fp8; do
  echo "{\"train_micro_batch_size_per_gpu\": 1, \"$p\": {\"enabled\": true}}" >$p.json
  echo "{\"train_micro_batch_size_per_gpu\": 1, \"$p\": {\"enabled\": \"auto\"}}" >$p-auto.json
done
# is CARD PRECISION OPTIONS: the row of --print_config
is() { expect 0 "^precision  *$2 " env LS_EMU_GPU="$1" "$LOCKSTEP" "${base[@]}" --print_config "${@:3}"; }
is t4 fp16
is t4 fp16 --precision auto
is t4 fp16 --device cuda
is v100 fp16 --deepspeed_config bf16-auto.json
is t4 fp16 --deepspeed_config fp16-auto.json
is t4 fp16 --deepspeed_config fp16.json
expect 0 "^loss_scale_rule  *stage0" env LS_EMU_GPU=t4 "$LOCKSTEP" "${base[@]}" --print_config --deepspeed_config fp16.json
is t4 fp32 --precision fp32
is a100 bf16
is a100 bf16 --deepspeed_config fp16-auto.json
is a100 fp16 --deepspeed_config fp16.json
is l4 fp8 --precision fp8
# no CARD WORDS OPTIONS: refused, and nothing is made
no() {
  expect 2 "$2" env LS_EMU_GPU="$1" "$LOCKSTEP" "${base[@]}" --checkpoint_path refused "${@:3}"
  [ ! -e refused ] || bad "$1 ${*:3}: a run folder was made"
}
no t4 "--precision bf16 needs a GPU of compute capability 8.0 or later, but Tesla T4 has 7.5; use --precision fp16 or fp32" --precision bf16
no t4 "--precision bf16 needs .* but Tesla T4 has 7.5" --precision bf16 --device cuda -n 2
no v100 "bf16.json enables bf16, which needs .* but Tesla V100-SXM2-16GB has 7.0; use --precision fp16" --deepspeed_config bf16.json
no a100 "--precision fp8 needs a GPU of compute capability 8.9 or later, but NVIDIA A100-SXM4-40GB has 8.0; use --precision bf16" --precision fp8
no t4 "--precision fp8 needs .*; use --precision fp16 or fp32" --precision fp8
no t4 "--tf32 needs a GPU of compute capability 8.0 or later, but Tesla T4 has 7.5; leave it out" --precision fp32 --tf32
echo '{"train_micro_batch_size_per_gpu": 1, "fp16": {"enabled": false}, "bf16": {"enabled": "auto"}}' >no-fp16.json
no t4 'no-fp16.json disables fp16 and has bf16.enabled "auto", which is fp16 on this GPU; add --precision fp32' --deepspeed_config no-fp16.json
expect 0 "^device: CUDA, NVIDIA H100 80GB HBM3 (1 of 1 visible); code of 7.5: LS_CUDA_ARCH=90a ./run build makes its own" env LS_EMU_GPU=h100 LS_EMU_CODE=75 "$LOCKSTEP" "${base[@]}" --checkpoint_path older
LS_EMU_CODE=75 no h100 "lockstep_cuda.so has code of 7.5 for NVIDIA H100 80GB HBM3 (9.0; LS_CUDA_ARCH=90a ./run build makes its own)" --precision bf16

# --- the other commands ---
LS_EMU_GPU=a100 "$LOCKSTEP" "${base[@]}" --checkpoint_path a100 >a100.log 2>&1 || bad "a100: $(tail -n 2 a100.log)"
run=a100
for c in "eval --checkpoint $run --data d --seq_length 16" "generate --checkpoint $run" "verify -n 1 --steps 1" "bench gemm --batch 1 --seq 8 --width 16 --layers 1 --vocab 70 --turns 1" \
  "plan --measure --model tiny --seconds 0.1"; do # shellcheck disable=SC2086
  expect 2 "needs a GPU of compute capability 8.0 or later, but Tesla T4 has 7.5" env LS_EMU_GPU=t4 "$LOCKSTEP" $c --precision bf16
done
expect 2 "--tf32 needs" env LS_EMU_GPU=t4 "$LOCKSTEP" eval --checkpoint $run --data d --seq_length 16 --precision fp32 --tf32
expect 2 "--weights bf16: on a GPU the weights are int8 or have the type of --precision, which is fp16" env LS_EMU_GPU=t4 "$LOCKSTEP" eval --checkpoint $run --data d --seq_length 16 --weights bf16
expect 2 "the steps of this run were computed in bf16, which needs .* but Tesla T4 has 7.5; use --precision fp16" env LS_EMU_GPU=t4 "$LOCKSTEP" train --resume $run --max_steps 3
done_tests
