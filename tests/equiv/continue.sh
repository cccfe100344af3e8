#!/usr/bin/env bash
# A complete run continues with a later step limit and ends with the bytes of a run that had this limit from the start. Without a later
# limit its files are not touched. Epochs have 5 steps: the first limit is inside epoch 1, the last inside epoch 2.
. "$(dirname "$0")/../support/lib.sh"
mkdir -p "$SCRATCH/d" && tokens "$SCRATCH/d/train.bin" 700 && tokens "$SCRATCH/d/val.bin" 300 2
args=(train --data "$SCRATCH/d" --model tiny --num_layers 2 --seq_length 64 --micro_batch_size_per_gpu 1 --global_batch_size 2 --dropout 0.1
      --lr_schedule constant --reference_output)
run() { local name=$1; shift; "$LOCKSTEP" "${args[@]}" --checkpoint_path "$SCRATCH/$name" "$@" >"$SCRATCH/$name.log" 2>&1; }
state() { (cd "$SCRATCH/$1" && find . -type f -exec sha256sum {} + | sort && find . -printf '%p %T@\n' | sort); }

run whole --max_steps 8 || bad "the whole run: $(tail -3 "$SCRATCH/whole.log")"
for limit in 3 4 8; do
  run parts --max_steps $limit --resume || bad "up to step $limit: $(tail -3 "$SCRATCH/parts.log")"
  [ "$(wc -l <"$SCRATCH/parts/metrics.jsonl")" = $limit ] || bad "the run has not $limit steps"
  grep -q RUN_COMPLETE "$SCRATCH/parts.log" || bad "no RUN_COMPLETE at step $limit"
done
for f in epoch-1/model epoch-2/model epoch-2/optimizer; do same "$SCRATCH/whole/$f.safetensors" "$SCRATCH/parts/$f.safetensors"; done
python3 - "$SCRATCH" <<'PY' || bad "metrics of the continued run differ"
import json, sys
a, b = (json.load(open(f"{sys.argv[1]}/{n}/training_metrics.json")) for n in ("whole", "parts"))
assert len(a["epochs"]) == 2
for x, y in zip(a["epochs"], b["epochs"], strict=True):
    for k in ("epoch_idx", "micro_steps", "optimizer_steps", "tokens_processed_global", "train_loss_avg_global", "val_loss_avg_global"):
        assert x[k] == y[k], (k, x[k], y[k])
la, lb = ([{k: v for k, v in json.loads(l).items() if k in ("step", "epoch", "loss", "lr", "grad_norm")} for l in open(f"{sys.argv[1]}/{n}/metrics.jsonl")]
          for n in ("whole", "parts"))
assert la == lb, (la, lb)
PY
grep -q "was written by a run" "$SCRATCH/parts.log" && bad "a constant rate does not depend on the length"

# nothing left: also with a lower limit, with --profile, and on several workers
before=$(state parts)
for more in "--max_steps 8" "--max_steps 2" "--epochs 2 --max_steps 8 --profile" "--max_steps 8 -n 2"; do
  # shellcheck disable=SC2086
  run parts --resume $more
  code=$?
  [ $code = 0 ] || bad "$more: exit code $code: $(tail -3 "$SCRATCH/parts.log")"
  grep -q "nothing is left to do.*8 steps" "$SCRATCH/parts.log" || bad "$more: no message: $(tail -3 "$SCRATCH/parts.log")"
  grep -q RUN_COMPLETE "$SCRATCH/parts.log" && bad "$more: RUN_COMPLETE printed again"
  grep -q max_train_steps "$SCRATCH/parts.log" && bad "$more: advice about a limit that was not given"
done
[ "$before" = "$(state parts)" ] || bad "a run with nothing left to do changed its folder: $(diff <(echo "$before") <(state parts))"
# files that are missing (the run was killed after its last checkpoint) are written
rm "$SCRATCH/parts/RUN_COMPLETE.txt" "$SCRATCH/parts/training_metrics.json"
run parts --resume --max_steps 8 || bad "the last files: $(tail -3 "$SCRATCH/parts.log")"
[ -e "$SCRATCH/parts/training_metrics.json" ] || bad "training_metrics.json is not written again"
# other training data is refused, also with as many tokens
cp "$SCRATCH/d/train.bin" "$SCRATCH/kept.bin"; tokens "$SCRATCH/d/train.bin" 700 3
cp -r "$SCRATCH/parts" "$SCRATCH/other"
run other --resume --max_steps 10; code=$?
[ $code = 2 ] || bad "other data: exit code $code, expected 2"
grep -q "written with training data whose hash is [0-9]*, but this run has [0-9]*; use the same" "$SCRATCH/other.log" || bad "other data: $(cat "$SCRATCH/other.log")"
cp "$SCRATCH/kept.bin" "$SCRATCH/d/train.bin"

# a schedule that depends on the length of the run: allowed, with a message
run cosine --lr_schedule cosine --max_steps 2 || bad "cosine"
run cosine --lr_schedule cosine --max_steps 4 --resume || bad "cosine, resumed"
grep -q "run of 2 steps: from step 3 on, .* cosine schedule over 4 steps" "$SCRATCH/cosine.log" || bad "no message: $(cat "$SCRATCH/cosine.log")"
run cosine --lr_schedule cosine --max_steps 3 --resume || bad "cosine, complete"
grep -q "learning rates are those" "$SCRATCH/cosine.log" && bad "rates of steps that do not follow: $(cat "$SCRATCH/cosine.log")"
grep -q "complete after 4 steps and 1 epoch;" "$SCRATCH/cosine.log" || bad "no message: $(cat "$SCRATCH/cosine.log")"
# epochs that are complete stay as they are when --max_train_steps is raised; the message tells that
run short --max_train_steps 2 || bad "--max_train_steps"
run short --max_train_steps 6 --resume || bad "--max_train_steps, raised"
grep -q "after 1 step and 1 epoch; .*higher --max_train_steps does not" "$SCRATCH/short.log" || bad "no message: $(cat "$SCRATCH/short.log")"

# validation data without a validation batch: 0.0, as the scaling study writes; without validation data: null
python3 - "$SCRATCH" "$LOCKSTEP" <<'PY' || bad "val_loss_avg_global"
import json, subprocess, sys
d, lockstep = sys.argv[1:]
def val(*words):
    subprocess.run([lockstep, "train", *words, "--model", "tiny", "--num_layers", "1", "--seq_length", "32", "--max_steps", "1",
                    "--checkpoint_path", f"{d}/val"], check=True, capture_output=True)
    text = open(f"{d}/val/training_metrics.json").read()
    m = json.loads(text)
    return m["epochs"][0]["val_loss_avg_global"], m["summary"]["best_val_loss"]
assert val("--data", f"{d}/d", "--max_val_steps", "0") == (0.0, 0.0)
assert val("--train_data_path", f"{d}/d/train.bin", "--max_val_steps", "0") == (None, None)
loss, best = val("--data", f"{d}/d")
assert loss == best and loss > 1
same = val("--data", f"{d}/d", "--lr", "0", "--train_micro_batch_size_per_gpu", "3")
for workers in ("1", "2"): # 9 sequences are less than one batch of 10: all of them count, and nothing else
    few = val("--data", f"{d}/d", "--lr", "0", "--train_micro_batch_size_per_gpu", "10", "-n", workers)
    assert abs(few[0] - same[0]) < 1e-6, (few, same)
PY
done_tests
