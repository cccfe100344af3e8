#!/usr/bin/env python3
"""The cost of checkpoints: a run that saves every K steps against the same run without, directly and with --save_async.

    perf/save_cost.py [--rounds 5] [--steps 24] [--every 6] [--size L,H,C,T,B] [--keep FOLDER] [-- OPTIONS OF train]

Each round runs the variants one after the other, so that slow times of the machine hit all of them; the ratio is taken within a round, and
the median over rounds is printed with the range. Time is that of the epoch without its first two steps: what a step shows, plus
what lies between steps. All runs must end with the same weights."""
import argparse
import hashlib
import json
import os
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("--rounds", type=int, default=5)
p.add_argument("--steps", type=int, default=24)
p.add_argument("--every", type=int, default=6)
p.add_argument("--size", default="4,4,256,256,8", help="layers, heads, width, sequence length, sequences of a step")
p.add_argument("--keep", help="folder for the runs; default: a temporary one beside the program's build folder")
p.add_argument("rest", nargs="*")
a = p.parse_args()
L, H, C, T, B = a.size.split(",")
program = os.environ.get("LOCKSTEP", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "build", "lockstep"))
work = a.keep or tempfile.mkdtemp(prefix="save_cost.", dir=os.path.dirname(os.path.abspath(program)))
os.makedirs(os.path.join(work, "d"), exist_ok=True)
r = random.Random(1)
n = 200000
with open(os.path.join(work, "d", "train.bin"), "wb") as f:
    f.write(struct.pack(f"<{n}H", *(r.randrange(8000) for _ in range(n))))

base = [program, "train", "--data", os.path.join(work, "d"), "--model", "gpt2", "--vocab_size", "8192", "--num_layers", L, "--num_heads", H,
        "--embedding_size", C, "--seq_length", T, "--micro_batch_size_per_gpu", "1", "--global_batch_size", B, "--max_steps", str(a.steps),
        "--dropout", "0", *a.rest]
variants = {"none": ["--save_every", "0"], "direct": ["--save_every", str(a.every)],
            "async": ["--save_every", str(a.every), "--save_async"]}


def run(name):
    folder = os.path.join(work, name)
    shutil.rmtree(folder, ignore_errors=True)
    done = subprocess.run([*base, *variants[name], "--checkpoint_path", folder], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{name}: exit code {done.returncode}\n{done.stdout[-2000:]}")
    with open(os.path.join(folder, "epoch-1", "timings.json")) as f:
        wall = json.load(f)["epochs_done"][0]["wall_time"]
    with open(os.path.join(folder, "metrics.jsonl")) as f:
        steps = [json.loads(line) for line in f]
    wall -= sum(s["step_time_sec"] for s in steps[:2])
    with open(os.path.join(folder, "epoch-1", "model.safetensors"), "rb") as f:
        weights = hashlib.sha256(f.read()).hexdigest()
    size = sum(os.path.getsize(os.path.join(folder, "epoch-1", x)) for x in ("model.safetensors", "optimizer.safetensors"))
    saved = len([x for x in os.listdir(folder) if x.startswith("step-")])
    return wall / (len(steps) - 2), weights, size, saved


ratios, times, weights = {"direct": [], "async": []}, {v: [] for v in variants}, set()
for k in range(a.rounds + 1):  # the first round warms up
    order = list(variants)
    random.Random(k).shuffle(order)
    got = {v: run(v) for v in order}
    weights |= {g[1] for g in got.values()}
    if not k:
        continue
    for v in variants:
        times[v].append(got[v][0])
    for v in ratios:
        ratios[v].append(got[v][0] / got["none"][0])
    print(f"round {k}: " + ", ".join(f"{v} {1e3 * got[v][0]:.1f} ms" for v in variants) +
          f"; checkpoints {got['direct'][3]} and {got['async'][3]}, {got['none'][2] / 1048576:.1f} MiB each", flush=True)
if not a.keep:
    shutil.rmtree(work)
print(f"weights: {'identical in all runs' if len(weights) == 1 else 'DIFFERENT'}")
for v in ratios:
    x = sorted(ratios[v])
    print(f"{v}: step time {statistics.median(x):.4f} x that without checkpoints ({x[0]:.4f} to {x[-1]:.4f}), one checkpoint every {a.every} steps")
sys.exit(len(weights) != 1)
