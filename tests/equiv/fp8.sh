#!/usr/bin/env bash
# --precision fp8 on the emulated device: losses near those of bf16; the same bits with and without graphs, on any number of workers under every
# strategy and pipeline, with activations computed again, and after a resume; requests that cannot be honoured are refused.
. "$(dirname "$0")/../support/lib.sh"
export LS_PLUGIN_DIR=${LS_BUILD:-$LS_SOURCE/build}/emu LS_GEMM_TUNE=0 XDG_CACHE_HOME=$SCRATCH/cache
[ -f "$LS_PLUGIN_DIR/lockstep_cuda.so" ] || skip "no emulated device: built with the tests (LS_TESTS)"
mkdir -p "$SCRATCH/d" && tokens "$SCRATCH/d/train.bin" 6000 && tokens "$SCRATCH/d/val.bin" 300 2
base=(train --data "$SCRATCH/d" --model tiny --num_layers 2 --embedding_size 32 --num_heads 2 --seq_length 16 --micro_batch_size_per_gpu 1
      --global_batch_size 4 --dropout 0.1 --epochs 1 --lr 1e-3 --lr_schedule constant --threads 1 --device cuda)
run() { # NAME [options]
  local name=$1
  shift
  timeout -k 5 300 "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/$name" "$@" >"$SCRATCH/$name.log" 2>&1 ||
    { bad "$name: exit code $?: $(tail -n 3 "$SCRATCH/$name.log")"; return 1; }
}
bits() { # A B: the same parameters, moments and history
  local f
  for f in model.safetensors optimizer.safetensors trainer_state.json; do same "$SCRATCH/$1/epoch-1/$f" "$SCRATCH/$2/epoch-1/$f"; done
}
layout() { # NAME [options]: the bits of one worker
  local name=$1
  shift
  run "$name" --precision fp8 --max_steps 4 "$@" && bits one "$name"
}
# near A B: rows that are sharded are summed in another order, so bits may differ
near() {
  python3 - "$SCRATCH/$1" "$SCRATCH/$2" <<'PY' || bad "losses of $1 and $2"
import json, sys
a, b = ([(r["loss"], r["grad_norm"]) for r in map(json.loads, open(p + "/metrics.jsonl"))] for p in sys.argv[1:])
assert len(a) == len(b) and all(abs(x - y) < 0.005 and abs(g / h - 1) < 0.005 for (x, g), (y, h) in zip(a, b)), (a, b)
PY
}

run one --precision fp8 --max_steps 4
value() { python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); l = d["lockstep"]; print(l["precision"], d["training_config"]["precision"], l["fp8_format"], l["fp8_amax_history_len"], l["fp8_margin"])' "$SCRATCH/$1/training_metrics.json"; }
[ "$(value one)" = "fp8 fp8_mixed e4m3 16 0" ] || bad "the record of an fp8 run: $(value one)"
expect 2 "fp8: cluster files have no times of it; plan or check a run in bf16" "$LOCKSTEP" plan --check "$SCRATCH/one"
LS_CUDA_GRAPHS=0 layout direct
layout zero3 -n 2 --strategy zero3 --audit 3
# zero3 gathers blocks with one byte per element (two in the first step, which records), and embed with two
python3 - "$SCRATCH/zero3/training_metrics.json" <<'PY' || bad "bytes that zero3 gathers in fp8"
import json, sys
unit = {b["bucket"] - 1: b for b in json.load(open(sys.argv[1]))["lockstep"]["comm"]["all_gather"]["buckets"]}
for u, b in unit.items():
    print(f"unit {u}: {b['elements']} elements in {b['buffer_bytes']} bytes")
    assert b["buffer_bytes"] == 2 * b["elements"] if u in (0, 3) else b["elements"] < b["buffer_bytes"] <= 1.25 * b["elements"], (u, b)
