"""Trains the same model on the same text in several precisions and compares the losses with those of the first.
(ls-bench: by name; takes minutes on a GPU, hours on a CPU.)

All runs have the same seed, the same data in the same order and the same options; only --precision differs. Printed are the mean of the training losses
of the last --last steps and the validation loss at the end, each with its difference from the first precision.

  python perf/precision_loss.py --data DIR --precisions bf16,fp8 --device cuda [--steps 2000] [--model gpt2] [--batch 16] [--seq 512]
  python perf/precision_loss.py --data DIR --precisions fp32,bf16 --device cpu --steps 1000 --model tiny --batch 4 --seq 128

DIR is an output folder of `lockstep prepare` with train.bin and val.bin. Exit code 1: a difference is above --limit.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("--lockstep", default=os.environ.get("LOCKSTEP", "build/lockstep"))
p.add_argument("--data", required=True, help="output folder of `lockstep prepare`")
p.add_argument("--precisions", default="bf16,fp8", help="the first one is the reference")
p.add_argument("--device", default="auto")
p.add_argument("--model", default="gpt2")
p.add_argument("--batch", type=int, default=16)
p.add_argument("--seq", type=int, default=512)
p.add_argument("--steps", type=int, default=2000)
p.add_argument("--last", type=int, default=100, help="training steps at the end whose losses are averaged")
p.add_argument("--limit", type=float, default=0.01)
p.add_argument("--out", help="JSON file")
p.add_argument("more", nargs="*", help="options of `lockstep train`, after --")
a = p.parse_args()
if not 0 < a.last <= a.steps:
    p.error("--last must be between 1 and --steps")


def run(work, precision):
    folder = os.path.join(work, precision)
    args = [a.lockstep, "train", "--data", a.data, "--device", a.device, "--precision", precision, "--model", a.model, "--seq_length", a.seq,
            "--micro_batch_size_per_gpu", a.batch, "--global_batch_size", a.batch, "--max_steps", a.steps, "--save_every", 0,
            "--checkpoint_path", folder, *a.more]
    begin = time.time()
    done = subprocess.run([str(x) for x in args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{precision}: exit code {done.returncode}\n{done.stdout[-2000:]}")
    with open(os.path.join(folder, "metrics.jsonl")) as f:
        losses = [json.loads(x)["loss"] for x in f]
    if len(losses) != a.steps:
        sys.exit(f"{precision}: {len(losses)} steps were made, not {a.steps}: the text is too short for them; give `-- --epochs N`")
    with open(os.path.join(folder, "training_metrics.json")) as f:
        val = json.load(f)["epochs"][-1]["val_loss_avg_global"]  # at the end, which need not be the smallest of several epochs
    if val is None:
        sys.exit(f"{precision}: no validation was made: {a.data} has no val.bin, or too short a one")
    shutil.rmtree(folder)
    return {"precision": precision, "train": sum(losses[-a.last:]) / a.last, "val": val, "first": losses[0], "seconds": time.time() - begin,
            "losses": losses}


work = tempfile.mkdtemp(prefix="lockstep-precision-")
try:
    runs = [run(work, x) for x in a.precisions.split(",")]
finally:
    shutil.rmtree(work)
print(f"{a.model}, batch {a.batch} x {a.seq}, {a.steps} steps\n\n| precision | first loss | train, last {a.last} | difference | validation | difference | largest difference of a step |"
      "\n| --- | --- | --- | --- | --- | --- | --- |")
wrong = False
for r in runs:
    train, val = r["train"] - runs[0]["train"], r["val"] - runs[0]["val"]
    step = max(abs(x - y) for x, y in zip(r["losses"], runs[0]["losses"]))
    wrong |= not (abs(train) <= a.limit and abs(val) <= a.limit)
    print(f"| {r['precision']} | {r['first']:.4f} | {r['train']:.4f} | {train:+.4f} | {r['val']:.4f} | {val:+.4f} | {step:.4f} |")
print(f"limit {a.limit:g}: {'exceeded' if wrong else 'kept'}")
if a.out:
    with open(a.out, "w") as f:
        json.dump({"model": a.model, "batch": a.batch, "seq": a.seq, "steps": a.steps, "limit": a.limit, "runs": runs}, f)
sys.exit(wrong)
