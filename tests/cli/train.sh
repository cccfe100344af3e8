#!/usr/bin/env bash
# `train` with bad input: one clear line and the right exit code for each; and the files of a good run.
. "$(dirname "$0")/../support/lib.sh"
d=$SCRATCH/d
mkdir -p "$d" && tokens "$d/train.bin" 6000 && tokens "$d/val.bin" 1500 2
base=(--model tiny --seq_length 64 --micro_batch_size_per_gpu 2 --max_steps 2 --checkpoint_path "$SCRATCH/run")
t() { "$LOCKSTEP" train "$@"; }

# data
expect 2 "train_data_path" t "${base[@]}"
expect 3 "none.bin" t "${base[@]}" --train_data_path "$SCRATCH/none.bin"
head -c 4001 "$d/train.bin" >"$SCRATCH/odd.bin"
expect 3 "odd number" t "${base[@]}" --train_data_path "$SCRATCH/odd.bin"
head -c 100 "$d/train.bin" >"$SCRATCH/short.bin"
expect 3 "50 tokens" t "${base[@]}" --train_data_path "$SCRATCH/short.bin"
python3 -c 'import struct,sys; open(sys.argv[1],"wb").write(struct.pack("<4000H",*[5]*3999,300))' "$SCRATCH/big.bin"
expect 3 "id 300 at position 3999" t "${base[@]}" --train_data_path "$SCRATCH/big.bin"
: >"$SCRATCH/empty.bin"
expect 3 "0 tokens" t "${base[@]}" --train_data_path "$SCRATCH/empty.bin"

seq 3000 >"$SCRATCH/text.txt"
expect 3 "text.txt is text, not a token file; convert it with .lockstep prepare" t "${base[@]}" --train_data_path "$SCRATCH/text.txt"
expect 3 "data $SCRATCH/text.txt: neither a data folder nor a blend file (JSON); convert text with .lockstep prepare" t "${base[@]}" --data "$SCRATCH/text.txt"
expect 3 "data $d:x: 'x' is not a weight" t "${base[@]}" --data "$d:x"
expect 3 "init_from nowhere: no such folder" t "${base[@]}" --data "$d" --init_from nowhere

# flags and configuration
expect 2 "did you mean --epochs" t --data "$d" --epoks 3
expect 2 "unknown option --n_chunk; only the command lines of --preset r3 have it" t --data "$d" --n_chunk 8
expect 2 "unknown option -s" t --data "$d" -s 3
expect 2 "lr inf: must be a finite number" t --data "$d" --lr inf
expect 2 "whole number" t --data "$d" --epochs three
expect 2 "256" t --data "$d" --model tiny --seq_length 300
expect 2 "" t --data "$d" --model tiny --embedding_size 100 --num_heads 3
expect 2 "cpu, cuda, or cuda:N" t --data "$d" "${base[@]}" --device tpu
expect 2 "only for the CPU" t --data "$d" "${base[@]}" --device cuda --compute cpu-ref
expect 2 "the CPU supports only fp32 and bf16.*--device cuda" t --data "$d" "${base[@]}" --precision fp16
expect 2 "add --device cuda" t --data "$d" "${base[@]}" -n 2 --comm nccl
expect 2 "pp 2 x --tp 1 needs a multiple of 2 workers, but this run has 1; use 2 or 4 workers" t --data "$d" "${base[@]}" --pp 2
expect 2 "" t --data "$d" "${base[@]}" --global_batch_size 5
expect 2 "= 2; change it or the batch options" t --data "$d" "${base[@]}" --enforce_global_batch_size 64
echo '{"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}' >"$SCRATCH/triple.json"
expect 2 "7" t --data "$d" --model tiny --seq_length 64 --deepspeed_config "$SCRATCH/triple.json"
echo '{"train_micro_batch_size_per_gpu": 2, "gradient_cliping": 1.0}' >"$SCRATCH/typo.json"
expect 2 "gradient_clipping" t --data "$d" --model tiny --seq_length 64 --deepspeed_config "$SCRATCH/typo.json"
echo '{"train_batch_size": "four"}' >"$SCRATCH/four.json"
expect 2 "'train_batch_size' is \"four\", but must be a whole number" t --data "$d" --model tiny --deepspeed_config "$SCRATCH/four.json"
echo '{"train_micro_batch_size_per_gpu": 2,' >"$SCRATCH/cut.json"
expect 2 "line 2" t --data "$d" --model tiny --deepspeed_config "$SCRATCH/cut.json"

expect 2 "this CPU has" env LS_GEMM=abacus "$LOCKSTEP" train --data "$d" "${base[@]}"
expect 2 "this CPU has" env LS_SIMD=abacus "$LOCKSTEP" train --data "$d" "${base[@]}"