assert sorted(unit) == [0, 1, 2, 3], unit
PY
layout pp -n 2 --pp 2 --schedule zb
if [ "${LS_TEST_ALL:-0}" = 1 ]; then
  layout recomputed --recompute
  layout ddp -n 2 --strategy ddp
  for s in ddp zero1 zero2 zero3; do layout "$s-4" -n 4 --strategy $s; done
  layout zero3-0 -n 2 --strategy zero3 --prefetch_bucket 0 --recompute --eval_every 1
  layout zero3-1 -n 1 --strategy zero3
  layout zero3-offloaded -n 2 --strategy zero3 --offload_optimizer cpu
  layout zero3-zb -n 4 --pp 2 --schedule zb --strategy zero3
  LS_PLUGIN_DIR=${LS_PLUGIN_DIR}_nccl LS_EMU_DEVICES=4 layout zero3-nccl -n 4 --strategy zero3 --comm nccl
  run zero3-cut --precision fp8 --max_steps 2 -n 2 --strategy zero3 && run zero3-cut --precision fp8 --max_steps 4 -n 4 --strategy zero3 --resume && bits one zero3-cut
  layout pp-1f1b -n 2 --pp 2
  layout pp-zero1 -n 4 --pp 2 --strategy zero1
  layout audited -n 2 --strategy ddp --audit 2
  layout offloaded -n 2 --strategy zero1 --offload_optimizer cpu
  run tp --precision fp8 --max_steps 4 -n 2 --tp 2
  run tp-zero3 --precision fp8 --max_steps 4 -n 4 --tp 2 --strategy zero3 && bits tp tp-zero3
  run tp-rows --precision fp8 --max_steps 4 -n 2 --tp 2 --sequence_parallel && near tp tp-rows
  # shards of whole tiles of 16 rows gather norms in 8 bits
  two=(--precision fp8 --max_steps 4 --micro_batch_size_per_gpu 2 -n 2 --tp 2)
  run tp-2 "${two[@]}"
  run tp-2-rows "${two[@]}" --sequence_parallel && near tp-2 tp-2-rows
  python3 - "$SCRATCH/tp-rows/training_metrics.json" "$SCRATCH/tp-2-rows/training_metrics.json" <<'PY' || bad "bytes of activations that shards of rows gather in fp8"
import json, sys
def other(path): return json.load(open(path))["lockstep"]["tensor_comm"]["all_gather"]["other"]
rows, tiles = (other(p) for p in sys.argv[1:])
norms = 3 * 4 * 2 * 2 * 16 * 32 # steps after the first, micro-batches of 16 tokens, blocks, norms: elements
print(f"{rows['elements']} elements in {rows['buffer_bytes']} bytes; with whole tiles {tiles['elements']} in {tiles['buffer_bytes']}")
# the losses of rows (double) are gathered, too, with the same bytes
assert rows["elements"] == tiles["elements"] and rows["buffer_bytes"] - tiles["buffer_bytes"] == norms, (rows, tiles, norms)
PY
fi

# a resumed run has the history of the checkpoint
run cut --precision fp8 --max_steps 2 && run cut --precision fp8 --max_steps 4 --resume && bits one cut
python3 - "$SCRATCH/one/epoch-1/trainer_state.json" <<'PY' || bad "the history of a checkpoint"
import json, sys
h = json.load(open(sys.argv[1]))["trainer"]["fp8_amax_history"]
assert len(h) == 4 and all(len(step) == 2 * 4 * 3 and min(step) > 0 for step in h), h
PY

# steps that are skipped, because their gradients are not finite, leave nothing in the history: it can be saved and resumed
echo '{"fp8": {"enabled": true}, "bf16": {"enabled": true, "check_grad_overflow": true}}' >"$SCRATCH/overflow.json"
overflow=(--deepspeed_config "$SCRATCH/overflow.json" --lr 1e3 --clip 0)
run skips "${overflow[@]}" --max_steps 4 && run skips "${overflow[@]}" --max_steps 5 --resume
run skips-whole "${overflow[@]}" --max_steps 5 && bits skips skips-whole
python3 - "$SCRATCH/skips" <<'PY' || bad "the history of a run with skipped steps"
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1] + "/metrics.jsonl")]
skipped = sum(r["skipped"] for r in rows)
h = json.load(open(sys.argv[1] + "/epoch-1/trainer_state.json"))["trainer"]["fp8_amax_history"]
print(f"{skipped} of {len(rows)} steps skipped, {len(h)} in the history")
assert len(rows) == 5 and 0 < skipped < 5 and len(h) == 5 - skipped, (rows, h)
assert all(isinstance(x, (int, float)) and 0 <= x < 3.4e38 for step in h for x in step), h
PY

