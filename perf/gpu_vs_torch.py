"""Training speed and memory of lockstep and PyTorch, alternating on the same GPU: tokens/s of whole optimizer steps.
(ls-bench: by name; needs a GPU.)

Both processes stay alive and alternate; only one computes at a time (PyTorch waits for a line on stdin, lockstep is stopped by SIGSTOP
after its queued work is done). A turn is a segment of at least --segment-s seconds; the first two steps after a pause are not counted. A
round has one segment of each side, in rotating order. lockstep is an ordinary `lockstep train --device cuda`, timed by the timestamps in
metrics.jsonl, so that everything between two steps counts. PyTorch (perf/gpu_torch.py) uses all common optimizations: padded vocabulary,
autocast, SDPA, fused AdamW, pinned inputs, no synchronization, torch.compile. --variants adds further runs of lockstep that alternate
with the others: `deterministic` (ours has --no_deterministic unless --deterministic is given) and `fp8` (deterministic, in fp8).

  tokens/s   median over rounds; ratio: lockstep over PyTorch in the same round, median with a 95 % interval of the mean
  memory     GPU memory used by the process (including the CUDA context), and the count of each side
  MFU        tokens/s * (6 (12 L C^2 + V C) + 12 L C T) / peak; the peak is --ceiling TFLOP/s (measured: perf/gpu_roofline.py), else the
             dense data sheet rate of an H200; fp32: a sixth of bf16's, as our products in fp32 are six in bf16

  python perf/gpu_vs_torch.py --cases b64,b16 [--modes compile,eager] [--rounds 5] [--bars] [--out DIR]
  python perf/gpu_vs_torch.py --device cpu --cases dry           # the same protocol with a tiny model on a CPU

Exit code 1: a case has no result, or with --bars, is below its bar.
"""
import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import compare

HERE = os.path.dirname(os.path.abspath(__file__))
MODES = ("eager", "compile", "compile-graphs", "compile-max")

# bar: required tokens/s; aim: target; over: required ratio to PyTorch (mode); memory: maximum GiB
CASES = {
    "b64": dict(model="gpt2", B=64, A=1, T=1024, precision="bf16", bar=610e3, aim=640e3, over=("compile", 1.13), memory=20),
    "b16": dict(model="gpt2", B=16, A=1, T=512, precision="bf16", bar=500e3),
    "ref_bf16": dict(model="gpt2", B=4, A=4, T=512, precision="bf16", bar=380e3, aim=420e3),
    "ref_fp16": dict(model="gpt2", B=4, A=4, T=512, precision="fp16", bar=380e3, aim=420e3),
    "fp32": dict(model="gpt2", B=16, A=1, T=1024, precision="fp32", over=("compile", 1.3)),
    "tf32": dict(model="gpt2", B=16, A=1, T=1024, precision="tf32", over=("compile", 1.0)),
    "medium": dict(model="gpt2-medium", B=32, A=1, T=1024, precision="bf16"),
    "large": dict(model="gpt2-large", B=16, A=1, T=1024, precision="bf16"),
    "xl": dict(model="gpt2-xl", B=8, A=1, T=1024, precision="bf16", over=("compile", 1.05)),
    "dry": dict(model="tiny", B=2, A=2, T=64, precision="fp32", vocab=300),
}


def say(text):
    print(text, file=sys.stderr, flush=True)


def flops_per_token(case):
    L, _, C, _ = compare.SIZES[case["model"]]
    return 6 * (12 * L * C * C + case.get("vocab", 50257) * C) + 12 * L * C * case["T"]


def write_ids(path, n, vocab):
    """Random ids: the first loss of a fresh model is then ln(V) on both sides, which shows that they do the same work."""
    import numpy as np
    np.random.default_rng(1).integers(0, vocab, n, dtype=np.uint16).tofile(path)


def smi(fields):
    try:
        p = subprocess.run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=20)
        return [x.strip() for x in p.stdout.strip().splitlines()[0].split(",")] if p.returncode == 0 else None
    except (OSError, IndexError, subprocess.TimeoutExpired):
        return None


def used_memory():
    row = smi("memory.used")
    return float(row[0]) * 2**20 if row else None


# ---- the two sides ------------------------------------------------------------------------------------------------------

