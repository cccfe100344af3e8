#!/usr/bin/env bash
# TensorBoard reads our event files: names, steps and values are those of metrics.jsonl, also after a resume, which hides the values that its
# checkpoint does not have.
. "$(dirname "$0")/../support/lib.sh"
python=${LS_ORACLE:-${XDG_CACHE_HOME:-$HOME/.cache}/lockstep/oracle}/bin/python
[ -x "$python" ] || skip "no $python (./run oracle makes it)"
"$python" -c 'from tensorboard.backend.event_processing import event_accumulator' 2>/dev/null || skip "$python has no package tensorboard"
cd "$SCRATCH" || exit 1
tokens train.bin 3000 && tokens val.bin 400 2
args=(train --data . --model tiny --num_layers 1 --seq_length 32 --train_micro_batch_size_per_gpu 2 --eval_every 2 --save_every 2 --checkpoint_path run
      --lr_schedule constant --max_steps 4 --tensorboard events --reference_output)
expect 0 "RUN_COMPLETE" "$LOCKSTEP" "${args[@]}"
rm -rf run/epoch-1 run/RUN_COMPLETE.txt
expect 0 "resumed from run/step-2" "$LOCKSTEP" "${args[@]}" --resume
"$python" - <<'PY' || bad "TensorBoard sees something else"
import glob, json, struct
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
files = sorted(glob.glob("events/*"))
assert len(files) == 2, files
assert len(list(EventFileLoader(files[0]).Load())) == 1 + 4 + 2, "version, steps, validations"
seen = EventAccumulator("events")
seen.Reload()
steps = [json.loads(l) for l in open("run/metrics.jsonl")]
f32 = lambda x: struct.unpack("<f", struct.pack("<f", x))[0]
for tag, key in (("train_loss", "loss"), ("lr", "lr"), ("grad_norm", "grad_norm"), ("tokens_per_sec", "tokens_per_sec")):
    got = [(e.step, e.value) for e in seen.Scalars(f"Train/Samples/{tag}")]
    want = [(2 * s["step"], f32(s[key])) for s in steps]
    # of the first attempt, steps 1 and 2 stay; their rates are in metrics.jsonl, too
    assert got == want, (tag, got, want)
val = [(e.step, e.value) for e in seen.Scalars("Validation/Samples/val_loss")]
assert [v[0] for v in val] == [4, 8] and val[0][1] == f32(steps[1]["val_loss"]), val
PY

# the block of a DeepSpeed JSON: every series that docs/FORMATS.md lists for it
cat >ds.json <<'JSON'
{"train_micro_batch_size_per_gpu": 2, "wall_clock_breakdown": true, "tensorboard": {"enabled": true, "output_path": "tb", "job_name": "job"}}
JSON
expect 0 "" "$LOCKSTEP" train --data . --model tiny --num_layers 1 --seq_length 32 --max_steps 2 --eval_every 1 --checkpoint_path ds --deepspeed_config ds.json
"$python" - <<'PY' || bad "TensorBoard sees something else of the block of a DeepSpeed JSON"
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
seen = EventAccumulator("tb/job")
seen.Reload()
names = ["lr", "train_loss", "grad_norm", "tokens_per_sec"] + [f"elapsed_time_ms_{p}" for p in ("forward", "backward", "backward_inner", "backward_allreduce", "step")]
want = sorted([f"Train/Samples/{n}" for n in names] + ["Validation/Samples/val_loss"])
assert sorted(seen.Tags()["scalars"]) == want, seen.Tags()
for tag in want:
    assert [e.step for e in seen.Scalars(tag)] == [2, 4], tag
PY
done_tests
