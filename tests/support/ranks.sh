# shellcheck shell=bash
# ranks.sh - for test scripts that start workers with the variables of torchrun, on hosts that this machine pretends to be.
LS_BUILD=${LS_BUILD:-$(dirname "$LOCKSTEP")}
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1] % 20000 + 10000)'; }

# ranks NAME "L0 L1 ..." COMMAND...: L0 workers on the first host, L1 on the next …; output in $SCRATCH/NAME.RANK, process id in NAME.RANK.pid,
# exit code in NAME.RANK.code. The exit code is the largest one.
ranks() {
  local name=$1 layout=$2 size=0 rank=0 host=0 l k jobs=() worst=0 port=${PORT:-$(free_port)}
  shift 2
  for l in $layout; do size=$((size + l)); done
  for l in $layout; do
    for ((k = 0; k < l; k++)); do
      rm -f "$SCRATCH/$name.$rank".*
      (
        RANK=$rank WORLD_SIZE=$size LOCAL_RANK=$k LOCAL_WORLD_SIZE=$l MASTER_ADDR=127.0.0.1 MASTER_PORT=$port LOCKSTEP_HOST_ID=host$host \
          LOCKSTEP_TOKEN=$$.$name timeout -k 5 120 sh -c 'echo $$ >"$0"; exec "$@"' "$SCRATCH/$name.$rank.pid" "$@" >"$SCRATCH/$name.$rank" 2>&1
        echo $? >"$SCRATCH/$name.$rank.code"
      ) &
      jobs+=($!)
      rank=$((rank + 1))
    done
    host=$((host + 1))
  done
  wait "${jobs[@]}"
  for ((k = 0; k < size; k++)); do l=$(cat "$SCRATCH/$name.$k.code"); [ "$l" -le "$worst" ] || worst=$l; done
  return "$worst"
}

# For runs that restart (cli/restart_hosts, cli/launch_slurm): a small run of 40 steps in base, which one worker has done in the folder one.
restarted_run() {
  tokens t.bin 20000
  base=(train --train_data_path "$SCRATCH/t.bin" --model tiny --num_layers 2 --vocab_size 256 --seq_length 32 --micro_batch_size_per_gpu 1
        --global_batch_size 4 --max_steps 40 --save_every 10 --threads 1 --comm_timeout 5)
  "$LOCKSTEP" "${base[@]}" --checkpoint_path one >/dev/null 2>&1 || bad "one worker"
}
lines() { [ "$(wc -l <"$1" 2>/dev/null || echo 0)" -ge "$2" ]; }
# on_host RUN HOST: the process ids of the workers that a pretended host has
on_host() { for p in $(pgrep -f "^$LOCKSTEP train .*$SCRATCH/$1( |\$)"); do tr '\0' '\n' <"/proc/$p/environ" | grep -qx "LOCKSTEP_HOST_ID=$2" && echo "$p"; done; }
# begin RUN STEP COMMAND...: in the background, with its process id in $pid, until so many steps are done. Its first attempt then waits for 20 s (if
# the test sets no LOCKSTEP_FAULT): what the test does comes before the next step, however fast the machine is.
begin() {
  local run=$1 step=$2
  shift 2
  LOCKSTEP_FAULT=${LOCKSTEP_FAULT:-kind=slow,rank=0,step=$((step + 1)),seconds=20} "$@" >"$run.log" 2>&1 &
  pid=$!
  await $pid lines "$run/metrics.jsonl" "$step" || bad "$run: no step $step: $(tail -n 3 "$run.log")"
}
# alike RUN: ends well, with the bits of one worker
alike() {
  wait $pid || bad "$1: exit code $?: $(tail -n 3 "$1.log")"
  same one/epoch-1/model.safetensors "$1/epoch-1/model.safetensors"
  same one/epoch-1/optimizer.safetensors "$1/epoch-1/optimizer.safetensors"
  [ "$(wc -l <"$1/metrics.jsonl")" = 40 ] || bad "$1: $(wc -l <"$1/metrics.jsonl") lines in metrics.jsonl"
  pgrep -f "checkpoint_path $SCRATCH/$1( |\$)" >/dev/null && bad "$1: processes are left"
}
