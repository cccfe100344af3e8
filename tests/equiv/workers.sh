#!/usr/bin/env bash
# Several workers: every layout computes the bits of one worker; a run with workers equals the run of one, also when it is resumed with
# another number of them; a killed worker ends the run in seconds, and no process or shared memory is left.
. "$(dirname "$0")/../support/lib.sh"
command -v pgrep >/dev/null || skip "pgrep is missing (package procps)"
layouts=(-n 2 --steps 1); [ "${LS_TEST_ALL:-0}" = 1 ] && layouts=(-n "1,2,4,8") # 4 workers: below, and in pipeline.sh and tensor.sh
"$LOCKSTEP" verify "${layouts[@]}" --jobs 2 >"$SCRATCH/verify" 2>&1 || bad "verify: $(grep -v identical "$SCRATCH/verify" | head -5)"
tail -n 1 "$SCRATCH/verify"
[ "${LS_TEST_ALL:-0}" = 1 ] || grep -q "^35 of 39 layouts identical, 4 within" "$SCRATCH/verify" || bad "verify: $(tail -n 1 "$SCRATCH/verify")"
expect 2 "'moon': must be auto, cpu, cuda" "$LOCKSTEP" verify --device moon -n 1,2 --steps 1 # the message of a worker

mkdir -p "$SCRATCH/d" && tokens "$SCRATCH/d/train.bin" 20000 && tokens "$SCRATCH/d/val.bin" 2000 2
base=(train --data "$SCRATCH/d" --model tiny --num_layers 2 --seq_length 64 --micro_batch_size_per_gpu 1 --global_batch_size 8 --dropout 0.1 --epochs 2
      --save_every 4 --lr 1e-3)
run() { local name=$1; shift; timeout 120 "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/$name" "$@" >"$SCRATCH/$name.log" 2>&1; }
steps=(--max_steps 8)

run one "${steps[@]}" || bad "one worker: $(tail -3 "$SCRATCH/one.log")"
for s in ddp dp zero1 zero2 zero3 shared; do
  how=(--strategy "$s"); [ "$s" = shared ] && how=(--strategy ddp --share_optimizer)
  run $s -n 4 "${how[@]}" --reference_output "${steps[@]}" || bad "$s on 4: $(tail -3 "$SCRATCH/$s.log")"
  same "$SCRATCH/one/epoch-1/model.safetensors" "$SCRATCH/$s/epoch-1/model.safetensors"
  same "$SCRATCH/one/epoch-1/optimizer.safetensors" "$SCRATCH/$s/epoch-1/optimizer.safetensors"
  for r in 0 1 2 3; do grep -q "^\[Rank $r\] EXITING cleanly" "$SCRATCH/$s.log" || bad "$s: rank $r did not print its last line"; done
done
# The cores of a worker that waits are used by one that is late; the bits stay.
if [ "$(nproc)" -ge 2 ]; then
  LS_LOG=device=debug LOCKSTEP_FAULT="kind=slow,rank=1,step=3,phase=forward,seconds=1" run lent -n 2 --threads 1 --strategy ddp --share_optimizer "${steps[@]}" ||
    bad "lent cores: $(tail -3 "$SCRATCH/lent.log")"
  grep -q "r1 .*computes with 2 threads, 1 of them on cores of other workers" "$SCRATCH/lent.log" || bad "the late worker did not use the core of the other one"
  same "$SCRATCH/one/epoch-1/model.safetensors" "$SCRATCH/lent/epoch-1/model.safetensors"
  same "$SCRATCH/one/epoch-1/optimizer.safetensors" "$SCRATCH/lent/epoch-1/optimizer.safetensors"
