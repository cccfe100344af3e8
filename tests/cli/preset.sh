#!/usr/bin/env bash
# Command lines of the trainers of the strategy comparison and of the translation study after `--preset`: in train, bench and profile.
. "$(dirname "$0")/../support/lib.sh"
cd "$SCRATCH" || exit 1
mkdir d && tokens d/train.bin 4000 && tokens d/val.bin 900 2
small=(--data-path d --model tiny --num-layers 1 --seq-length 32 --micro-batch-size 2 --train-iters 3 --log-interval 1)

expect 0 "RUN_COMPLETE.*world_size=2" "$LOCKSTEP" train --preset r2 --framework ddp --num-gpus 2 "${small[@]}" --vocab-file v.json --wandb-project none --reference_output
grep -q "^flags of --preset r2 without effect: --vocab_file, --wandb_project$" err || bad "no note: $(cat err)"
[ "$(grep -c '^flags of --preset r2' err)" = 1 ] || bad "the note is not printed once"
[ -n "$(find tb_logs -name 'events.out.tfevents.*')" ] || bad "no event file in tb_logs"
python3 - <<'PY' || bad "the run of the strategy comparison's command line"
import json
m = json.load(open("checkpoints/training_metrics.json"))
c = m["training_config"]
assert c["seq_len"] == 32 and c["micro_batch_size_per_gpu"] == 2 and c["global_batch_size"] == 4 and c["lr"] == 1.5e-4, c
assert m["epochs"][0]["optimizer_steps"] == 3 and "--preset r2 --framework ddp" in m["command_line"], m["command_line"]
PY
expect 0 "^strategy  *zero2 " "$LOCKSTEP" train --preset r2 --framework deepspeed --num_gpus 2 --global-batch-size 8 "${small[@]}" --print_config
grep -q '^grad_accum_steps  *2 ' out || bad "accumulation: $(cat out)"
for row in 'lr  *0.00015  *preset r2 (--lr)' 'world_size  *2  *command line (-n)' 'total_steps  *3 ' 'max_steps  *3  *command line' 'seed  *42  *preset r2 (--seed)'; do
  grep -q "^$row" out || bad "--print_config has no row '$row': $(cat out)"
done
expect 0 '"source": "preset r2"' "$LOCKSTEP" train --preset r2 "${small[@]}" --num-gpus 2 --print_config --json
grep -q "^flags of --preset r2 without effect: --num_gpus (without --framework: one worker)$" err || bad "no note about --num_gpus: $(cat err)"
expect 2 "'fsdp'" "$LOCKSTEP" train --preset r2 --framework fsdp "${small[@]}"
expect 2 "only the command lines of --preset r2 have it" "$LOCKSTEP" train --framework ddp --data d # without a preset it is unknown
expect 2 "use -n N, the number of workers" "$LOCKSTEP" train --num_gpus 2 --data d

expect 0 "micro_batch_size_per_gpu" "$LOCKSTEP" bench strategies -n 2 --dry-run --warmup 1 --out b -- --preset r2 --global-batch-size 8 "${small[@]}"
grep -q -- "--preset\|--train-iters" out && bad "the runs of a benchmark get flags of a preset: $(cat out)"
grep -q -- "--max_steps=3" out || bad "the benchmark lost the number of steps: $(cat out)"
"$LOCKSTEP" bench ab -n 2 --dry-run --repeat 1 --warmup 1 --out ab --a "--framework dp" --b "--framework ddp --use-fp16 false" -- --preset r2 "${small[@]}" >out 2>err ||
  bad "a preset in bench ab: $(cat err)"
[ "$(grep -c -- "--strategy=dp .*-n 2 .*/2cpu_a/" out)" = 1 ] && [ "$(grep -c -- "--strategy=ddp .*-n 2 .*/2cpu_b/" out)" = 1 ] || bad "the sides of a preset: $(cat out)"
expect 0 "--strategy=dp .*/2cpu_a/" "$LOCKSTEP" bench ab -n 2 --dry-run --repeat 1 --warmup 1 --out ab --a "--preset r2 --framework dp" --b "--preset r2 --framework ddp" -- "${small[@]}"
expect 0 "-n 1 .*/1cpu_b/" "$LOCKSTEP" bench ab -n 2 --dry-run --repeat 1 --warmup 50 --out ab --a "" --b "-n 1 --framework ddp" -- --preset r2 "${small[@]}" --train-iters 60
expect 2 "A would train 30 steps and B 20" "$LOCKSTEP" bench ab -n 2 --dry-run --out ab --a "--framework dp" --b "--framework ddp" -- --preset r2 --data-path d --model tiny --seq-length 32
expect 2 '--b "--framework x": --framework .x.: must be' "$LOCKSTEP" bench ab -n 2 --dry-run --a "" --b "--framework x" -- --preset r2 "${small[@]}"
expect 2 "give -n to bench" "$LOCKSTEP" bench scaling -n 1,2 --dry-run -- --preset r2 --num-gpus 2 "${small[@]}"
expect 0 "Wrote q/profiles" "$LOCKSTEP" profile -- train --data d --model tiny --num_layers 1 --seq_length 32 --max_steps 1 --betas=0.9,0.95 --checkpoint_path q
expect 0 "Wrote p/profiles/profile_summary.json" "$LOCKSTEP" profile -- train --preset r2 "${small[@]}" --checkpoint-path p --tensorboard-logs-path t

# The translation study: pairs of sentences
python3 - <<'PY'
with open("p.tsv", "w") as f:
    for i in range(60):
        f.write(f"ein wort {i % 7} und {i % 5}\ta word {i % 7} and {i % 5}\n")
PY
expect 0 "" "$LOCKSTEP" prepare --task translate --input p.tsv --out pairs
expect 0 "RUN_COMPLETE.*world_size=2" "$LOCKSTEP" train --preset r3 --dataset pairs --world_size 2 --batch_size 8 --n_epochs 1 --model_max_length 32 --model tiny \
  --num_layers 1 --checkpoint_path r3 --reference_output
[ -s r3/workdir/rank0_results_epoch0.json ] || bad "no result file of the translation study: $(ls r3 r3/workdir)"
expect 0 "^schedule  *naive " "$LOCKSTEP" train --preset r3 --dataset pairs --model_parallel_mode model_parallel --model_max_length 32 --model tiny \
  --print_config
grep -q '^lr  *0.0001  *preset r3 (--lr)' out || bad "the translation study's rate has another source: $(cat out)"
expect 0 '^lr  *0.0001  *preset r3 (--lr)' "$LOCKSTEP" train --task translate --dataset pairs --batch_size 8 --model_max_length 32 --model tiny --print_config
done_tests
