"""bf16 against fp32 on this CPU, and against PyTorch: GPT-2 training speed in interleaved rounds, and products against the instruction's peak.

A round runs in sequence, each in a separate process: lockstep in fp32 and in bf16, then PyTorch in fp32 and in bf16 (autocast), eager and
compiled (perf/torch_gpt2.py). All do the same work: forward, loss over all rows, backward, clipping at norm 1, AdamW; the same file of ids, the same
batch. The first step of a process is not counted. Ratios are made within a round and printed with 95 % intervals:

  bf16 / fp32        tokens/s of lockstep in bf16 over lockstep in fp32
  bf16 / PyTorch     tokens/s of lockstep in bf16 over the fastest mode of PyTorch in round 1, which alone is measured again

Then `lockstep bench gemm --precision bf16`: the products of a step against the peak of the multiply instruction on registers alone.
Where the CPU has no bf16 instructions the program emulates them, and these figures mean nothing: the script ends with exit code 77.

  python perf/cpu_bf16.py --lockstep build/lockstep [--rounds 5] [--steps 3] [--threads N] [--no_torch | --modes 'fp32 eager,bf16 compile'] [--json]
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from types import SimpleNamespace

import train_vs_torch as base

import compare

MODES = ("fp32 eager", "fp32 compile", "bf16 eager", "bf16 compile")


def ours(o, precision, data, work):
    run = os.path.join(work, "run-" + precision)
    subprocess.run(["rm", "-rf", run], check=True)
    args = [o.lockstep, "train", "--device", "cpu", "--precision", precision, "--model", o.model, "--train_data_path", data,
            "--checkpoint_path", run, "--seq_length", o.seq, "--micro_batch_size_per_gpu", o.batch, "--grad_accum_steps", 1,
            "--max_steps", o.steps + 1, "--dropout", 0, "--clip", 1.0, "--threads", o.threads, "--vocab_size", base.VOCAB]
    r = base.run_child(args)
    if r["rc"]:
        raise SystemExit(f"lockstep {precision} failed ({r['rc']}): {r['err'][-2000:]}")
    with open(os.path.join(run, "metrics.jsonl")) as f:
        rows = [json.loads(line) for line in f]
    return {"step": statistics.median(x["step_time_sec"] for x in rows[1:]), "loss": [x["loss"] for x in rows]}


def peer(o, mode, data):
    precision, how = mode.split()
    args = [sys.executable, os.path.join(base.HERE, "torch_gpt2.py"), "--data", data, "--model", o.model, "--batch", o.batch, "--seq", o.seq,
            "--steps", o.steps, "--threads", o.threads]
    args += ["--compile"] * (how == "compile") + ["--bf16"] * (precision == "bf16")
    r = base.run_child(args)
    if r["rc"]:
        print(f"PyTorch {mode} does not run here: {(r['err'].strip().splitlines() or ['no words'])[-1]}", file=sys.stderr)
        return None
    d = json.loads(r["out"].strip().splitlines()[-1])
    return {"step": statistics.median(d["steps"]), "loss": d["loss"]}


def products(o):
    """The last row of `bench gemm` for the bf16 kernel of this CPU, alone: the threads of a BLAS would still spin when it begins."""
    def bench(*more):
        r = subprocess.run([o.lockstep, "bench", "gemm", "--device", "cpu", "--precision", "bf16", "--threads", str(o.threads), "--json", *map(str, more)],
                           capture_output=True, text=True, check=True)
        return json.loads(r.stdout)["rows"][-1]
    small = bench("--batch", 1, "--seq", 32, "--layers", 1, "--width", 64, "--vocab", 64, "--turns", 1)
    kernel = next(k for k, v in small.items() if isinstance(v, dict))
    L, _, C, _ = compare.SIZES[o.model]
    return bench("--batch", o.batch, "--seq", o.seq, "--layers", L, "--width", C, "--vocab", base.VOCAB, "--kernels", kernel)


def fastest(row):
    """The mode of PyTorch with the shortest step of a round, or None."""
    found = {k.removeprefix("PyTorch "): v["step"] for k, v in row.items() if k.startswith("PyTorch")}
    return min(found, key=found.get) if found else None


def rounds(o, data, work):
    out = []
    for n in range(o.rounds):
        sides = {"lockstep " + p: lambda p=p: ours(o, p, data, work) for p in ("fp32", "bf16")}
        if not o.no_torch:
            modes = [fastest(out[0])] if out else o.modes.split(",")
            sides.update({"PyTorch " + mode: lambda mode=mode: peer(o, mode, data) for mode in modes if mode})
        row = {}
        for name, run in sides.items():
            got = run()
            if got:
                row[name] = got
                print(f"round {n + 1}: {name} {got['step']:.3f} s", file=sys.stderr, flush=True)
        out.append(row)
    return out


def report(o, done, gemm):
    tokens = o.batch * o.seq
    print(f"{compare.machine()}; {o.model}, B {o.batch}, T {o.seq}, threads {o.threads or compare.cores()}")
    for side in done[0]:
        rows = [r[side] for r in done if side in r]
        print(f"  {side:22} {tokens / statistics.median(r['step'] for r in rows):9.1f} tokens/s, last loss {rows[-1]['loss'][-1]:.4f}, {len(rows)} rounds")
    print("bf16 / fp32: " + compare.describe([r["lockstep fp32"]["step"] / r["lockstep bf16"]["step"] for r in done]))
    best = fastest(done[0])
    if best:
        print(f"bf16 / PyTorch ({best}): " + compare.describe([r["PyTorch " + best]["step"] / r["lockstep bf16"]["step"] for r in done]))
    for name, side in gemm.items():
        if isinstance(side, dict) and "peak_gflops" in side:
            print(f"products of a step, {name}: {side['gflops']:.1f} GFLOP/s, {side['gflops'] / side['peak_gflops']:.2f} of the instruction's peak "
                  f"({side['peak_gflops']:.1f})")


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("--lockstep", default="build/lockstep")
    a.add_argument("--model", default="gpt2", choices=sorted(compare.SIZES))
    a.add_argument("--batch", type=int, default=4)
    a.add_argument("--seq", type=int, default=512)
    a.add_argument("--rounds", type=int, default=5)
    a.add_argument("--steps", type=int, default=3)
    a.add_argument("--threads", type=int, default=0)
    a.add_argument("--no_torch", action="store_true")
    a.add_argument("--modes", default=",".join(MODES), help="of PyTorch")
    a.add_argument("--emulated", action="store_true", help="run on a CPU without bf16 instructions, to try the script")
    a.add_argument("--json", action="store_true")
    o = SimpleNamespace(**vars(a.parse_args()))
    compare.check_program(a, o.lockstep)
    if min(o.batch, o.seq, o.rounds, o.steps) < 1 or o.threads < 0:
        a.error("--batch, --seq, --rounds and --steps must be at least 1, and --threads 0 or more")
    if o.seq > compare.SIZES[o.model][3]:
        a.error(f"--seq {o.seq}: {o.model} has {compare.SIZES[o.model][3]} positions")
    compare.end_on_sigterm()
    unknown = set(o.modes.split(",")) - set(MODES)
    if unknown:
        a.error(f"--modes: {', '.join(sorted(unknown))}: there are {', '.join(MODES)}")
    if not o.emulated and not compare.has_bf16(o.lockstep):
        print("SKIPPED: this CPU has no bf16 instructions")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as work:
        data = os.path.join(work, "ids.bin")
        base.write_ids(data, (o.steps + 2) * o.batch * o.seq + 1)
        done = rounds(o, data, work)
    gemm = products(o)
    if o.json:
        print(json.dumps({"machine": compare.machine(), "model": o.model, "batch": o.batch, "seq": o.seq, "rounds": done, "gemm": gemm}))
    else:
        report(o, done, gemm)


if __name__ == "__main__":
    main()
