#!/usr/bin/env bash
# A DeepSpeed user's ds_config.json (ZeRO-2, bf16, offload, AdamW, scheduler, clipping, TensorBoard) as it is, on two workers of the emulated device: every key
# is honoured, and the weights have the bits of the same run by options.
. "$(dirname "$0")/../support/lib.sh"
cd "$SCRATCH" || exit 1
export LS_PLUGIN_DIR=${LS_BUILD:-$LS_SOURCE/build}/emu LS_GEMM_TUNE=0 XDG_CACHE_HOME=$SCRATCH/cache
[ -f "$LS_PLUGIN_DIR/lockstep_cuda.so" ] || skip "no emulated device: built with the tests (LS_TESTS)"
mkdir -p d && tokens d/train.bin 3000 && tokens d/val.bin 400 2
cat >ds_config.json <<'JSON'
{
  "train_batch_size": 8,
  "train_micro_batch_size_per_gpu": 2,
  "gradient_accumulation_steps": 2,
  "gradient_clipping": 0.5,
  "steps_per_print": 2,
  "bf16": {"enabled": true},
  "fp16": {"enabled": false},
  "zero_optimization": {
    "stage": 2,
    "overlap_comm": true,
    "contiguous_gradients": true,
    "reduce_scatter": true,
    "reduce_bucket_size": 2e5,
    "allgather_partitions": true,
    "allgather_bucket_size": 2e5,
    "offload_optimizer": {"device": "cpu", "pin_memory": true}
  },
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
  "scheduler": {
    "type": "WarmupDecayLR",
    "params": {"warmup_min_lr": 0, "warmup_max_lr": 3e-4, "warmup_num_steps": 2, "total_num_steps": 6, "warmup_type": "linear"}
  },
  "tensorboard": {"enabled": true, "output_path": "tb", "job_name": "gpt2"},
  "wall_clock_breakdown": false,
  "zero_allow_untested_optimizer": true
}
JSON
args=(train --data d --model tiny --vocab_size 301 --num_layers 1 --num_heads 2 --embedding_size 64 --seq_length 8 --max_steps 5 --max_val_steps 0 --device cuda -n 2)
expect 0 "" timeout 120 "$LOCKSTEP" "${args[@]}" --deepspeed_config ds_config.json --checkpoint_path run
grep -q "without effect: .*zero_allow_untested_optimizer$" "$SCRATCH/err" ||
  bad "the keys without effect are not listed: $(cat "$SCRATCH/err")"
python3 - <<'PY' || bad "the run of ds_config.json"
import glob, json
m = json.load(open("run/training_metrics.json"))
c, ours = m["training_config"], m["lockstep"]
assert (c["global_batch_size"], c["micro_batch_size_per_gpu"], c["grad_accum_steps"]) == (8, 2, 2), c
assert c["zero_stage"] == 2 and c["precision"] == "bf16_mixed" and ours["strategy"] == "zero2", (c, ours["strategy"])
steps = [json.loads(line) for line in open("run/metrics.jsonl")]
lr = [s["lr"] for s in steps]  # DeepSpeed's WarmupDecayLR sets the rate of step n after step n - 1: two steps with 0, the peak, then down to 0 at step 6
assert all(abs(a - b) < 1e-9 for a, b in zip(lr, [0, 0, 1.5e-4, 3e-4, 2.25e-4])) and len(lr) == 5, lr
assert open("run/RUN_COMPLETE.txt").read()
assert glob.glob("tb/gpt2/events.out.tfevents.*"), glob.glob("tb/**", recursive=True)
PY
# every value with its source
"$LOCKSTEP" "${args[@]}" --deepspeed_config ds_config.json --print_config >config.txt 2>&1 || bad "--print_config: $(tail -n 3 config.txt)"
for row in "precision bf16 bf16.enabled" "strategy zero2 zero_optimization.stage" "offload_optimizer cpu zero_optimization.offload_optimizer.device" \
  "gradient_clipping 0.5 gradient_clipping" "lr_schedule WarmupDecayLR scheduler.type" "beta2 0.95 optimizer.params.betas" "tensorboard tb/gpt2 tensorboard.output_path"; do
  read -r key value from <<<"$row"
  grep -q "^$key  *$value  *DeepSpeed JSON ($from)" config.txt || bad "$row is not in the configuration: $(grep "^$key" config.txt)"
done

# without offload the weights have the same bits, and the optimizer is in the memory of the device
memory() { cat "$SCRATCH/out" "$SCRATCH/err" | grep -E '^memory [0-9.]+ MiB: '; }
memory | grep -q optimizer && bad "the optimizer is not offloaded: $(memory)"
expect 0 "" timeout 120 "$LOCKSTEP" "${args[@]}" --deepspeed_config ds_config.json --offload_optimizer none --tensorboard tb2 --checkpoint_path stay
memory | grep -q optimizer || bad "without offload the device has no optimizer: $(memory)"
for f in model optimizer; do same run/epoch-1/$f.safetensors stay/epoch-1/$f.safetensors; done
done_tests