class Ours:
    def __init__(self, o, case, data, work, variant=None):
        self.o, self.case = o, case
        self.name = f"ours, {variant}" if variant else "ours"
        self.tokens = case["B"] * case["A"] * case["T"]
        self.run_dir = os.path.join(work, f"run-{variant or 'plain'}")
        self.log = os.path.join(self.run_dir, "metrics.jsonl")
        shutil.rmtree(self.run_dir, ignore_errors=True)
        p = "fp8" if variant == "fp8" else case["precision"]
        args = [o.lockstep, "train", "--model", case["model"], "--train_data_path", data, "--checkpoint_path", self.run_dir, "--seq_length",
                case["T"], "--micro_batch_size_per_gpu", case["B"], "--grad_accum_steps", case["A"], "--dropout", 0, "--clip", 1.0,
                "--lr_schedule", "constant", "--warmup_steps", 0, "--epochs", 1, "--steps_per_print", 1000000]
        if "vocab" in case:
            args += ["--vocab_size", case["vocab"]]
        args += ["--device", o.device]
        if o.device == "cuda":
            args += ["--precision", "fp32" if p == "tf32" else p] + (["--tf32"] if p == "tf32" else [])
            if not o.deterministic and not variant:
                args += ["--no_deterministic"]
        args += o.ours_args.split()
        self.command = [str(a) for a in args]
        self.out = open(os.path.join(work, f"ours-{variant or 'plain'}.log"), "w")
        self.at, self.rows, self.running = 0, [], True
        self.process = subprocess.Popen(self.command, stdout=self.out, stderr=subprocess.STDOUT, start_new_session=True)

    def read(self):
        """New lines of metrics.jsonl."""
        try:
            with open(self.log) as f:
                f.seek(self.at)
                text = f.read()
        except OSError:
            return 0
        whole = text.rfind("\n") + 1
        self.at += whole
        new = [json.loads(x) for x in text[:whole].splitlines()]
        self.rows += new
        return len(new)

    def check(self):
        if self.process.poll() is not None:
            self.out.flush()
            with open(self.out.name) as f:
                words = f.read()[-3000:]
            raise SystemExit(f"lockstep ended ({self.process.returncode}): {' '.join(self.command)}\n{words}")

    def wait_for(self, n, limit):
        """Waits for n more lines."""
        goal, until = len(self.rows) + n, time.time() + limit
        while len(self.rows) < goal:
            if not self.read():
                self.check()
                if time.time() > until:
                    raise SystemExit(f"lockstep did not finish {n} steps in {limit:.0f} s; see {self.out.name}")
                time.sleep(0.002)

    def pause(self):
        os.killpg(self.process.pid, signal.SIGSTOP)
        self.running = False
        time.sleep(max(0.1, 3 * self.step_time()))  # what is queued runs on
        self.read()

    def step_time(self):
        stamps = [r["time_unix_ms"] for r in self.rows[-6:]]
        return (stamps[-1] - stamps[0]) / 1e3 / (len(stamps) - 1) if len(stamps) > 1 else 1.0

    def warm(self, n):
        self.wait_for(n, self.o.limit)
        self.pause()

    def segment(self):
        os.killpg(self.process.pid, signal.SIGCONT)
        self.running = True
        self.wait_for(3, self.o.limit)  # the first ones have waited, or were queued before
        first = len(self.rows) - 1
        begin = time.time()
        while time.time() - begin < self.o.segment_s or len(self.rows) - first < 4:
            self.wait_for(1, self.o.limit)
        last = len(self.rows) - 1
        seconds = (self.rows[last]["time_unix_ms"] - self.rows[first]["time_unix_ms"]) / 1e3
        self.pause()
        return {"tokens_per_sec": (last - first) * self.tokens / seconds, "steps": last - first, "seconds": seconds,
                "own_median_step": statistics.median(r["step_time_sec"] for r in self.rows[first + 1 : last + 1])}

    def memory(self):
        return {}

    def facts(self):
        return {"first_loss": self.rows[0]["loss"], "command": " ".join(self.command)}

    def close(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)  # nothing of it is wanted: no checkpoint is written
        except ProcessLookupError:
            pass
        self.process.wait()
        self.out.close()


