"""Compares pipeline schedules: throughput, activation memory, measured and predicted bubble, in interleaved rounds.

Every measurement is a whole `lockstep train` on `--workers` stages (its checkpoint is written to a temporary folder). The first step is
not counted. Throughput is that of the median step; activation memory is that of the largest stage, as planned, which equals the allocation.

  python perf/pipelines.py --lockstep build/lockstep [--model gpt2] [--workers 4] [--threads N] [--micros 16] [--rounds 2] [--steps 2]
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from compare import check_program, describe, end_on_sigterm, machine
from workers import VOCAB, write_ids


def one(o, data, schedule):
    run = tempfile.mkdtemp(prefix="pipeline-", dir=o.scratch)
    words = schedule.split(":")
    args = [o.lockstep, "train", "--device", "cpu", "--model", o.model, "--train_data_path", data, "--checkpoint_path", run,
            "--seq_length", o.seq,
            "--micro_batch_size_per_gpu", o.micro, "--global_batch_size", o.micro * o.micros, "--max_steps", o.steps + 1,
            "--dropout", 0, "--threads", o.threads, "-n", o.workers, "--pp", o.workers, "--schedule", words[0], "--profile_mode"]
    args += ["--interleave", words[1]] if len(words) > 1 else []
    args += ["--vocab_size", VOCAB[o.model]] if o.model in VOCAB else []
    try:
        p = subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=o.limit)
        if p.returncode:
            return {"failed": p.stderr.strip().splitlines()[-1][:200] if p.stderr.strip() else f"exit code {p.returncode}"}
        with open(f"{run}/metrics.jsonl") as f:
            steps = [json.loads(x)["step_time_sec"] for x in f][1:]
        with open(f"{run}/training_metrics.json") as f:
            p = json.load(f)["lockstep"]["pipeline"]
        return {"tokens_per_s": o.micro * o.micros * o.seq / statistics.median(steps), "steps": steps,
                "activation_bytes": max(s["activation_bytes"] for s in p["per_stage"]), "pipeline": p}
    except subprocess.TimeoutExpired:
        return {"failed": f"more than {o.limit} s"}
    finally:
        shutil.rmtree(run, ignore_errors=True)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--lockstep", default="build/lockstep")
    a.add_argument("--model", default="gpt2")
    a.add_argument("--workers", type=int, default=4)
    a.add_argument("--threads", type=int, default=0, help="threads per worker; 0 = cores / workers")
    a.add_argument("--seq", type=int, default=512)
    a.add_argument("--micro", type=int, default=1, help="sequences per micro-batch")
    a.add_argument("--micros", type=int, default=16, help="micro-batches per step")
    a.add_argument("--schedules", default="naive,gpipe,1f1b,interleaved:2,zb")
    a.add_argument("--rounds", type=int, default=2)
    a.add_argument("--steps", type=int, default=2, help="timed steps per run")
    a.add_argument("--scratch", default=None, help="folder for run folders")
    a.add_argument("--limit", type=float, default=300, help="maximum seconds per run")
    a.add_argument("--budget-s", type=float, default=0)
    a.add_argument("--out", help="JSON file for the results")
    o = a.parse_args()
    check_program(a, o.lockstep)
    end_on_sigterm()
    o.threads = o.threads or max(1, len(os.sched_getaffinity(0)) // o.workers)
    begin, found, names = time.monotonic(), {}, o.schedules.split(",")
    print(f"{machine()}; {o.model}, {o.workers} stages x {o.threads} threads, {o.micros} micro-batches of {o.micro} x {o.seq}", flush=True)
    with tempfile.TemporaryDirectory(dir=o.scratch) as d:
        data = os.path.join(d, "ids.bin")
        write_ids(data, o.model, o.seq * o.micro * o.micros * (o.steps + 3) + 1)
        for k in range(o.rounds):
            for name in names if k % 2 == 0 else reversed(names):
                if o.budget_s and time.monotonic() - begin > o.budget_s:
                    continue
                r = one(o, data, name)
                found.setdefault(name, []).append(r)
                if "failed" in r:
                    print(f"round {k + 1} {name}: {r['failed']}", flush=True)
                    continue
                p = r["pipeline"]
                print(f"round {k + 1} {name:14s} {r['tokens_per_s']:8.1f} tokens/s  activations {r['activation_bytes'] / 2**20:8.1f} MiB  "
                      f"bubble {100 * p['bubble_measured']:.1f} % measured, {100 * p['bubble_predicted']:.1f} % predicted; last step "
                      f"{100 * p['bubble_last_step']:.1f} %, {100 * p['bubble_last_step_replayed']:.1f} % replayed", flush=True)
    good = {n: [r for r in rs if "failed" not in r] for n, rs in found.items()}
    out = {"machine": machine(), "options": vars(o), "runs": found, "ratios": {}}
    for top, bottom in (("gpipe", "naive"), ("1f1b", "gpipe"), ("zb", "1f1b")):
        pairs = [x["tokens_per_s"] / y["tokens_per_s"] for x, y in zip(good.get(top, []), good.get(bottom, []))]
        if pairs:
            out["ratios"][f"{top}/{bottom}"] = pairs
            print(f"{top} against {bottom}: {describe(pairs)}")
    if good.get("1f1b") and good.get("gpipe"):
        m = good["1f1b"][0]["activation_bytes"] / good["gpipe"][0]["activation_bytes"]
        out["ratios"]["1f1b/gpipe activations"] = m
        print(f"activation memory, 1f1b against gpipe: {m:.3f}")
    if o.out:
        with open(o.out, "w") as f:
            json.dump(out, f, indent=1)


if __name__ == "__main__":
    sys.exit(main())
