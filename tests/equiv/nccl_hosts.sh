#!/usr/bin/env bash
# Workers on three hosts (LOCKSTEP_HOST_ID divides this machine) over the fake NCCL: GPUs with the same bus address on different hosts are different
# GPUs, although the hosts have one name here. A rank that is stopped is named by the ranks of the other hosts, in a collective between GPUs.
. "$(dirname "$0")/../support/lib.sh"
. "$(dirname "$0")/../support/ranks.sh"
export LS_PLUGIN_DIR=$LS_BUILD/emu_nccl XDG_CACHE_HOME=$SCRATCH/cache LS_EMU_DEVICES=1
[ -f "$LS_PLUGIN_DIR/lockstep_cuda.so" ] && [ -f "$LS_PLUGIN_DIR/lockstep_nccl.so" ] || skip "no emulated device (LS_TESTS, LS_EMULATE)"
tokens "$SCRATCH/ids.bin" 3000
base=(train --train_data_path "$SCRATCH/ids.bin" --model tiny --num_layers 1 --num_heads 2 --embedding_size 24 --seq_length 8 --threads 1 --device cuda
      --micro_batch_size_per_gpu 1 --precision fp32 --comm nccl --strategy ddp --comm_timeout 4)

# two ranks of one host share its GPU: refused
expect 2 "share the GPU" "$LOCKSTEP" "${base[@]}" -n 2 --global_batch_size 2 --max_steps 1 --checkpoint_path "$SCRATCH/shared"
# one rank of each host: not shared
ranks apart "1 1" "$LOCKSTEP" "${base[@]}" --global_batch_size 2 --max_steps 1 --checkpoint_path "$SCRATCH/apart" || bad "GPUs of two hosts: $(tail -n 3 "$SCRATCH/apart.0")"
grep -q '"shared": *false' "$SCRATCH/apart/training_metrics.json" || bad "gpu.shared: $(grep shared "$SCRATCH/apart/training_metrics.json")"

ranks stopped "1 1 1" "$LOCKSTEP" "${base[@]}" --global_batch_size 3 --max_steps 2000 --epochs 1000 --checkpoint_path "$SCRATCH/run" &
job=$!
await $job grep -qs "^step 1/" "$SCRATCH/stopped.0" || bad "no step: $(tail -n 3 "$SCRATCH/stopped.0")"
victim=$(cat "$SCRATCH/stopped.2.pid")
kill -STOP "$victim"
ended() { [ -f "$SCRATCH/stopped.0.code" ] && [ -f "$SCRATCH/stopped.1.code" ]; }
SECONDS=0
await $job ended || bad "the other ranks do not end"
[ $SECONDS -lt 30 ] || bad "the other ranks took $SECONDS s"
kill -KILL "$victim"
wait $job
[ "$(cat "$SCRATCH/stopped.0.code" "$SCRATCH/stopped.1.code" | tr '\n' ' ')" = "4 4 " ] || bad "exit codes $(cat "$SCRATCH"/stopped.[01].code)"
cat "$SCRATCH/stopped.0" "$SCRATCH/stopped.1" >"$SCRATCH/both"
grep -q "no progress for .*; rank 2 does not answer: it is stopped, or its host is not reachable" "$SCRATCH/both" ||
  bad "the stopped rank is not named: $(grep -A4 "^lockstep" "$SCRATCH/both")"
grep -q "not visible" "$SCRATCH/both" && bad "a rank was not asked"
done_tests
