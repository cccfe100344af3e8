#!/usr/bin/env bash
# Keys of a DeepSpeed JSON that print and write: times of a step, lines of progress, CSV files, TensorBoard events; and the list of all keys.
. "$(dirname "$0")/../support/lib.sh"
cd "$SCRATCH" || exit 1
tokens train.bin 3000 && tokens val.bin 400 2
cat >ds.json <<'JSON'
{"comment": "a test", "_by": ["hand"], "train_micro_batch_size_per_gpu": 2, "wall_clock_breakdown": true, "steps_per_print": 2,
 "csv_monitor": {"enabled": true, "output_path": "csv", "job_name": "job", "comment": 1},
 "tensorboard": {"enabled": true, "output_path": "tb", "job_name": "job"}, "dump_state": true}
JSON
args=(train --data . --model tiny --num_layers 1 --seq_length 32 --max_steps 4 --eval_every 2 --save_every 2 --checkpoint_path run)
expect 0 "RUN_COMPLETE" "$LOCKSTEP" "${args[@]}" --reference_output --deepspeed_config ds.json
number='[0-9.]*'
[ "$(grep -c "^\[Rank 0\] time (ms) | fwd: $number | bwd: $number | bwd_inner: $number | bwd_allreduce: $number | step: $number$" out)" = 4 ] ||
  bad "not 4 lines of times: $(cat out)"
[ "$(grep -c '^\[Rank 0\] step=[24], skipped=0, lr=\[0.0001\], mom=\[(0.9, 0.999)\]$' out)" = 2 ] || bad "not 2 lines of progress: $(cat out)"
grep -q "^\[Rank 0\] epoch=0/micro_step=4/global_step=4, RunningAvgSamplesPerSec=$number, CurrSamplesPerSec=$number, MemAllocated=${number}GB, MaxMemAllocated=${number}GB$" out ||
  bad "no line of throughput"
grep -q "without effect: dump_state$" err || bad "other keys are without effect: $(cat err)"
# profile mode has no lines of steps
expect 0 "RUN_COMPLETE" "$LOCKSTEP" "${args[@]}" --reference_output --profile_mode --deepspeed_config ds.json --checkpoint_path quiet --max_steps 1
grep -q "time (ms)" out && bad "lines of steps in profile mode"

# the CSV files; a resumed run replaces what its checkpoint does not have; a new one begins another part
rm -rf csv
expect 0 "" "$LOCKSTEP" "${args[@]}" --deepspeed_config ds.json
rm -rf run/epoch-1 run/RUN_COMPLETE.txt
printf '9,0.1' >>csv/job/Train_Samples_lr.csv # torn
expect 0 "resumed from run/step-2" "$LOCKSTEP" "${args[@]}" --deepspeed_config ds.json --resume
python3 - <<'PY' || bad "CSV files"
import json, os
steps = [json.loads(l) for l in open("run/metrics.jsonl")]
def read(name):
    text = open(f"csv/job/{name}.csv", newline="").read()
    assert text.endswith("\r\n") and text.count("\r\n") == text.count("\n"), (name, text)
    return [row.split(",") for row in text.split("\r\n")[:-1]]
assert read("Train_Samples_lr") == [["step", "lr"]] + [[str(2 * s["step"]), repr(s["lr"])] for s in steps]
assert read("Train_Samples_train_loss") == [["step", "train_loss"]] + [[str(2 * s["step"]), repr(s["loss"])] for s in steps]
for part in ("forward", "backward", "backward_inner", "backward_allreduce", "step"):
    rows = read(f"Train_Samples_elapsed_time_ms_{part}")
    assert rows[0] == ["step", f"elapsed_time_ms_{part}"] and [r[0] for r in rows[1:]] == ["2", "4", "6", "8"], rows
assert [r[0] for r in read("Validation_Samples_val_loss")] == ["step", "4", "8"]
assert not os.path.exists("csv/job/Train_Samples_loss_scale.csv")
PY
cp csv/job/Train_Samples_lr.csv before.csv
expect 0 "" "$LOCKSTEP" "${args[@]}" --deepspeed_config ds.json --checkpoint_path other --max_steps 1
cmp -s before.csv <(head -c "$(stat -c %s before.csv)" csv/job/Train_Samples_lr.csv) || bad "a new run lost earlier rows"
tail -n 2 csv/job/Train_Samples_lr.csv | grep -q "step,lr" || bad "a new run has no header of its own"

# resumed from another folder: relative folders of the JSON are where the run was started first, and outside the run they are typed again
mkdir -p away && rm -rf other/epoch-1 other/RUN_COMPLETE.txt
(cd away && expect 2 "outside the run folder; repeat --deepspeed_config" "$LOCKSTEP" train --resume ../other --max_steps 2; exit $n_bad) || bad "what the folder records decides where files go"
expect 0 "" "$LOCKSTEP" train --resume other --deepspeed_config ds.json --max_steps 2
[ ! -e away/csv ] && [ ! -e away/tb ] || bad "the JSON's folders are relative to where the run is resumed: $(ls away)"
tail -n 1 csv/job/Train_Samples_lr.csv | grep -q "^4," || bad "no row of the resumed run: $(tail -n 2 csv/job/Train_Samples_lr.csv)"