# errors name the option, and what is needed
expect 2 "global_batch_size 16 is not micro-batch size 2 \* --grad_accum_steps 4 \* 1 worker = 8" t --data "$d" "${base[@]}" --global_batch_size 16 --grad_accum_steps 4
expect 2 "schedule foo: neither a schedule (naive, gpipe, 1f1b, interleaved, zb) nor a file" t --data "$d" "${base[@]}" -n 2 --pp 2 --schedule foo
expect 2 "RANK is 1 but WORLD_SIZE is not set" env RANK=1 "$LOCKSTEP" train --data "$d" "${base[@]}"
expect 2 "epochs 99999999999: must be 1 to" t --data "$d" "${base[@]}" --epochs 99999999999

# more threads than CPUs: one line, unless nobody asked for them
cpus=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
expect 0 "^--threads $((cpus + 1)): this process can use only $cpus CPUs*; steps may be slower than with --threads $cpus$" \
  t --data "$d" "${base[@]}" --checkpoint_path "$SCRATCH/many" --max_steps 1 --threads $((cpus + 1))
expect 0 "^--threads $((cpus + 1)): each of the 2 workers can use only" t --data "$d" "${base[@]}" --checkpoint_path "$SCRATCH/many2" --max_steps 1 --threads $((cpus + 1)) -n 2
[ "$(cat "$SCRATCH/out" "$SCRATCH/err" | grep -c "^--threads")" = 1 ] || bad "not one line: $(cat "$SCRATCH/err")"
expect 0 "^--threads $((cpus + 1)) of the earlier run: this process" t --resume "$SCRATCH/many" --max_steps 2
for n in 1 $((cpus + 1)); do
  expect 0 "step" t --data "$d" "${base[@]}" --checkpoint_path "$SCRATCH/default$n" --max_steps 1 -n $n
  grep -q "^--threads" "$SCRATCH/out" "$SCRATCH/err" && bad "a note about threads with -n $n: $(cat "$SCRATCH/err")"
done

# numbers that are not finite: one line for all workers
t --data "$d" "${base[@]}" --max_steps 30 -n 2 --lr 1e6 --clip 0 --warmup_steps 0 --checkpoint_path "$SCRATCH/nan" >"$SCRATCH/out" 2>"$SCRATCH/err"
[ $? = 1 ] || bad "a loss that is not finite: $(tail -3 "$SCRATCH/err")"
[ "$(grep -c 'numerical failure: step' "$SCRATCH/err")" = 1 ] || bad "the failure is printed more than once: $(cat "$SCRATCH/err")"
tail -n 1 "$SCRATCH/nan/events.jsonl" | grep -q '"state": "failed", "reason": "step [0-9]*: .* (a lower --lr' || bad "no reason in $(tail -n 1 "$SCRATCH/nan/events.jsonl")"
"$LOCKSTEP" watch "$SCRATCH/nan" | grep -q "^failed: step [0-9]*: " || bad "watch does not show why a run failed"

# a checkpoint that is being written when the run fails is completed
for st in ddp dp zero2; do
  t --data "$d" "${base[@]}" --max_steps 30 -n 2 --strategy $st --lr 1e6 --clip 0 --warmup_steps 0 --save_every 1 --checkpoint_path "$SCRATCH/nan-$st" >"$SCRATCH/out" 2>"$SCRATCH/err"
  step=$(sed -n 's/.*numerical failure: step \([0-9]*\):.*/\1/p' "$SCRATCH/err")
  [ "$(grep -c 'numerical failure: step' "$SCRATCH/err")" = 1 ] && [ -f "$SCRATCH/nan-$st/step-$((step - 1))/model.safetensors" ] ||
    bad "$st: failed at step $step, but the checkpoint before it does not exist: $(ls "$SCRATCH/nan-$st"); $(tail -2 "$SCRATCH/err")"
done

# --json: one JSON object on stdout, everything else on stderr
for n in 1 2; do
  t --data "$d" "${base[@]}" -n $n --json --reference_output --checkpoint_path "$SCRATCH/json$n" >"$SCRATCH/out" 2>"$SCRATCH/err" || bad "--json: $(tail -3 "$SCRATCH/err")"
  cmp -s "$SCRATCH/out" "$SCRATCH/json$n/training_metrics.json" || bad "--json -n $n: stdout is not training_metrics.json"
  grep -q RUN_COMPLETE "$SCRATCH/err" || bad "--json -n $n: the markers are not on stderr"
done

# --print_config knows the steps of the run
expect 0 "^total_steps  *2 " t --data "$d" "${base[@]}" --print_config