class Torch:
    def __init__(self, o, case, data, work, mode):
        self.o, self.case, self.name = o, case, mode
        self.tokens = case["B"] * case["A"] * case["T"]
        self.err = open(os.path.join(work, f"torch-{mode}.log"), "w")
        args = [o.python, os.path.join(HERE, "gpu_torch.py"), "--data", data, "--model", case["model"], "--batch", case["B"], "--accum", case["A"],
                "--seq", case["T"], "--precision", case["precision"], "--mode", mode, "--device", o.device, "--sdp", o.sdp,
                "--warm", 3 if case["model"] == "gpt2-xl" else 8]
        if "vocab" in case:
            args += ["--vocab", case["vocab"]]
        self.ready, self.speed, self.answers = None, None, []
        self.process = subprocess.Popen([str(a) for a in args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.err, text=True)

    def wait_ready(self):
        """False, with words, when PyTorch cannot do it here."""
        line = self.process.stdout.readline()
        if not line.startswith("{"):
            self.err.flush()
            with open(self.err.name) as f:
                words = (f.read().strip().splitlines() or ["no words"])[-1]
            say(f"  PyTorch {self.name} does not run here: {words}")
            self.close()
            return False
        self.ready = json.loads(line)
        return True

    def ask(self, words):
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"PyTorch {self.name} ended: {self.err.name}")
        return json.loads(line)

    def segment(self):
        if not self.speed:
            a = self.ask("steps 4")
            self.speed = a["seconds"] / a["steps"]
        self.ask("steps 2")
        a = self.ask(f"steps {max(4, round(self.o.segment_s / self.speed))}")
        self.speed = a["seconds"] / a["steps"]
        self.answers.append(a)
        return {"tokens_per_sec": a["steps"] * self.tokens / a["seconds"], "steps": a["steps"], "seconds": a["seconds"]}

    def memory(self):
        return self.ask("memory")

    def facts(self):
        return {**self.ready, "loss": self.answers[-1]["loss"] if self.answers else None}

    def close(self):
        if self.process.poll() is None:
            try:
                self.process.stdin.write("quit\n")
                self.process.stdin.flush()
                self.process.wait(timeout=20 if self.ready else 0)  # while it compiles it does not read
            except (OSError, subprocess.TimeoutExpired):
                pass
            finally:
                self.process.kill()
                self.process.wait()
        self.err.close()


# ---- a case ------------------------------------------------------------------------------------------------------------

def measure(o, name, work):
    case = CASES[name]
    tokens = case["B"] * case["A"] * case["T"]
    say(f"{name}: {case['model']} B{case['B']} x {case['A']} T{case['T']} {case['precision']}")
    data = os.path.join(work, "ids.bin")
    write_ids(data, max(o.data_tokens, 50 * tokens) + 1, case.get("vocab", 50257))
    free = used_memory()
    torches, memory = [], {}
    with contextlib.ExitStack() as stack:

        def start(kind, *args):
            side = kind(o, case, data, work, *args)
            stack.callback(side.close)
            return side

        begin = time.time()
        for mode in o.modes.split(",") if o.modes != "none" else []:  # they compile beside each other: nothing is measured yet
            torches.append(start(Torch, mode))
            if o.one_by_one:
                torches[-1].wait_ready()
                memory[mode] = used_memory()
        torches = [t for t in torches if (t.ready if o.one_by_one else t.wait_ready())]
        names = [t.name + " (attention " + t.ready["sdp"] + ")" for t in torches]
        say(f"  PyTorch is ready after {time.time() - begin:.0f} s: {', '.join(names) or 'none'}")
        before = used_memory()
        mine = start(Ours)
        sides = [mine, *torches]
        begin = time.time()
        mine.warm(o.warm)
        say(f"  ours is ready after {time.time() - begin:.0f} s")
        after = used_memory()
        if after is not None:
            memory["ours"] = after - before
        for variant in o.variants.split(",") if o.variants else []:
            side = start(Ours, variant)
            sides.append(side)
            before = used_memory()
            side.warm(o.warm)
            after = used_memory()
            if after is not None and before is not None:
                memory[side.name] = after - before
        segments = {s.name: [] for s in sides}
        for number in range(o.rounds):
            order = sides[number % len(sides):] + sides[: number % len(sides)]
            for side in order:
                segments[side.name].append(side.segment())
            say(f"  round {number + 1}: " + ", ".join(f"{s.name} {segments[s.name][-1]['tokens_per_sec']:,.0f}" for s in sides))
            clock = smi("clocks.sm,power.draw,temperature.gpu")
            if clock:
                say(f"           SM {clock[0]} MHz, {clock[1]} W, {clock[2]} C")
        rows = []
        for side in sides:
            speeds = [s["tokens_per_sec"] for s in segments[side.name]]
            row = {"side": side.name, "tokens_per_sec": statistics.median(speeds), "segments": segments[side.name],
                   "low": min(speeds), "high": max(speeds), "own_memory": side.memory(), "facts": side.facts(),
                   "device_memory": memory.get(side.name)}
            if side is not mine:
                row["ratios"] = [a["tokens_per_sec"] / b["tokens_per_sec"] for a, b in zip(segments["ours"], segments[side.name])]
                row["ratio"] = statistics.median(row["ratios"])
                row["interval_95"] = compare.interval(row["ratios"])
                if isinstance(side, Ours):
                    row["over"] = {t.name: over(segments[side.name], segments[t.name]) for t in [mine, *torches]}
                if row["device_memory"] is None and row["own_memory"]:
                    row["device_memory"] = row["own_memory"]["reserved"]
            rows.append(row)
    peak = o.ceiling or {"bf16": 989.5, "fp16": 989.5, "tf32": 494.7, "fp32": 989.5 / 6}[case["precision"]] if o.device == "cuda" else None
    for row in rows:
        row["tflops"] = row["tokens_per_sec"] * flops_per_token(case) / 1e12
        row["mfu"] = row["tflops"] / peak if peak else None
    words = "" if o.device == "cpu" else ", ours deterministic" if o.deterministic else ", ours with --no_deterministic"
    result = {"case": name, **case, "words": words, "rows": rows, "flops_per_token": flops_per_token(case), "peak_tflops": peak,
              "peak_from": "--ceiling" if o.ceiling else "datasheet, dense", "memory_before": free}
    result["verdicts"] = verdicts(result)
    return result