# --tensorboard without a JSON; the same bits with and without
expect 0 "" "$LOCKSTEP" "${args[@]}" --tensorboard events/here --checkpoint_path a
[ "$(find events/here -name 'events.out.tfevents.*' -size +400c | wc -l)" = 1 ] || bad "no event file: $(find events)"
expect 0 "" "$LOCKSTEP" "${args[@]}" --checkpoint_path b
same a/epoch-1/model.safetensors b/epoch-1/model.safetensors
[ ! -w /proc ] || expect 3 "/proc/none" "$LOCKSTEP" "${args[@]}" --tensorboard /proc/none --checkpoint_path c

# every key in one of three groups, with its flag: where one is refused, and with --print_config
cat >bad.json <<'JSON'
{"train_micro_batch_size_per_gpu": 2, "gradient_cliping": 1, "comment": "x", "aio": {"block_size": 1}, "amp": {"enabled": true},
 "tensor_parallel": {"autotp_size": 2}, "fp16": {"enabled": 1}}
JSON
expect 2 "'gradient_cliping' is not a DeepSpeed key.* (and 2 more problems)" "$LOCKSTEP" "${args[@]}" -n 2 --deepspeed_config bad.json
python3 - <<'PY' || bad "the groups: $(cat err)"
import re
text = open("err").read()
groups = re.search(r"  honoured\n(.*)  ignored\n(.*)  refused\n((?:    [^\n]*\n)*)", text, re.S)
rows = [[line.split() for line in g.splitlines()] for g in groups.groups()]
assert rows[0] == [["train_micro_batch_size_per_gpu", "--micro_batch_size_per_gpu"], ["tensor_parallel.autotp_size", "--tp"]], rows[0]
assert [r[0] for r in rows[1]] == ["comment", "aio"], rows[1]
assert [r[:3] for r in rows[2]] == [["line", "1:", "'gradient_cliping'"], ["line", "1:", "'amp'"], ["line", "2:", "'fp16.enabled'"]], rows[2]
assert "'gradient_clipping'" in rows[2][0] and "--precision" in rows[2][2], rows[2]
assert text.count("  refused") == 1
PY
# as DeepSpeed's own command line, with comments and a trailing comma
sed '1s|^{|# of a user\n{ // JSON\n|; $s|}$|,}|' ds.json >commented.json
expect 0 "^  ignored" "$LOCKSTEP" "${args[@]}" --print_config --deepspeed --deepspeed_config commented.json
expect 0 "^  ignored" "$LOCKSTEP" "${args[@]}" --print_config --deepspeed_config commented.json --deepspeed
expect 0 "^  ignored" "$LOCKSTEP" "${args[@]}" --print_config --deepspeed_config ds.json
grep -q "^    wall_clock_breakdown" err || bad "--print_config does not list the keys: $(cat err)"
# what is honoured in part or has no effect; values that are refused with the options are in the third group
cat >sums.json <<'JSON'
{"train_micro_batch_size_per_gpu": 2, "communication_data_type": "fp16", "prescale_gradients": true, "gradient_predivide_factor": 2.0,
 "activation_checkpointing": {"number_checkpoints": 4, "cpu_checkpointing": true, "contiguous_memory_optimization": false}}
JSON
expect 0 "^    activation_checkpointing.number_checkpoints  *--recompute, in part: one" "$LOCKSTEP" "${args[@]}" --print_config --deepspeed_config sums.json
sed -n '/^  ignored/,/^  refused/p' err >ignored
for key in communication_data_type prescale_gradients gradient_predivide_factor; do
  [ "$(grep -c "^    $key " err)" = 1 ] && grep -q "^    $key  *gradients are summed in fp32" ignored || bad "$key is not ignored with a reason: $(cat err)"
done
[ "$(grep -c "^    activation_checkpointing.* in part" err)" = 2 ] && grep -q "^    none" err || bad "the groups: $(cat err)"
# a precision that is not enabled stands for no option
echo '{"train_micro_batch_size_per_gpu": 2, "fp16": {"enabled": false}, "bf16": {"enabled": "auto"}}' >off.json
expect 0 "^    fp16.enabled *$" "$LOCKSTEP" "${args[@]}" --print_config --device cpu --deepspeed_config off.json
grep -q -e "^    [bf]*16.enabled .*--precision" err && bad "a precision that is off: $(cat err)"
for text in '{"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2}' '{"fp16": {"enabled": true}}'; do
  echo "$text" >late.json
  expect 2 "^    with the options, the model and this machine: .*\(fp16\|7\)" "$LOCKSTEP" "${args[@]}" --device cpu --print_config --deepspeed_config late.json
  sed -n '/^  refused/,$p' err | grep -q "^    none" && bad "refused and not: $(cat err)"
done
done_tests