# projections that begin as 0: then no gradient reaches the layers before them, and an operand that is 0 has no scale; the next step is in bf16, too
cp -r "$SCRATCH/one/epoch-1" "$SCRATCH/zero"
rm -f "$SCRATCH/zero/checksums.json"
python3 - "$SCRATCH/zero/model.safetensors" <<'PY'
import json, struct, sys
b = bytearray(open(sys.argv[1], "rb").read())
n, = struct.unpack("<Q", b[:8])
for name, t in json.loads(b[8:8 + n]).items():
    if ".c_proj." in name:
        begin, end = (8 + n + x for x in t["data_offsets"])
        b[begin:end] = bytes(end - begin)
open(sys.argv[1], "wb").write(b)
PY
zero=(--model "$SCRATCH/zero" --init_from "$SCRATCH/zero" --max_steps 4 --lr 3e-4)
run zero-bf16 --precision bf16 "${zero[@]}"
run zero-one --precision fp8 "${zero[@]}"
said=$(grep -c "step 1: the gradient of the qkv of block 0 was always 0, so it has no scale in fp8; steps are computed in bf16 until it is not 0" "$SCRATCH/zero-one.log")
[ "$said" = 1 ] || bad "no scale: $(cat "$SCRATCH/zero-one.log")"
run zero-two --precision fp8 "${zero[@]}" -n 2 --strategy zero3 && bits zero-one zero-two
run zero-cut --precision fp8 "${zero[@]}" --max_steps 1 && run zero-cut --precision fp8 "${zero[@]}" --resume && bits zero-one zero-cut
grep -q "epoch-1 has no magnitudes for fp8, or only 0 of an operand: the next step is computed in bf16 and records them" "$SCRATCH/zero-cut.log" || bad "resumed without magnitudes: $(cat "$SCRATCH/zero-cut.log")"
# a history whose steps that are taken have only 0 of an operand has no scale of it, either
cp -r "$SCRATCH/one" "$SCRATCH/short"
python3 - "$SCRATCH/short/epoch-1" <<'PY'
import ctypes, json, struct, sys
xxh3 = ctypes.CDLL("libxxhash.so.0").XXH3_64bits
xxh3.restype, xxh3.argtypes = ctypes.c_uint64, (ctypes.c_char_p, ctypes.c_size_t)
state, sums = sys.argv[1] + "/trainer_state.json", sys.argv[1] + "/checksums.json"
o, all_files = json.load(open(state)), json.load(open(sums))
o["trainer"]["fp8_amax_history"][0][2] = 0.0
text, f = json.dumps(o).encode(), all_files["files"]["trainer_state.json"]
assert len(text) <= all_files["block_bytes"]
block = xxh3(text, len(text))
f.update(bytes=len(text), blocks=[f"{block:016x}"], root=f"{xxh3(struct.pack('<Q', block), 8):016x}")
open(state, "wb").write(text)
json.dump(all_files, open(sums, "w"))
PY
run short --precision fp8 --fp8_amax_history_len 1 --max_steps 5 --resume
grep -q "epoch-1 has no magnitudes for fp8, or only 0 of an operand" "$SCRATCH/short.log" || bad "resumed with 0 of an operand: $(cat "$SCRATCH/short.log")"
python3 - "$SCRATCH" <<'PY' || bad "losses with projections that begin as 0"
import json, sys
a, b = ([json.loads(x)["loss"] for x in open(f"{sys.argv[1]}/zero-{p}/metrics.jsonl")] for p in ("bf16", "one"))
print([round(x - y, 5) for x, y in zip(a, b)])
assert len(a) == len(b) == 4 and max(abs(x - y) for x, y in zip(a, b)) < 5e-3 and abs(a[1] - b[1]) < 1e-4 and a[3] != b[3], (a, b)
PY

