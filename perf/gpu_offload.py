#!/usr/bin/env python3
"""gpu_offload.py - what --offload_optimizer cpu costs and saves: the same run with and without it, and without clipping, in turns.

    perf/gpu_offload.py --lockstep build/lockstep                        gpt2-xl, B8 T1024, zero1, bf16, one GPU; checks the bars
    perf/gpu_offload.py --model gpt2 --micro 16 --rounds 3 --no-bars

Each round runs three sides for some steps: plain, offload, and overlap (offload with --clip 0, where units are updated during the backward pass). Runs are
killed after their last step, so no checkpoint is written. Prints tokens/s (median over the steps after the first three of all rounds), the planned memory of
the GPU, and the ratios to plain. The losses of plain and offload must be equal, and those of overlap must be those of one more run without offload and
clipping. The bars are those of the better of the two offloaded sides, which is named.
"""
# ls-bench: by name
import argparse
import json
import os
import random
import re
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import compare

WARM = 3
SIDES = {"plain": [], "offload": ["--offload_optimizer", "cpu"], "overlap": ["--offload_optimizer", "cpu", "--clip", "0"], "unclipped": ["--clip", "0"]}
TIMED = ("plain", "offload", "overlap")


def losses(path):
    try:
        with open(path) as f:
            return [json.loads(line) for line in f if line.endswith("\n")]
    except FileNotFoundError:
        return []


def run(o, work, data, name):
    out = os.path.join(work, name)
    subprocess.run(["rm", "-rf", out], check=True)
    args = [o.lockstep, "train", "--device", o.device, "--model", o.model, "--train_data_path", data, "--checkpoint_path", out, "--seq_length", str(o.seq),
            "--micro_batch_size_per_gpu", str(o.micro), "--grad_accum_steps", str(o.accum), "--strategy", o.strategy, "--precision", "bf16", "--dropout", "0", "--vocab_size",
            str(o.vocab), "--max_steps", "1000000", "--epochs", "1000", "--lr", "1e-4", "--lr_schedule", "constant", "--verbose"] + SIDES[name] + o.args
    begin = time.monotonic()
    with open(os.path.join(work, name + ".log"), "wb") as log:
        p = subprocess.Popen(args, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    rows = []
    try:
        while p.poll() is None and len(rows) < o.steps and time.monotonic() - begin < o.limit:
            time.sleep(0.05)
            rows = losses(os.path.join(out, "metrics.jsonl"))
    finally:
        if p.poll() is None:
            os.killpg(p.pid, signal.SIGKILL)
            p.wait()
    text = open(os.path.join(work, name + ".log"), errors="replace").read()
    total = re.search(r"^\s+total\s+([0-9.]+)\s+one allocation of (\d+) bytes", text, re.M)
    if len(rows) < o.steps or not total:
        sys.exit(f"{name}: {len(rows)} of {o.steps} steps in {time.monotonic() - begin:.0f} s\n{text[-2000:]}")
    first = time.monotonic() - begin
    return rows[:o.steps], int(total.group(2)), first


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--lockstep", default="build/lockstep")
    a.add_argument("--device", default="cuda")
    a.add_argument("--model", default="gpt2-xl")
    a.add_argument("--strategy", default="zero1")
    a.add_argument("--micro", type=int, default=8)
    a.add_argument("--accum", type=int, default=1)
    a.add_argument("--seq", type=int, default=1024)
    a.add_argument("--vocab", type=int, default=50257)
    a.add_argument("--steps", type=int, default=12)
    a.add_argument("--rounds", type=int, default=2)
    a.add_argument("--limit", type=float, default=120, help="seconds of one run")
    a.add_argument("--no-bars", action="store_true")
    a.add_argument("args", nargs="*", help="more options of train, after --")
    o = a.parse_args()
    compare.check_program(a, o.lockstep)
    compare.end_on_sigterm()
    with tempfile.TemporaryDirectory() as work:
        data = os.path.join(work, "ids.bin")
        rng = random.Random(1)
        n = o.micro * o.accum * o.seq * (o.steps + 4) + 1
        with open(data, "wb") as f:
            f.write(struct.pack(f"<{n}H", *(rng.randrange(o.vocab) for _ in range(n))))
        seconds, memory, seen = {side: [] for side in SIDES}, {}, {}
        for k in range(o.rounds):
            first = k % len(TIMED)  # every side is first, in turn
            for side in TIMED[first:] + TIMED[:first] + (("unclipped",) if k == 0 else ()):
                rows, memory[side], whole = run(o, work, data, side)
                got, clips = [(r["loss"], r["grad_norm"]) for r in rows], "--clip" not in SIDES[side]
                if seen.setdefault(clips, got) != got:
                    sys.exit(f"{side}: losses or norms differ: {seen[clips]} and {got}")
                seconds[side] += [r["step_time_sec"] for r in rows[WARM:]]
                print(f"-- {side}: {o.steps} steps after {whole:.0f} s, median step {statistics.median(seconds[side]):.4f} s", flush=True)
    tokens = o.micro * o.accum * o.seq
    rate = {side: tokens / statistics.median(seconds[side]) for side in SIDES}
    for side in SIDES:
        q = statistics.quantiles(seconds[side], n=4)
        print(f"{side:9s} {rate[side]:10.0f} tokens/s ({rate[side] / rate['plain']:.3f} of plain; quartiles of a step {q[0]:.4f} to {q[2]:.4f} s, {len(seconds[side])} steps), "
              f"{memory[side] / 2**30:.2f} GiB on the GPU ({memory[side] / memory['plain']:.3f})")
    print(f"the losses and norms of {o.steps} steps are equal, with clipping and without")
    best = max(("offload", "overlap"), key=rate.get)
    ratio, part = rate[best] / rate["plain"], memory[best] / memory["plain"]
    if o.no_bars:
        return 0
    print(f"bars ({best}): throughput >= 0.6 {'ok' if ratio >= 0.6 else 'MISSED'}, memory < 0.55 {'ok' if part < 0.55 else 'MISSED'}")
    return 0 if ratio >= 0.6 and part < 0.55 else 1


if __name__ == "__main__":
    sys.exit(main())
