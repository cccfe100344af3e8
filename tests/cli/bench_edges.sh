#!/usr/bin/env bash
# bench: results that cannot be written, more threads than cores, warm-ups without steps after them, truncated files, DeepSpeed's JSON, one repeat.
# ls-test: serial
. "$(dirname "$0")/../support/lib.sh"
cd "$SCRATCH" || exit 1
mkdir -p d && tokens d/train.bin 6000 && tokens d/val.bin 500 2
bench() { timeout 300 "$LOCKSTEP" bench "$@"; }
plain=(--data d --model tiny --num_layers 1 --seq_length 16)
train=("${plain[@]}" --micro_batch_size_per_gpu 1)
cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)

# --- more threads than cores ---
bench scaling -n 1,2 --repeat 1 --steps 14 --warmup 2 --out s -- "${train[@]}" --threads $cores >out 2>err || bad "threads: $(cat err)"
grep -q "note: 2 workers of $cores threads* share $cores cores: expect no more than the speed of one" err || bad "more threads than cores are not reported: $(cat err)"
grep -q '"oversubscribed": true' s/scaling_report.json || bad "oversubscribed: $(grep -A8 '"cores"' s/scaling_report.json)"
grep -q "\"threads_per_worker\": $cores," s/scaling_report.json || bad "threads: $(grep -A8 '"cores"' s/scaling_report.json)"
grep -q "intervals over the steps of a run; use --repeat 3" out || bad "one repeat: $(cat out)"
bench scaling -n 1 --repeat 1 --steps 4 --warmup 2 --out s1 -- "${train[@]}" --threads 1 >out 2>err || bad "one thread: $(cat err)"
grep -q '"oversubscribed": false' s1/scaling_report.json || bad "one thread is not too many"
grep -q "no intervals without repeats" out || bad "one repeat of few steps: $(cat out)"

# --- a stdout that cannot be written ---
if [ -w /dev/full ]; then
  for words in "scaling s --json" "scaling s" "strategies s" "ab --warmup 2 s/1gpu_single s/2gpu_ddp" "ab --json --warmup 2 s/1gpu_single s/2gpu_ddp" \
    "comm -n 2 --max 1K --rounds 2" "comm -n 2 --max 1K --rounds 2 --json" "comm -n 1 --max 1K --rounds 2" "--help" \
    "gemm --batch 1 --seq 8 --width 64 --layers 1 --vocab 100 --chunk 8 --turns 2"; do
    # shellcheck disable=SC2086 # split into words
    bench $words >/dev/full 2>err
    code=$?
    [ $code = 3 ] || bad "bench $words > /dev/full: exit code $code"
    [ "$(grep -c "^lockstep: .*I/O error: cannot write to stdout" err)" = 1 ] || bad "bench $words > /dev/full: $(cat err)"
  done
  for n in 1 2; do
    "$LOCKSTEP" train "${train[@]}" --threads 1 -n $n --max_steps 2 --reference_output --checkpoint_path r$n >/dev/full 2>err
    code=$?
    [ $code = 3 ] && [ "$(grep -c "I/O error: cannot write to stdout" err)" = 1 ] || bad "train -n $n > /dev/full: exit code $code: $(cat err)"
  done
  "$LOCKSTEP" --version >/dev/full 2>err && bad "--version > /dev/full succeeds"
fi

# --- a warm-up without steps after it ---
expect 2 "--warmup 5 leaves no steps to measure of 3 steps" bench scaling -n 1,2 --out w -- "${train[@]}" --max_steps 3
expect 2 "--warmup 5 leaves no steps to measure of 4 steps" bench scaling -n 1,2 --out w -- "${train[@]}" --max_train_steps 8 --epochs 1
expect 2 "1cpu_b: --warmup 5 leaves no steps to measure of 5 steps" bench ab -n 1 --out w --a "" --b "--max_steps 5" -- "${train[@]}"
[ ! -e w ] || bad "a refused benchmark creates files"
expect 0 "run_1 has 14 steps, none after a warm-up of 14" bench scaling --warmup 14 s

# --- truncated files ---
mkdir cut && head -c 300 s/1gpu_single/run_1/training_metrics.json >cut/x.json
expect 3 "bad input data: no run to compare: cut/x.json: line" bench scaling cut
expect 3 "bad input data: no run to compare: cut/x.json: line" bench strategies --json cut

