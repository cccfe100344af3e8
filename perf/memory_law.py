"""Bytes per worker for parameters, gradients and optimizer state, compared with the formula of each strategy: 124M on 1, 2, 4 workers.

The formulas are in the head comments of src/parallel/*.c. fp32 with AdamW; a unit is the embedding, a block, or the final norm,
padded to whole blocks of the gradient norm (and to a multiple of the number of workers if sharded). P is the sum of all units,
G is P plus, for a tied head, the embedding again; N workers; one micro-batch per worker:

             parameters   gradients   optimizer            in flight ("buckets" of the plan)
  single     4P           4G          8P
  dp         4P           4G          8P at rank 0, else 0
  ddp        4P           4G          8P
  ddp-shared 4P at rank 0, else 0     4G, 8P/N             ddp with --share_optimizer
  zero1      4P           4G          8P/N
  zero2      4P           4G/N        8P/N                 gradients of two neighbouring units, or --bucket elements if that is more
  zero3      4P/N         4G/N        8P/N                 the same, and two neighbouring uses of units and --prefetch_bucket ahead

Each run trains one short step and writes training_metrics.json; its lockstep.memory has the planned bytes per rank,
which are one allocation. A row is `equal` if the bytes of every rank match the formula exactly.

  python perf/memory_law.py [--model gpt2] [--workers 1,2,4] [--strategies …] [--json]
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import workers as w

SIZES = {"tiny": (4, 128, 256, 4096), "gpt2": (12, 768, 1024, 50257), "gpt2-medium": (24, 1024, 1024, 50257)}  # L C T V
NORM_BLOCK = 1024  # LS_NORM_BLOCK of src/parallel/strategy.h: elements of a block of the gradient norm
BUCKET = PREFETCH = 6553600  # elements, given to every run


def units(model):
    L, C, T, V = SIZES[model]
    return [V * C + T * C] + [12 * C * C + 13 * C] * L + [2 * C]


def law(model, strategy, N):
    """Per rank: bytes by part."""
    cut = strategy.startswith("zero") or strategy == "ddp-shared"
    pad = NORM_BLOCK * (N if cut else 1)
    unit = [(n + pad - 1) // pad * pad for n in units(model)]
    grad = unit[:-1] + [unit[-1] + unit[0]]  # a tied head makes the embedding's second gradient
    P, G = sum(unit), sum(grad)
    stage = 1 if strategy == "ddp-shared" else int(strategy[-1]) if cut else 0
    part = {"parameters": 4 * P // (N if stage >= 3 else 1), "gradients": 4 * G // (N if stage >= 2 else 1),
            "optimizer": 8 * P // (N if stage >= 1 else 1), "buckets": 0}
    if stage >= 2:
        pair = max(a + b for a, b in zip([0] + grad, grad))
        part["buckets"] += 4 * max(pair, min(BUCKET, G))
    if stage >= 3:
        use = unit[:-1] + [unit[-1] + unit[0]]  # the head reads the token embedding, too
        two = max(a + b for a, b in zip(use, use[1:] + [0]))
        part["buckets"] += 4 * min(two + min(PREFETCH, sum(use)), sum(use))
    ranks = [dict(part) for _ in range(N)]
    for r in ranks[1:]:
        if strategy == "dp":
            r["optimizer"] = 0
        if strategy == "ddp-shared":
            r["parameters"] = 0
    return ranks


def measured(o, strategy, N, work):
    """Per rank: bytes by part as the run recorded them; or words."""
    data, run = os.path.join(work, "ids.bin"), os.path.join(work, f"{strategy}-{N}")
    args = [o.lockstep, "train", "--device", "cpu", "--model", o.model, "--train_data_path", data, "--checkpoint_path", run,
            "--seq_length", 16,
            "--micro_batch_size_per_gpu", 1, "--grad_accum_steps", 1, "--max_steps", 1, "--dropout", 0, "--bucket", BUCKET,
            "-n", N, "--strategy", strategy.split("-")[0], "--profile_mode"]
    args += ["--share_optimizer"] if strategy == "ddp-shared" else []
    args += ["--prefetch_bucket", PREFETCH] if strategy == "zero3" else []
    args += ["--vocab_size", w.VOCAB[o.model]] if o.model in w.VOCAB else []
    r = subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=600)
    if r.returncode:
        lines = [x for x in r.stderr.splitlines() if x.startswith("lockstep: ")]
        return (lines or r.stderr.splitlines() or ["no words"])[0]
    with open(os.path.join(run, "training_metrics.json")) as f:
        memory = json.load(f)["lockstep"].get("memory")
    subprocess.run(["rm", "-rf", run])  # a checkpoint of gigabytes
    return memory["per_rank"] if memory else "this build records no lockstep.memory"


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("--lockstep", default=os.environ.get("LOCKSTEP", "build/lockstep"))
    a.add_argument("--model", default="gpt2", choices=sorted(SIZES))
    a.add_argument("--workers", default="1,2,4")
    a.add_argument("--strategies", default="single,dp,ddp,ddp-shared,zero1,zero2,zero3")
    a.add_argument("--json", action="store_true")
    o = a.parse_args()
    w.compare.check_program(a, o.lockstep)
    w.compare.end_on_sigterm()
    rows, exact = [], sum(units(o.model))
    with tempfile.TemporaryDirectory(prefix="lockstep-memory-") as work:
        w.write_ids(os.path.join(work, "ids.bin"), o.model, 1000)
        for strategy in o.strategies.split(","):
            for N in (int(x) for x in o.workers.split(",")):
                if strategy == "single" and N > 1:
                    continue
                found = measured(o, strategy, N, work)
                row = {"strategy": strategy, "workers": N}
                if isinstance(found, str):
                    row["refused"] = found
                else:
                    want = law(o.model, strategy, N)
                    row.update(law=want, measured=[{k: r.get(k, 0) for k in want[0]} for r in found],
                               peak_rss=[r.get("peak_rss") for r in found])
                    row["equal"] = row["law"] == row["measured"]
                    row["resident"] = max(sum(r[k] for k in ("parameters", "gradients", "optimizer")) for r in row["measured"])
                    row["of_16P"] = row["resident"] / (16 * exact)
                rows.append(row)
                w.say(f"{strategy} x{N}: " + row.get("refused", "equal to its law" if row.get("equal") else "NOT its law"))
    bad = [r for r in rows if not r.get("equal", True)] or not any("equal" in r for r in rows)
    if o.json:
        print(json.dumps({"model": o.model, "parameters": exact, "rows": rows}, indent=1))
    else:
        print(f"{o.model}: P = {exact} parameters, 16P = {16 * exact / 1e6:.1f} MB; MB of the rank with the most memory\n")
        print("| strategy | workers | parameters | gradients | optimizer | sum | sum / 16P | in flight | the law |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        for r in rows:
            if "refused" in r:
                print(f"| {r['strategy']} | {r['workers']} | {r['refused']} | | | | | | |")
                continue
            m = r["measured"][0]
            words = "equal" if r["equal"] else "differs: " + json.dumps(r["law"][0])
            print(f"| {r['strategy']} | {r['workers']} | " + " | ".join(f"{m[k] / 1e6:.1f}" for k in
                  ("parameters", "gradients", "optimizer")) + f" | {r['resident'] / 1e6:.1f} | {r['of_16P']:.3f} | "
                  f"{m['buckets'] / 1e6:.1f} | {words} |")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