# a good run and its files
expect 0 "RUN_COMPLETE" t --data "$d" "${base[@]}" --reference_output
python3 - "$SCRATCH/run" <<'PY' || bad "artifacts of the run"
import json, re, sys, os
run = sys.argv[1]
m = json.load(open(f"{run}/training_metrics.json"))
assert m["schema_version"] == "2.0" and m["training_config"]["global_batch_size"] == 2
line = open(f"{run}/RUN_COMPLETE.txt").read()
r = re.match(r"^\[Rank 0\] RUN_COMPLETE checkpoint_path=(.*) world_size=(\d+) tokens_per_sec=(\S+) total_wall_time_sec=(\S+) timestamp_utc=(\S+)\n$", line)
assert r and r[1] == run and float(r[3]) == m["summary"]["mean_tokens_per_sec_global"], line
assert float(r[4]) == m["summary"]["total_wall_time_sec"] and r[5] == m["completion"]["timestamp_utc"]
steps = [json.loads(l) for l in open(f"{run}/metrics.jsonl")]
assert [s["step"] for s in steps] == [1, 2] and all(s["loss"] > 0 and s["grad_norm"] > 0 for s in steps)
assert sorted(os.listdir(f"{run}/epoch-1"))[:2] == ["checksums.json", "config.json"]
PY
grep -q '^\[Rank 0\] LAUNCHER_METADATA_WRITE_DONE path=' "$SCRATCH/out" || bad "no launcher marker"
grep -q '^\[Rank 0\] METRICS_WRITE_DONE path=' "$SCRATCH/out" || bad "no metrics marker"
[ "$(tail -n 1 "$SCRATCH/out")" = "[Rank 0] EXITING cleanly" ] || bad "the last line is not the exit marker"
expect 3 "" "$LOCKSTEP" train --data "$SCRATCH/no-such-folder" --checkpoint_path "$SCRATCH/failed"
grep -q "EXITING cleanly" "$SCRATCH/out" && bad "a failed run prints the exit marker"

# the run folder
expect 2 "" t --data "$d" "${base[@]}" --resume --seed 4 --checkpoint_path "$SCRATCH/run"
if [ "$(id -u)" != 0 ]; then
  mkdir "$SCRATCH/ro" && chmod a-w "$SCRATCH/ro"
  expect 3 "$SCRATCH/ro" t --data "$d" --model tiny --seq_length 64 --max_steps 1 --checkpoint_path "$SCRATCH/ro/run"
fi
: >"$SCRATCH/file"
expect 3 "$SCRATCH/file" t --data "$d" --model tiny --seq_length 64 --max_steps 1 --checkpoint_path "$SCRATCH/file/run"
full() { (ulimit -f 600; trap '' XFSZ; "$LOCKSTEP" train --data "$d" --model tiny --seq_length 64 --max_steps 1 --checkpoint_path "$SCRATCH/full"); }
expect 3 "full" full
[ -e "$SCRATCH/full/epoch-1" ] && bad "a checkpoint that could not be written looks whole"
[ -e "$SCRATCH/full/RUN_COMPLETE.txt" ] && bad "a run that could not be saved looks complete"

# a damaged checkpoint is named, not resumed
python3 - "$SCRATCH/run/epoch-1/model.safetensors" <<'PY'
import sys
f = open(sys.argv[1], "r+b"); f.seek(200000); b = f.read(1); f.seek(200000); f.write(bytes([b[0] ^ 16]))
PY
expect 3 "model.safetensors" t --data "$d" "${base[@]}" --resume
expect 3 "model.safetensors" "$LOCKSTEP" eval --checkpoint "$SCRATCH/run" --data "$d" --seq_length 64

# two runs in one folder: the second is refused, names the first, and changes nothing
mkdir -p "$SCRATCH/both"
exec 9>"$SCRATCH/both/run.lock" && flock -n 9 && echo "pid 4711 on host elsewhere, since 2026-01-01T00:00:00Z" >&9
expect 2 "run.lock (pid 4711 on host elsewhere, since 2026-01-01T00:00:00Z); two runs cannot share a folder" \
  t --data "$d" --model tiny --seq_length 64 --max_steps 1 --checkpoint_path "$SCRATCH/both"
exec 9>&-
[ "$(ls "$SCRATCH/both")" = run.lock ] || bad "a refused run wrote $(ls "$SCRATCH/both")"

# workers that the launcher of another MPI started
expect 2 "" env PMI_RANK=0 PMI_SIZE=2 "$LOCKSTEP" train --data "$d" --model tiny --seq_length 64 --max_steps 1 --checkpoint_path "$SCRATCH/pmi"
[ ! -e "$SCRATCH/pmi/metrics.jsonl" ] || bad "one worker of two trained alone"

# closed standard streams: no log line lands in a file of the run
"$LOCKSTEP" train --data "$d" --model tiny --seq_length 64 --max_steps 2 --verbose --checkpoint_path "$SCRATCH/closed" 0>&- 2>&- >/dev/null ||
  bad "closed stdin and stderr: exit code $?"
python3 -c 'import json, sys; [json.loads(l) for l in open(sys.argv[1])]' "$SCRATCH/closed/metrics.jsonl" || bad "metrics.jsonl of a run without stderr"
done_tests