fi
python3 - "$SCRATCH" <<'PY' || bad "metrics of 4 workers differ from those of one"
import json, sys
def load(n): return json.load(open(f"{sys.argv[1]}/{n}/training_metrics.json"))
a, b, d = load("one"), load("ddp"), load("shared")
assert b["hardware"]["world_size"] == 4 and b["training_config"]["global_batch_size"] == 8 == a["training_config"]["global_batch_size"]
# the volume of ddp with a state for each: every step sums each gradient element once (P, and the second part of the token embedding)
comm, P, V, C, steps = b["lockstep"]["comm"], b["lockstep"]["parameters"], 257, 128, 8
def units(block):
    def pad(n): return -(-n // block) * block
    embed = pad(V * C + 256 * C)
    return [embed] + [pad(12 * C * C + 13 * C)] * 2 + [pad(2 * C) + embed]
n = sum(units(1024))
assert comm["backend"] == "local" and comm["all_reduce"]["elements"] == steps * n, (comm["all_reduce"], n)
assert comm["all_reduce"]["bytes_moved"] == 2 * 3 * comm["all_reduce"]["elements"] * 4 // 4, comm["all_reduce"]
# and with one state: parts of the sums; the parameters and the moments exist once
one, n, e = d["lockstep"]["comm"], sum(units(4096)), units(4096)[0]
assert d["lockstep"]["shared_optimizer"] is True and "shared_optimizer" not in b["lockstep"]
assert one["reduce_scatter"]["elements"] == steps * n, (one["reduce_scatter"], n)
assert one["all_gather"]["elements"] < steps * (n - e) / 4, (one["all_gather"], n - e) # the sums of squares and the losses, no parameters
assert one.get("all_reduce", {"elements": 0})["elements"] == 0, one["all_reduce"]
def state(m): return [r["optimizer"] for r in m["lockstep"]["memory"]["per_rank"]]
assert [r["parameters"] for r in d["lockstep"]["memory"]["per_rank"]] == [4 * (n - e), 0, 0, 0], d["lockstep"]["memory"]["per_rank"]
assert state(d) == [8 * (n - e) // 4] * 4 and state(b) == [8 * (sum(units(1024)) - units(1024)[0])] * 4, (state(d), state(b))
# only the steps count, not start-up, validation and checkpoints: the waiting time is that of the steps
assert comm["steps"] == steps, comm
waited = sum(k["exposed_sec"] for k in comm.values() if isinstance(k, dict))
split = b["lockstep"]["step_split"]["exposed_comm"] * steps
assert abs(waited - split) <= 1e-6 * split, (waited, split)
for x, y in zip(a["epochs"], b["epochs"], strict=True):
    for k in ("tokens_processed_global", "train_loss_avg_global", "val_loss_avg_global"):
        assert x[k] == y[k], (k, x[k], y[k])
PY

# 4 workers, then 1, then 2: one run
run chain -n 4 --strategy ddp --share_optimizer --save_every 2 "${steps[@]}" &
pid=$!
await $pid [ -d "$SCRATCH/chain/step-4" ] || bad "chain on 4: no step-4: $(tail -3 "$SCRATCH/chain.log")"
pkill -TERM -f "checkpoint_path $SCRATCH/chain" ; wait $pid
# its own options, but another strategy, or audits: what nobody typed is left out
cp -r "$SCRATCH/chain" "$SCRATCH/other"
expect 0 "share_optimizer of the earlier run has no effect with strategy zero3" timeout 120 "$LOCKSTEP" train --resume "$SCRATCH/other" -n 2 --strategy zero3
same "$SCRATCH/one/epoch-1/model.safetensors" "$SCRATCH/other/epoch-1/model.safetensors"
rm -rf "$SCRATCH/other"; cp -r "$SCRATCH/chain" "$SCRATCH/other"
expect 0 "share_optimizer of the earlier run needs a run without --audit" timeout 120 "$LOCKSTEP" train --resume "$SCRATCH/other" -n 2 --audit 2
same "$SCRATCH/one/epoch-1/model.safetensors" "$SCRATCH/other/epoch-1/model.safetensors"
run chain --resume --save_every 2 "${steps[@]}" || bad "chain on 1: $(tail -3 "$SCRATCH/chain.log")"
same "$SCRATCH/one/epoch-1/model.safetensors" "$SCRATCH/chain/epoch-1/model.safetensors"

# kill -9 of a random worker at a random time; resumed with one optimizer state, and the other way round
kills=1 all=(--max_steps 24)
[ "${LS_TEST_ALL:-0}" = 1 ] && kills=50 all=()
run whole -n 2 "${all[@]}" || bad "whole on 2"
for k in $(seq $kills); do
  rm -rf "$SCRATCH/killed"
  before=() after=(--strategy ddp --share_optimizer)
  [ $((k % 2)) = 0 ] && before=("${after[@]}") after=()
  "$LOCKSTEP" "${base[@]}" "${before[@]}" --comm_timeout 400 --checkpoint_path "$SCRATCH/killed" -n 4 "${all[@]}" >"$SCRATCH/killed.log" 2>"$SCRATCH/killed.err" &
  parent=$!
  sleep "0.$((RANDOM % 9))$((RANDOM % 9))"
  victim=$(pgrep -P $parent | shuf -n 1)
  [ -n "$victim" ] && kill -9 "$victim" 2>/dev/null
  begin=$(date +%s)
  wait $parent
  code=$?
  took=$(($(date +%s) - begin))
  if [ -n "$victim" ] && [ $code != 0 ]; then
    [ $code = 4 ] || bad "kill -9: exit code $code: $(tail -2 "$SCRATCH/killed.err")"
    [ $took -lt 60 ] || bad "kill -9: the others took $took s" # a run that had already ended has no limit
    grep -q "was killed by signal 9" "$SCRATCH/killed.err" || bad "kill -9: the rank is not named: $(tail -2 "$SCRATCH/killed.err")"
  fi
  pgrep -f "checkpoint_path $SCRATCH/killed" >/dev/null && bad "a worker outlived the run"
  run killed -n 4 --resume "${after[@]}" "${all[@]}" || bad "resume after a kill: $(tail -3 "$SCRATCH/killed.log")"
  same "$(find "$SCRATCH/whole" -name model.safetensors -path "*epoch-*" | sort | tail -n 1)" "$(find "$SCRATCH/killed" -name model.safetensors -path "*epoch-*" | sort | tail -n 1)"
done

# refusals
expect 2 "power\|1, 2, 4, 8" "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/x" --global_batch_size 6 -n 2
expect 0 "results may differ between numbers of workers" "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/free" --global_batch_size 6 -n 2 --no_deterministic --max_steps 3
# where the order is free, micro-batches are added into one gradient: less memory, nearly the same losses
for words in "-n 2 --strategy zero1" "-n 2 --strategy zero2" "-n 2 --strategy zero3" "-n 2 --pp 2 --schedule zb"; do
  # shellcheck disable=SC2086
  run free $words --no_deterministic --max_steps 2 || bad "$words --no_deterministic: $(tail -3 "$SCRATCH/free.log")"
  python3 - "$SCRATCH" "$words" <<'PY' || bad "$words --no_deterministic"
import json, sys
folder, words = sys.argv[1:]
a, b = ([json.loads(l) for l in open(f"{folder}/{n}/metrics.jsonl")][:2] for n in ("one", "free"))
assert all(abs(x[k] / y[k] - 1) < 1e-4 for x, y in zip(a, b) for k in ("loss", "grad_norm"))
m = json.load(open(f"{folder}/free/training_metrics.json"))["lockstep"]
most = max(r["gradients"] for r in m["memory"]["per_rank"])
assert most <= 4.5 * (m["parameters"] + 257 * 128), (words, most, m["parameters"]) # the token embedding has two
PY
  rm -rf "$SCRATCH/free"
done
expect 2 "single" "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/x" -n 2 --strategy single
expect 2 "needs a power-of-two number of replicas.*; use 2 replicas, or" "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/x" --global_batch_size 6 -n 3 --strategy zero2
expect 3 "none.bin" "$LOCKSTEP" train --train_data_path "$SCRATCH/none.bin" --model tiny -n 2 --checkpoint_path "$SCRATCH/x"
done_tests
