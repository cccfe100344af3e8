#!/usr/bin/env bash
# The program on the emulated GPU: every precision; checkpoints that are resumed there and on the CPU; overflows in fp16 that are skipped and resumed
# in the same way on one worker and on several; evaluation and generation; and the entries of the files of a run.
. "$(dirname "$0")/../support/lib.sh"
export LS_PLUGIN_DIR=${LS_BUILD:-$LS_SOURCE/build}/emu
[ -f "$LS_PLUGIN_DIR/lockstep_cuda.so" ] || skip "no emulated CUDA plugin in $LS_PLUGIN_DIR"
cd "$SCRATCH" || exit 1
for i in $(seq 200); do echo "line $i of a text that is $((i * 7919 % 1000)) words long"; done >text.txt
"$LOCKSTEP" prepare --input text.txt --out d --tokenizer bytes >/dev/null 2>&1 || bad "prepare"
base=(--data d --model tiny --num_layers 1 --num_heads 2 --embedding_size 32 --max_position_embeddings 32 --seq_length 16
    --train_micro_batch_size_per_gpu 1 --max_val_steps 1 --threads 1)
t() { timeout 300 "$LOCKSTEP" train "${base[@]}" "$@" >log.txt 2>&1 || bad "train $*: $(grep -m 1 '^lockstep' log.txt)"; }

# every precision, with losses close to those of the CPU; checkpoints are float32
t --checkpoint_path cpu --max_steps 4 --grad_accum_steps 2
for p in fp32 bf16 fp16; do
  t --checkpoint_path gpu-$p --max_steps 4 --grad_accum_steps 2 --device cuda --precision $p --save_every 2
done
t --checkpoint_path gpu-default --max_steps 1 --device cuda:0 # bf16

# the entries of the files
python3 - <<'PY' || bad "the files of GPU runs"
import json
steps = lambda d: [json.loads(line) for line in open(d + "/metrics.jsonl")]
want = steps("cpu")
label = {"fp32": "fp32", "bf16": "bf16_mixed", "fp16": "fp16_deepspeed", "default": "bf16_mixed"}
for p in label:
    m, got = json.load(open(f"gpu-{p}/training_metrics.json")), steps("gpu-" + p)
    e = m["epochs"][0]
    assert m["training_config"]["precision"] == label[p], m["training_config"]
    assert m["hardware"]["gpu_name"] != "none" and m["env"]["cuda_version"] == m["hardware"]["cuda_version"] != "none", m["hardware"]
    assert e["max_cuda_mem_allocated_bytes_rank0"] == m["lockstep"]["memory"]["device"] > 0, e
    assert m["lockstep"]["device"] == "cuda" and m["lockstep"]["gpu"]["name"] == m["hardware"]["gpu_name"], m["lockstep"]
    assert (p == "fp16") == ("loss_scale" in m["lockstep"]) == ("loss_scale" in got[0]), got[0]
    for a, b in zip(want, got):
        assert abs(a["loss"] - b["loss"]) < 2e-3 or p == "default", (p, a["loss"], b["loss"])
PY
for p in fp32 bf16 fp16; do
  python3 - gpu-$p/epoch-1/model.safetensors <<'PY' || bad "gpu-$p: a checkpoint that is not float"
import json, struct, sys
f = open(sys.argv[1], "rb")
head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
sys.exit(any(v["dtype"] != "F32" for k, v in head.items() if k != "__metadata__"))
PY
done

# a run is resumed on either device: the same bits on the same device; each device resumes from the folder of the other
cp -r gpu-bf16 again && rm -rf again/epoch-1
t --checkpoint_path again --max_steps 4 --grad_accum_steps 2 --device cuda --precision bf16 --save_every 2 --resume
grep -q "resumed from again/step-2" log.txt || bad "not resumed: $(tail -3 log.txt)"
same gpu-bf16/epoch-1/model.safetensors again/epoch-1/model.safetensors
same gpu-bf16/epoch-1/optimizer.safetensors again/epoch-1/optimizer.safetensors
# stochastic rounding: the bf16 parameters of the checkpoint's last update, on any layout
random=(--max_steps 4 --device cuda --precision bf16 --stochastic_rounding --save_every 2)
t --checkpoint_path random --grad_accum_steps 2 "${random[@]}"
cp -r random random-one && rm -rf random-one/epoch-1 && cp -r random-one random-two
t --checkpoint_path random-one --grad_accum_steps 2 "${random[@]}" --resume
t --checkpoint_path random-two --grad_accum_steps 1 "${random[@]}" --resume -n 2 --strategy zero3
for d in one two; do
  same random/epoch-1/model.safetensors random-$d/epoch-1/model.safetensors
  same random/epoch-1/optimizer.safetensors random-$d/epoch-1/optimizer.safetensors
