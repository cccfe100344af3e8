#!/usr/bin/env bash
# The real torchrun, two nodes x 2 workers on this machine (LOCKSTEP_HOST_ID divides it): its agent holds MASTER_PORT, the workers meet beside it and
# give the bits of one worker.
# ls-test: long
. "$(dirname "$0")/../support/lib.sh"
. "$(dirname "$0")/../support/ranks.sh"
. "$(dirname "$0")/../support/torch.sh"
torchrun=${python%python}torchrun
[ -x "$torchrun" ] || skip "no $torchrun"
mkdir -p "$SCRATCH/d" && tokens "$SCRATCH/d/train.bin" 20000
base=(train --data "$SCRATCH/d" --model tiny --num_layers 2 --seq_length 32 --micro_batch_size_per_gpu 1 --global_batch_size 4 --lr 1e-3 --max_steps 3)
"$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/one" >"$SCRATCH/log" 2>&1 || bad "one worker: $(tail -3 "$SCRATCH/log")"
port=$(free_port)
jobs=()
for h in 0 1; do
  LS_LOG=comm=info LOCKSTEP_HOST_ID=h$h timeout -k 5 120 "$torchrun" --nnodes 2 --nproc_per_node 2 --rdzv_backend c10d --rdzv_endpoint "127.0.0.1:$port" \
    --rdzv_id test --no_python "$LOCKSTEP" "${base[@]}" --strategy zero3 --checkpoint_path "$SCRATCH/two" >"$SCRATCH/out.$h" 2>&1 &
  jobs+=($!)
done
for j in "${jobs[@]}"; do wait "$j" || bad "torchrun: $(tail -n 3 "$SCRATCH"/out.?)"; done
same "$SCRATCH/one/epoch-1/model.safetensors" "$SCRATCH/two/epoch-1/model.safetensors"
grep -q "4 workers on 2 hosts, started by torchrun" "$SCRATCH"/out.? || bad "not on two hosts: $(cat "$SCRATCH"/out.? | head -5)"
done_tests
