#!/usr/bin/env bash
# A supervised run on two hosts (tests/support/hosts) whose network fails: packets that are lost, late, damaged and out of order (tests/support/bad_link.py), a link that is down for a second, and one that is down for longer than the limit. All runs end with the bits of one worker.
. "$(dirname "$0")/../support/lib.sh"
[ -n "${LS_TEST_ALL:-}" ] || skip "waits for limits of a network: runs with LS_TEST_ALL=1"
[ "$(id -u)" = 0 ] || skip "making hosts needs root"
tool=("$LS_SOURCE/tests/support/hosts" "$SCRATCH/net")
at_end() { "${tool[@]}" down >/dev/null 2>&1; }
"${tool[@]}" up 2 --ttl 600 >"$SCRATCH/up" 2>&1 || skip "no hosts: $(tail -1 "$SCRATCH/up")"
mkdir -p "$SCRATCH/d" && tokens "$SCRATCH/d/train.bin" 20000
base=(train --data "$SCRATCH/d" --model tiny --num_layers 2 --seq_length 32 --micro_batch_size_per_gpu 1 --global_batch_size 4 --lr 1e-3 --threads 1 --max_steps 300 --save_every 20 --keep_last 2)
"$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/one" >"$SCRATCH/log" 2>&1 || bad "one worker: $(tail -3 "$SCRATCH/log")"

begin() { # NAME: starts the run and waits for its fifth step
  name=$1
  timeout -k 5 200 "$LOCKSTEP" launch --hosts n1,n2 -n 4 --max_restarts 3 --rsh "${tool[*]} rsh" -- \
    "${base[@]}" --comm_timeout 4 --checkpoint_path "$SCRATCH/$name" >"$SCRATCH/$name.log" 2>&1 &
  job=$!
  await $job grep -qs '"step": 5,' "$SCRATCH/$name/metrics.jsonl" || bad "$name: no step 5: $(tail -3 "$SCRATCH/$name.log")"
}
end() { # RESTARTS: none or some
  wait $job || bad "$name: exit code $?: $(tail -3 "$SCRATCH/$name.log")"
  for f in model optimizer; do same "$SCRATCH/one/epoch-1/$f.safetensors" "$SCRATCH/$name/epoch-1/$f.safetensors"; done
  local n
  n=$(grep -c '"event": "restart"' "$SCRATCH/$name/events.jsonl")
  case $1 in none) [ "$n" = 0 ] ;; *) [ "$n" -gt 0 ] ;; esac || bad "$name: $n restarts"
  echo "$name: $n restarts, the same bits"
}
link() { "${tool[@]}" on n2 ip link set eth0 "$1" >/dev/null 2>&1; }

packets() { # NAME OPTIONS...: both directions of the link lose, damage, delay and reorder packets from step 5 on
  local k pids=() bad=("$LS_SOURCE/tests/support/bad_link.py" "$SCRATCH/link.$1")
  begin "$1"
  for k in 0 1; do
    "${tool[@]}" on n$((k + 1)) python3 "${bad[@]}" $k 10.77.0.$((3 - k)) 10.77.0.$((2 + k)) "${@:2}" >"$SCRATCH/link$k.log" 2>&1 &
    pids+=($!)
  done
  for k in 0 1; do await "${pids[k]}" grep -q ready "$SCRATCH/link$k.log" || bad "$1: no link: $(cat "$SCRATCH/link$k.log")"; done
  end none
  touch "$SCRATCH/link.$1.end"
  wait "${pids[@]}"
  for k in 0 1; do
    echo "$1, from n$((k + 1)): packets $(tail -n 1 "$SCRATCH/link$k.log")"
    grep -Eq "sent [0-9]{3,} lost [1-9][0-9]* damaged [1-9][0-9]* reordered [1-9]" "$SCRATCH/link$k.log" || bad "$1: no packet was lost, damaged or reordered: $(cat "$SCRATCH/link$k.log")"
  done
}
if [ -e /dev/net/tun ]; then packets packets --loss 0.002 --corrupt 0.002 --reorder 0.02 --delay_ms 0.5; else echo "packets: skipped: no /dev/net/tun"; fi
begin flap
link down
sleep 1
link up
end none
begin cut
link down
await $job grep -qs '"event": "failure"' "$SCRATCH/cut/events.jsonl" || bad "cut: no failure: $(tail -3 "$SCRATCH/cut.log")"
link up
end some
done_tests