done
cp -r gpu-bf16 to-cpu && rm -rf to-cpu/epoch-1
t --checkpoint_path to-cpu --max_steps 4 --grad_accum_steps 2 --resume
t --checkpoint_path to-gpu --max_steps 2 --grad_accum_steps 2 --lr_schedule constant --save_every 1
rm -rf to-gpu/epoch-1
t --checkpoint_path to-gpu --max_steps 2 --grad_accum_steps 2 --lr_schedule constant --device cuda --precision fp32 --resume
grep -q "resumed from to-gpu/step-1" log.txt || bad "not resumed on the GPU: $(tail -3 log.txt)"

# evaluation and generation, on both devices
loss() { timeout 200 "$LOCKSTEP" eval --checkpoint gpu-bf16 --data d --max_steps 1 "$@" 2>err.txt | sed -n 's/^loss //p'; }
here=$(loss)
for p in fp32 bf16 fp16; do
  python3 -c "import sys; sys.exit(not abs($here - $(loss --device cuda --precision $p)) < 1e-3)" || bad "eval in $p: $(cat err.txt)"
done
text() { timeout 200 "$LOCKSTEP" generate --checkpoint gpu-bf16 --prompt "line 1" --max_new_tokens 6 --greedy "$@" 2>err.txt; }
text >want.txt
text --device cuda --precision fp32 >got.txt
same want.txt got.txt
text --device cuda >got.txt && [ "$(wc -c <got.txt)" -ge 12 ] || bad "generate in bf16: $(cat err.txt)"
for w in bf16 int8; do # recorded passes make the text of direct ones
  text --device cuda --weights $w >got.txt && [ "$(wc -c <got.txt)" -ge 12 ] || bad "generate with weights in $w: $(cat err.txt)"
  LS_CUDA_GRAPHS=0 text --device cuda --weights $w >direct.txt
  same got.txt direct.txt
done
expect 0 "" "$LOCKSTEP" generate --checkpoint gpu-bf16 --prompt "line 1" --max_new_tokens 1 --device cuda --precision auto --weights bf16 # auto is bf16
printf 'line 1\nline 22 of a\nl\n' >prompts.txt
for b in 1 3; do # with int8, a text does not depend on its batch
  timeout 200 "$LOCKSTEP" generate --checkpoint gpu-bf16 --prompts prompts.txt --batch $b --max_new_tokens 6 --json --device cuda --weights int8 >batch-$b.txt 2>err.txt ||
    bad "generate --prompts: $(cat err.txt)"
done
same batch-1.txt batch-3.txt
expect 2 "leave it out" "$LOCKSTEP" generate --checkpoint gpu-bf16 --device cuda --speculate 4

# overflows: the DeepSpeed JSON enables fp16 with a loss scale that is far too high
cat >ds.json <<'JSON'
{"train_micro_batch_size_per_gpu": 1, "fp16": {"enabled": true, "initial_scale_power": 24, "loss_scale_window": 3},
 "zero_optimization": {"stage": 1}, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}
JSON
over=(--deepspeed_config ds.json --device cuda --max_steps 14)
t --checkpoint_path over --grad_accum_steps 2 "${over[@]}" --save_every 5
grep -q '^step 1/14  loss [0-9.]*  .*update skipped: the gradient is not finite' log.txt || bad "a skipped update is not reported: $(grep '^step' log.txt)"
n=$(grep -c '"skipped": true' over/metrics.jsonl)
grep -q "^warning: $n of 14 updates were skipped, because their gradients were not finite" log.txt || bad "the number of skipped updates: $(tail -n 3 log.txt)"
python3 - <<'PY' || bad "overflows"
import json
rows = [json.loads(line) for line in open("over/metrics.jsonl")]
skipped = [r for r in rows if r["skipped"]]
m = json.load(open("over/training_metrics.json"))["epochs"][0]
assert rows[0]["loss_scale"] == rows[1]["loss_scale"] == 2.0**24 and rows[0]["skipped"] and rows[1]["skipped"], rows[:2]
assert rows[2]["loss_scale"] == 2.0**23 and 2 < len(skipped) < 14 and all(r["grad_norm"] is None for r in skipped), rows
assert m["updates_skipped"] == len(skipped) and m["updates_applied"] == 14 - len(skipped) and m["optimizer_steps"] == 14, m
PY
cp -r over over-again && rm -rf over-again/epoch-1 over-again/step-10
t --checkpoint_path over-again --grad_accum_steps 2 "${over[@]}" --save_every 5 --resume
same over/epoch-1/model.safetensors over-again/epoch-1/model.safetensors
same over/epoch-1/optimizer.safetensors over-again/epoch-1/optimizer.safetensors
for s in ${LS_TEST_ALL:+ddp} zero1 zero3; do
  t --checkpoint_path over-$s --grad_accum_steps 1 "${over[@]}" -n 2 --strategy $s
  same over/epoch-1/model.safetensors over-$s/epoch-1/model.safetensors
  same over/epoch-1/optimizer.safetensors over-$s/epoch-1/optimizer.safetensors
done
done_tests