def over(a, b):
    """Ratio of the speeds of two sides in the same rounds: median, and a 95 % interval of the mean."""
    ratios = [x["tokens_per_sec"] / y["tokens_per_sec"] for x, y in zip(a, b)]
    return statistics.median(ratios), compare.interval(ratios)


def verdicts(result):
    """(words, holds) of every bar of the case."""
    by = {r["side"]: r for r in result["rows"]}
    mine, out = by["ours"], []
    if "bar" in result:
        out.append((f"{mine['tokens_per_sec']:,.0f} tokens/s, bar {result['bar']:,.0f}", mine["tokens_per_sec"] >= result["bar"]))
    if "over" in result:
        mode, factor = result["over"]
        if mode in by:
            out.append((f"{by[mode]['ratio']:.3f} x PyTorch {mode}, bar {factor:.2f}", by[mode]["ratio"] >= factor))
        else:
            out.append((f"PyTorch {mode} did not run: no ratio, bar {factor:.2f}", False))
    if "memory" in result and mine["device_memory"]:
        gib = mine["device_memory"] / 2**30
        out.append((f"{gib:.1f} GiB on the device, bar {result['memory']}", gib <= result["memory"]))
    return out


def gib(n):
    return f"{n / 2**30:.1f}" if n else "?"


def table(result):
    lines = [f"### {result['case']}: {result['model']}, B{result['B']} x {result['A']}, T{result['T']}, {result['precision']}{result['words']}", "",
             "| side | tokens/s (median) | low … high | ratio (ours / it) | 95 % interval | GiB on the device | TFLOP/s | MFU |",
             "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for r in result["rows"]:
        interval = r.get("interval_95")
        mfu = f"{100 * r['mfu']:.1f} %" if r["mfu"] else ""
        cells = [r["side"], f"{r['tokens_per_sec']:,.0f}", f"{r['low']:,.0f} … {r['high']:,.0f}",
                 f"{r['ratio']:.3f}" if "ratio" in r else "", f"{interval[0]:.3f} … {interval[1]:.3f}" if interval else "",
                 gib(r["device_memory"]), f"{r['tflops']:.1f}", mfu]
        lines.append("| " + " | ".join(cells) + " |")
    lines.append("")
    for r in result["rows"]:
        for other, (ratio, interval) in r.get("over", {}).items():
            lines.append(f"- {r['side']}: {ratio:.3f} x {other}" + (f" ({interval[0]:.3f} to {interval[1]:.3f})" if interval else ""))
    for words, holds in result["verdicts"]:
        lines.append(f"- {'holds' if holds else '**below**'}: {words}")
    return "\n".join(lines)


def environment(o):
    row = smi("name,driver_version,clocks.max.sm,power.limit,memory.total") if o.device == "cuda" else None
    head = subprocess.run(["git", "-C", HERE, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    return {"machine": compare.machine(), "gpu": row, "repository_head": head, "load": compare.load(), "argv": sys.argv[1:]}


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0], epilog="cases: " + ", ".join(CASES))
    a.add_argument("--lockstep", default=os.environ.get("LOCKSTEP", "build/lockstep"))
    a.add_argument("--python", default=os.environ.get("PYTHON", sys.executable), help="Python interpreter with torch")
    a.add_argument("--cases", default="b64,b16,ref_bf16,ref_fp16,tf32,fp32,xl")
    a.add_argument("--modes", default="compile,eager", help=f"modes of PyTorch: {', '.join(MODES)}, or none")
    a.add_argument("--sdp", default="best", help="attention kernel of PyTorch: best (fastest), auto, flash, cudnn, efficient")
    a.add_argument("--rounds", type=int, default=5)
    a.add_argument("--segment-s", type=float, default=2.0)
    a.add_argument("--warm", type=int, default=20, help="warm-up steps of lockstep")
    a.add_argument("--limit", type=float, default=180, help="maximum seconds to wait for lockstep")
    a.add_argument("--budget-s", type=float, default=0, help="do not start a case after this many seconds; 0 = no limit")
    a.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    a.add_argument("--deterministic", action="store_true", help="run lockstep in deterministic mode")
    a.add_argument("--ours-args", default="", help="additional options for lockstep train")
    a.add_argument("--variants", default="", help="more runs of lockstep beside it: deterministic, fp8")
    a.add_argument("--one-by-one", action="store_true", help="start the PyTorch processes one after the other, to measure GPU memory of each")
    a.add_argument("--data-tokens", type=int, default=64_000_000)
    a.add_argument("--ceiling", type=float, default=0, help="measured TFLOP/s of matrix products, for MFU")
    a.add_argument("--bars", action="store_true", help="also exit with code 1 if a case is below its bar")
    a.add_argument("--out", help="folder for gpu_vs_torch.json and .md")
    o = a.parse_args()
    compare.check_program(a, o.lockstep)
    compare.check_modules(a, "numpy")
    names = o.cases.split(",")
    for n in names:
        if n not in CASES:
            a.error(f"no case {n}; there are {', '.join(CASES)}")
    for m in o.modes.split(",") if o.modes != "none" else []:
        if m not in MODES:
            a.error(f"--modes {o.modes}: there is no mode {m}; there are {', '.join(MODES)}, or none alone")
    if o.modes != "none" and not shutil.which(o.python):
        a.error(f"no program {o.python}: --python names one with torch; or give --modes none")
    if o.rounds < 1:
        a.error("--rounds must be at least 1")
    for v in o.variants.split(",") if o.variants else []:
        if v not in ("deterministic", "fp8") or o.device == "cpu":
            a.error(f"--variants {v}: there are deterministic and fp8, on a GPU")
    if o.device == "cpu" and names != ["dry"]:
        a.error("--device cpu is for --cases dry")
    if o.device == "cpu":
        o.data_tokens = 400_000
    compare.end_on_sigterm()
    begin = time.time()
    whole = {"environment": environment(o), "cases": [], "left_out": []}
    text = []
    for n in names:
        if o.budget_s and time.time() - begin > o.budget_s:
            whole["left_out"].append(n)
            say(f"{n}: skipped, time limit reached")
            continue
        with tempfile.TemporaryDirectory(prefix="lockstep-gpu-") as work:
            try:
                result = measure(o, n, work)
            except SystemExit as why:
                say(f"{n}: {why}")
                whole["left_out"].append(n)
                continue
        whole["cases"].append(result)
        text.append(table(result))
        if o.out:  # after each: a run that is cut short leaves what it has
            os.makedirs(o.out, exist_ok=True)
            with open(os.path.join(o.out, "gpu_vs_torch.json"), "w") as f:
                json.dump(whole, f, indent=1)
            with open(os.path.join(o.out, "gpu_vs_torch.md"), "w") as f:
                f.write("\n\n".join(text) + "\n")
    print("\n\n".join(text))
    if whole["left_out"]:
        print(f"\nleft out: {', '.join(whole['left_out'])}")
    below = [f"{c['case']}: {w}" for c in whole["cases"] for w, holds in c["verdicts"] if not holds]
    if o.bars and (below or whole["left_out"]):
        print("\nbelow the bars: " + "; ".join(below + whole["left_out"]))
    sys.exit(1 if whole["left_out"] or (o.bars and below) else 0)


if __name__ == "__main__":
    main()