# the settings of the steps are kept; where they cannot be read, nothing is assumed
settings=(--fp8_format hybrid --fp8_amax_history_len 3 --fp8_margin 1)
run kept --precision fp8 "${settings[@]}" --max_steps 2
cp -r "$SCRATCH/kept" "$SCRATCH/lost"
run kept --precision fp8 --max_steps 3 --resume
[ "$(value kept)" = "fp8 fp8_mixed hybrid 3 1" ] || bad "the settings of a resumed run: $(value kept)"
resume=("$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/lost" --max_steps 3 --resume --precision fp8)
cp "$SCRATCH/lost/options.json" "$SCRATCH/whole.json"
head -c 100 "$SCRATCH/whole.json" >"$SCRATCH/lost/options.json"
expect 3 "the settings of fp8 are not known: add --fp8_format" "${resume[@]}"
sed 's/"hybrid"/"hybri"/' "$SCRATCH/whole.json" >"$SCRATCH/lost/options.json"
expect 3 "the settings of fp8 are not known: add --fp8_format" "${resume[@]}" --fp8_format hybrid
rm "$SCRATCH/lost/options.json"
expect 3 "options.json: no such file; the settings of fp8 are not known" "${resume[@]}"
resume=("$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/lost" --max_steps 3 --resume)
expect 2 "its steps were computed in fp8, but .* choose bf16; add --precision fp8 to continue in it (on a GPU, with --fp8_format" "${resume[@]}"
run lost --precision fp8 "${settings[@]}" --max_steps 3 --resume && bits kept lost
run new --precision fp8 --max_steps 1 --resume # nothing to continue

# fp8 changes the numbers, and by little; the first step computes in bf16
steps=8; [ "${LS_TEST_ALL:-0}" = 1 ] && steps=40
long=(--max_steps "$steps" --lr 3e-3)
run long-bf16 --precision bf16 "${long[@]}"
run long-fp8 --precision fp8 "${long[@]}"
run long-hybrid --precision fp8 --fp8_format HYBRID --fp8_amax_history_len 4 "${long[@]}"
[ "$(value long-hybrid)" = "fp8 fp8_mixed hybrid 4 0" ] || bad "the record of a hybrid run: $(value long-hybrid)"
python3 - "$SCRATCH" $steps <<'PY' || bad "losses of fp8 and bf16"
import json, sys
def steps(p): return [json.loads(x) for x in open(f"{sys.argv[1]}/long-{p}/metrics.jsonl") if '"loss"' in x]
a = steps("bf16")
for p in ("fp8", "hybrid"):
    b = steps(p)
    assert len(a) == len(b) == int(sys.argv[2])
    assert abs(a[0]["loss"] - b[0]["loss"]) < 1e-3, p
    worst = max(abs(x["loss"] - y["loss"]) for x, y in zip(a, b))
    norm = max(abs(x["grad_norm"] / y["grad_norm"] - 1) for x, y in zip(a[:10], b)) # later the weights differ
    print(f"{p}: {a[0]['loss']:.4f} -> {b[-1]['loss']:.4f} (bf16 {a[-1]['loss']:.4f}); largest difference {worst:.4f}, of norms {100 * norm:.1f} %")
    assert a[-1]["loss"] < a[0]["loss"] - 0.1 and 0 < worst < 0.01 and norm < 0.04, (worst, norm)
PY

expect 2 "the CPU supports only fp32 and bf16" "$LOCKSTEP" "${base[@]}" --precision fp8 --device cpu
expect 2 "multiple of 16, but it is 24" "$LOCKSTEP" "${base[@]}" --precision fp8 --seq_length 24 --max_steps 1 --checkpoint_path "$SCRATCH/none"
expect 2 "multiple of 16, but it is 24 / 1" "$LOCKSTEP" "${base[@]}" --precision fp8 --embedding_size 24 --max_steps 1 --checkpoint_path "$SCRATCH/none"
expect 2 "needs --precision fp8" "$LOCKSTEP" "${base[@]}" --precision bf16 --fp8_margin 1
done_tests