# --- strategy and batch from the DeepSpeed JSON ---
echo '{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}}' >ds.json
bench scaling -n 1,2 --repeat 1 --deepspeed_config ds.json --dry_run -- "${plain[@]}" >out 2>err || bad "JSON: $(cat err)"
grep -q -- "-n 2 --strategy zero2 --grad_accum_steps 2 --enforce_global_batch_size 8 .*/2gpu_zero2/" out || bad "zero2 and batch 8 from the JSON: $(cat out)"
grep -q -- "-n 1 --strategy single --grad_accum_steps 4 --enforce_global_batch_size 8 " out || bad "one worker with the JSON: $(cat out)"
expect 0 "2gpu_zero1/" bench scaling -n 1,2 --layout zero1 --dry_run -- "${plain[@]}" --deepspeed_config ds.json
expect 0 "2gpu_zero3/" bench scaling -n 1,2 --dry_run -- "${train[@]}" --strategy zero3
expect 2 "leave one out" bench scaling -n 1,2 --layout ddp --dry_run -- "${train[@]}" --strategy zero3
expect 2 "leave one out" bench strategies -n 1,2 --dry_run -- "${train[@]}" --strategy zero3
expect 0 "--grad_accum_steps 2 --enforce_global_batch_size 4" bench scaling -n 2 --dry_run -- "${train[@]}" --enforce_global_batch_size 4
expect 2 "--enforce_global_batch_size 2: the global batch is" bench scaling -n 1,2 --dry_run -- "${train[@]}" --global_batch_size 4 --enforce_global_batch_size 2
expect 2 "--enforce_global_batch_size 1 does not match the step of 2" bench scaling -n 1,2 --weak --dry_run -- "${train[@]}" --enforce_global_batch_size 1

# --- the command line of the scaling study's runner: its defaults, model, folders and validation ---
mkdir -p r1/src && tokens r1/train_small.bin 10000 && tokens r1/val_small.bin 2000 2
echo '{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 1}}' >r1/src/deepspeed_config.json
(cd r1 && bench scaling --gpus 1,2,4 --seq_len 32 --dry_run --use_slurm_tmpdir >../out 2>../err) || bad "the scaling study's runner: $(cat err)"
[ "$(ls r1/checkpoint/scaling_runs/*)" = "$(printf '1gpu_baseline\n2gpu_deepspeed\n4gpu_deepspeed')" ] || bad "the folders of the scaling study's runner: $(ls -R r1/checkpoint)"
[ "$(grep -c "^DRY RUN: " out)" = 3 ] && ! grep -q -- "--max_val_steps\|--max_steps" out || bad "one run each, with validation: $(cat out)"
grep -q -- "--epochs 1 --seq_length 32 --deepspeed_config src/deepspeed_config.json --train_data_path train_small.bin --val_data_path val_small.bin .*-n 4 .*--grad_accum_steps 2 .*/4gpu_deepspeed/run_1" out ||
  bad "the options of the scaling study's runner: $(cat out)"
(cd r1 && eval "$(sed -n 's/^DRY RUN: \(.*-n 2 .*\)/\1/p' ../out) --print_config" >../out 2>../err) || bad "$(cat err)"
grep -q "^ *variant *r1 " out || bad "the model of the scaling study's runner: $(grep variant out)"
for flags in "" "--repeat 2" --allow_mismatch "--precision fp32"; do # none of its own: in its folder it is the runner
  (cd r1 && bench scaling --dry_run $flags >../out 2>../err) && grep -q "train --run_type optimized .*/4gpu_deepspeed/run_1" out || bad "the scaling study's runner with '$flags': $(cat err out)"
done
grep -q -- "--precision fp32 " out || bad "the precision: $(cat out)"
(cd r1 && bench scaling --dry_run --steps 3 >../out 2>../err) && bad "an option that the scaling study's runner does not have"
expect 2 "contradict each other" bench scaling --gpus 1,2 --use_slurm_tmpdir --no_use_slurm_tmpdir
# made in scratch space, and copied when they end, also after a failure
export SLURM_TMPDIR=$SCRATCH/fast
bench scaling -n 1 --repeat 1 --steps 6 --out copied --use_slurm_tmpdir -- "${train[@]}" --threads 1 >out 2>err || bad "scratch space: $(cat err)"
grep -q "checkpoint_path=$SCRATCH/fast/scaling_runs/1gpu_single/run_1 " copied/1gpu_single/run_1/RUN_COMPLETE.txt || bad "not made in scratch space: $(cat copied/1gpu_single/run_1/RUN_COMPLETE.txt)"
[ -s copied/1gpu_single/run_1/train.log ] && [ -z "$(find "$SCRATCH/fast" -type f)" ] || bad "the copy: $(find copied fast)"
grep -q '"copied/1gpu_single/run_1/training_metrics.json"' copied/scaling_report.json || bad "metrics_paths: $(cat copied/scaling_report.json)"
SLURM_TMPDIR=$SCRATCH/other expect 0 "run_1  exists" bench scaling -n 1 --repeat 1 --steps 6 --out copied --resume --use_slurm_tmpdir -- "${train[@]}" --threads 1
bench scaling -n 1,2 --repeat 1 --steps 6 --out fails --use_slurm_tmpdir -- "${train[@]}" --threads 1 --comm_timeout 1e-9 >out 2>err &&
  bad "a run whose collectives time out succeeds"
grep -q "2gpu_ddp run_1 ended with exit code .*(fails/2gpu_ddp/run_1/train.log, fails/2gpu_ddp/run_1/stderr.log)" err && [ -s fails/2gpu_ddp/run_1/stderr.log ] ||
  bad "the logs of a run that failed: $(cat err; find fails)"
unset SLURM_TMPDIR

# --- one round has no interval ---
bench comm -n 2 --max 1K --rounds 1 >out 2>err || bad "one round: $(cat err)"
grep -q "^all_reduce  *1024  *[0-9.]*  *-  " out || bad "one round has an interval: $(cat out)"
grep -q "interval" out && bad "one round has an interval: $(cat out)"
done_tests
