"""Everything that is promised of CPUs with many cores and of bf16 on CPUs, measured in one call of less than 8 minutes.

Rounds run, in sequence and on the same cores, each in separate processes (GPT-2 124M, T512, no dropout; the first step is not counted):

  8 x 2      ours ddp on W workers with cores / W threads each, global batch 16: bf16 and fp32 with --share_optimizer, and fp32 without
  part       one worker on the cores of one of them, its share of the batch, the other cores idle
  copies     W of those at once that do not communicate: what the cores and the memory give
  peers      PyTorch DDP over gloo (eager and compiled) and DeepSpeed ZeRO-2 and 3 on W workers, in fp32 and bf16 (autocast; DeepSpeed's bf16 mode)
  all cores  one worker, batch 4: ours in bf16 and fp32; PyTorch in fp32 and bf16, eager and compiled
  products   `lockstep bench gemm`: the products of a step against the measured peak of the instruction (once, at the begin)
  triad      STREAM triad with cores / W and with all threads: the memory's limit

After round 1, of the modes of a peer only the fastest is measured again. Ratios are made within a round; a bar is met if their median reaches it.
What cannot be measured here is listed with the reason: no bf16 instructions (--emulated measures them anyway, which tests the script and nothing
else), no PyTorch, no DeepSpeed (perf/fetch_deepspeed.sh), no time left. The validation loss after 1,000 steps is not part of it.

  python perf/cpu_bars.py [--lockstep build/lockstep] [--workers 8] [--budget-s 460] [--rounds 5] [--out FILE] [--json]
  python perf/cpu_bars.py --emulated --model tiny --seq 64 --workers 2 --steps 1 --rounds 2 --budget-s 60      # a trial of the script
"""
import argparse
import json
import os
import statistics
import sys
import tempfile
from types import SimpleNamespace

import compare
import workers as w

ALONE = ("fp32 eager", "bf16 eager", "bf16 compile", "fp32 compile")
PEERS = ("torch ddp", "deepspeed zero2", "deepspeed zero3")
DDP_COMPILED = ("torch ddp bf16 compile", "torch ddp fp32 compile")


def options():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("--lockstep", default=os.environ.get("LOCKSTEP", "build/lockstep"))
    a.add_argument("--model", default="gpt2", choices=["tiny", "gpt2", "gpt2-medium"])
    a.add_argument("--seq", type=int, default=512)
    a.add_argument("--global_batch", type=int, default=16, help="sequences per step over all workers")
    a.add_argument("--micro", type=int, default=2, help="sequences per micro-batch of the workers, on both sides")
    a.add_argument("--alone_batch", type=int, default=4, help="sequences of one worker on all cores")
    a.add_argument("--workers", type=int, default=8)
    a.add_argument("--steps", type=int, default=1, help="timed steps per run, after one warm-up step")
    a.add_argument("--rounds", type=int, default=5, help="at most")
    a.add_argument("--budget-s", type=float, default=460, help="seconds of the whole call; 0: no limit")
    a.add_argument("--emulated", action="store_true", help="also bf16 on a CPU without its instructions")
    a.add_argument("--no_peers", action="store_true")
    a.add_argument("--peer_precisions", default="fp32,bf16", help="of PyTorch and DeepSpeed; fewer of them take less time")
    a.add_argument("--bars", action="store_true", help="only what a bar needs: no workers in fp32, no triad")
    a.add_argument("--json", action="store_true")
    a.add_argument("--out", help="JSON file, updated after each result")
    o = a.parse_args()
    compare.check_program(a, o.lockstep)
    if min(o.workers, o.micro, o.global_batch, o.steps, o.rounds, o.alone_batch, o.seq) < 1:
        a.error("--workers, --micro, --global_batch, --alone_batch, --seq, --steps and --rounds must be at least 1")
    if not o.budget_s >= 0:
        a.error(f"--budget-s {o.budget_s}: give a number of seconds, or 0 for no limit")
    if o.out:
        o.out = compare.check_out(a, o.out)
    o.cores = compare.cores()
    o.threads = max(1, o.cores // o.workers)
    o.seq = min(o.seq, w.POSITIONS.get(o.model, 1024))
    o.peer_precisions = sorted(set(o.peer_precisions.split(",")))
    if not set(o.peer_precisions) <= {"fp32", "bf16"}:
        a.error("--peer_precisions: fp32, bf16 or both, with a comma between them")
    if o.global_batch % (o.workers * o.micro):
        a.error(f"global batch {o.global_batch} does not divide into {o.workers} workers x micro-batches of {o.micro}")
    return o


def has_module(name):
    g = w.Group()
    g.start([sys.executable, "-c", f"import {name}"], w.cores(10**6), w.peer_env())
    return g.wait(60)


def torch_alone(o, data, mode, limit=1e9):
    """perf/torch_gpt2.py on all cores."""
    precision, how = mode.split()
    args = [sys.executable, os.path.join(w.HERE, "torch_gpt2.py"), "--data", data, "--model", o.model, "--batch", o.alone_batch, "--seq", o.seq,
            "--steps", o.steps, "--threads", o.cores]
    args += ["--compile"] * (how == "compile") + ["--bf16"] * (precision == "bf16")
    g = w.Group()
    with tempfile.TemporaryFile() as out:
        g.start(args, w.cores(o.cores), w.peer_env(), out)
        well = g.wait(limit)
        out.seek(0)
        lines = [x for x in out.read().decode().splitlines() if x.startswith("{")]
    if not well or not lines:
        return {"refused": g.words()}
    r = json.loads(lines[-1])
    return {**w.summed(o.alone_batch * o.seq, r["steps"], 0), "loss": r["loss"], "words": f"torch {r['torch']}"}


def bench_gemm(o, precision, limit, *more):
    """The last row of `lockstep bench gemm`, or a refusal."""
    g = w.Group()
    with tempfile.TemporaryFile() as out:
        g.start([o.lockstep, "bench", "gemm", "--device", "cpu", "--precision", precision, "--threads", o.cores, "--json", *more], w.cores(o.cores), None, out)
        if not g.wait(min(limit, 120)):
            return {"refused": g.words()}
        out.seek(0)
        return json.loads(out.read().decode())["rows"][-1]


def products(o, precision, limit=1e9):
    """Of the kernel that this precision uses, alone (the threads of a BLAS would still spin when it begins): GFLOP/s of all products of a step, and of its
    instruction."""
    small = bench_gemm(o, precision, limit, "--batch", 1, "--seq", 32, "--layers", 1, "--width", 64, "--vocab", 64, "--turns", 1)
    if "refused" in small:
        return small
    name = next(k for k, v in small.items() if isinstance(v, dict))
    size = ["--layers", 2, "--width", 128, "--vocab", 512] if o.model == "tiny" else []
    whole = bench_gemm(o, precision, limit, "--batch", o.alone_batch, "--seq", o.seq, "--turns", 3, "--kernels", name, *size)
    if "refused" in whole:
        return whole
    return {"kernel": name, "gflops": whole[name]["gflops"], "peak_gflops": whole[name].get("peak_gflops")}


class Table:
    def __init__(self, o):
        self.o, self.rounds, self.missing, self.words, self.products = o, [], {}, {}, {}

    def add(self, name, r):
        if r is None:
            return
        if "refused" in r:
            self.missing[name] = r["refused"]
            w.say(f"  {name}: {r['refused']}")
            return
        self.rounds[-1][name] = r
        if "words" in r:
            self.words[name] = r["words"]
        if "bytes_per_s" in r:
            w.say(f"  {name}: {r['bytes_per_s'] / 1e9:.1f} GB/s")
        else:
            w.say(f"  {name}: {r['tokens_per_s']:.1f} tokens/s")
        self.save()

    def rates(self, name):
        return [r[name].get("tokens_per_s", r[name].get("bytes_per_s")) for r in self.rounds if name in r]

    def ratios(self, top, below, factor=1.0):
        """Of the rounds that have `top` and one of `below`, the fastest of which counts."""
        out = []
        for r in self.rounds:
            found = [r[k]["tokens_per_s"] for k in below if k in r]
            if top in r and found:
                out.append(r[top]["tokens_per_s"] / (factor * max(found)))
        return out

    def fastest(self, names):
        """The name whose last result is the best; None: no result."""
        seen = [(self.rates(k)[-1], k) for k in names if self.rates(k)]
        return max(seen)[1] if seen else None

    def bars(self):
        """(words, bar or None, ratios)"""
        o, W = self.o, self.o.workers
        ours = "ours ddp bf16"
        best = "its best precision" if len(o.peer_precisions) > 1 else o.peer_precisions[0]
        mode = "the best mode of PyTorch" + (f" in {best}" if len(o.peer_precisions) < 2 else "")
        rows = []
        for p in ("bf16", "fp32"):
            rows += [(f"ddp x{W} {p} / {W} x one of them alone", 0.85 if p == "bf16" else None, self.ratios(f"ours ddp {p}", [f"part {p}"], W)),
                     (f"ddp x{W} {p} / {W} silent copies", 0.98 if p == "bf16" else None, self.ratios(f"ours ddp {p}", [f"copies {p}"])),
                     (f"{W} silent copies {p} / {W} x one alone (what the machine allows)", None, self.ratios(f"copies {p}", [f"part {p}"], W))]
        rows += [(f"ddp x{W} fp32, one optimizer state / a state each", None, self.ratios("ours ddp fp32", ["ours ddp fp32 replicated"])),
                 (f"ddp x{W} bf16 / PyTorch DDP (gloo), {best}", 1.5, self.ratios(ours, modes("torch ddp"))),
                 (f"ddp x{W} bf16 / DeepSpeed ZeRO-2, {best}", 2.0, self.ratios(ours, modes("deepspeed zero2"))),
                 (f"ddp x{W} bf16 / DeepSpeed ZeRO-3, {best}", 2.0, self.ratios(ours, modes("deepspeed zero3"))),
                 (f"ddp x{W} fp32 / PyTorch DDP (gloo), fp32", None, self.ratios("ours ddp fp32", ["torch ddp fp32", "torch ddp fp32 compile"])),
                 ("all cores, bf16 / fp32", 2.5, self.ratios("ours alone bf16", ["ours alone fp32"])),
                 (f"all cores, bf16 / {mode}", 3.0, self.ratios("ours alone bf16", ["torch " + m for m in ALONE])),
                 (f"all cores, fp32 / {mode}", None, self.ratios("ours alone fp32", ["torch " + m for m in ALONE]))]
        for p, r in self.products.items():
            bar = 0.6 if "amx" in r.get("kernel", "") else 0.85
            share = [r["gflops"] / r["peak_gflops"]] if r.get("peak_gflops") else []
            rows.append((f"products of a step, {p} ({r.get('kernel', 'not measured')}) / the instruction's peak", bar, share))
        return rows

    def result(self):
        rows = [{"what": a, "bar": b, "rounds": c, "median": statistics.median(c) if c else None, "interval_95": compare.interval(c)}
                for a, b, c in self.bars()]
        return {"machine": compare.machine(), "siblings_of_core_0": w.siblings(), "cores": self.o.cores, "workers": self.o.workers,
                "threads": self.o.threads, "model": self.o.model, "seq": self.o.seq, "global_batch": self.o.global_batch,
                "micro": self.o.micro, "alone_batch": self.o.alone_batch, "counted_steps": self.o.steps, "emulated": self.o.emulated,
                "bars": rows, "missing": self.missing, "peers": self.words, "products": self.products, "rounds": self.rounds}

    def save(self):
        if self.o.out:
            with open(self.o.out + ".new", "w") as f:
                json.dump(self.result(), f, indent=1)
            os.replace(self.o.out + ".new", self.o.out)


def modes(peer):
    return [f"{peer} fp32", f"{peer} bf16", *(DDP_COMPILED if peer == "torch ddp" else ())]


def one_round(o, t, budget, data, work):
    def measure(name, f, *args, **kw):
        if name not in t.missing:
            t.add(name, budget.run(name, f, *args, **kw))

    def ours(name, precision, workers, **kw):
        kw.setdefault("strategy", "ddp" if workers > 1 else "single")
        if precision == "bf16" and not o.bf16:
            return
        extra = ["--precision", precision, *kw.pop("more", ())]
        measure(name, w.ours, kw.pop("o", o), data, work, kw.pop("strategy"), workers, kw.pop("threads", o.threads), extra=extra, **kw)

    def peer_modes(names):
        """In round 1 all of them, later the fastest of those that have a result."""
        best = t.fastest(names)
        return [k for k in names if k not in t.missing and (len(t.rounds) == 1 or k == best)]

    share, W = o.global_batch // o.workers, o.workers
    ours("ours ddp bf16", "bf16", W, more=["--share_optimizer"])
    ours("part bf16", "bf16", 1, batch=share)
    ours("copies bf16", "bf16", 1, batch=share, copies=W)

    def workers_of_peer(name):
        measure(name, w.peer, o, data, work, "-".join(name.split()[1:]), W, o.threads)

    for peer in PEERS:
        for name in peer_modes(modes(peer)):
            if len(t.rounds) > 1 or not name.endswith("compile"):
                workers_of_peer(name)
    alone = SimpleNamespace(**{**vars(o), "micro": o.alone_batch})
    for p in ("bf16", "fp32"):
        ours(f"ours alone {p}", p, 1, o=alone, batch=o.alone_batch, threads=o.cores)
    torch = peer_modes(["torch " + m for m in ALONE])
    for name in torch:
        if len(t.rounds) > 1 or name.endswith("eager"):
            measure(name, torch_alone, o, data, name.split(" ", 1)[1])
    if not o.bars:
        fp32_workers(o, ours, measure)
    if len(t.rounds) == 1:  # compiling takes long: nothing else waits for it
        for name in torch:
            if name.endswith("compile"):
                measure(name, torch_alone, o, data, name.split(" ", 1)[1])
        for name in DDP_COMPILED:
            if name not in t.missing:
                workers_of_peer(name)


def fp32_workers(o, ours, measure):
    """What is beside the bars: the workers in fp32, and the memory."""
    share, W = o.global_batch // o.workers, o.workers
    ours("ours ddp fp32", "fp32", W, more=["--share_optimizer"])
    ours("ours ddp fp32 replicated", "fp32", W)
    ours("part fp32", "fp32", 1, batch=share)
    ours("copies fp32", "fp32", 1, batch=share, copies=W)
    measure("triad of one", w.triad, o, 1, o.threads, seconds=1.0)
    measure("triad of all", w.triad, o, W, o.threads, seconds=1.0)


def find_what_is_missing(o, t):
    native = compare.has_bf16(o.lockstep)
    o.bf16 = native or o.emulated
    if not native:
        t.missing["bf16"] = "this CPU has no bf16 instructions" + ("; emulated, so no figure of bf16 means anything" if o.emulated else "")
    torch = not o.no_peers and has_module("torch")
    if not torch:
        t.missing["PyTorch"] = "--no_peers" if o.no_peers else f"{sys.executable} has no module torch"
    deepspeed = torch and has_module("deepspeed")
    if not deepspeed:
        t.missing["DeepSpeed"] = "--no_peers" if o.no_peers else f"no module deepspeed in {w.deepspeed_folder()} (perf/fetch_deepspeed.sh)"
    for peer in PEERS:
        for name in modes(peer):
            if not torch or (peer != "torch ddp" and not deepspeed):
                t.missing[name] = "not installed"
    for m in ALONE:
        if not torch:
            t.missing["torch " + m] = "not installed"
    for name in [k for peer in PEERS for k in modes(peer)] + ["torch " + m for m in ALONE]:
        if not any(p in name.split() for p in o.peer_precisions):
            t.missing.setdefault(name, "left out by --peer_precisions")
    return deepspeed


def describe(t):
    o = t.o
    print(f"{compare.machine()}, hardware threads of the first core: {w.siblings()}; {o.model}, T{o.seq}, {o.workers} workers x {o.threads} threads, "
          f"global batch {o.global_batch}, micro-batch {o.micro}; one worker: batch {o.alone_batch}")
    for name, text in t.words.items():
        print(f"{name}: {text}")
    names = list(dict.fromkeys(k for r in t.rounds for k in r))
    print("\n| run | median | rounds | optimizer, s | exposed communication, s |\n| --- | --- | --- | --- | --- |")
    for name in names:
        rates = t.rates(name)
        splits = [r[name].get("split", {}) for r in t.rounds if name in r]
        parts = [" ".join(f"{s[k]:.3f}" for s in splits if k in s) for k in ("optimizer_sec", "comm_exposed_sec")]
        value = f"{statistics.median(rates) / 1e9:.1f} GB/s" if "triad" in name else f"{statistics.median(rates):.1f} tokens/s"
        print(f"| {name} | {value} | {len(rates)} | {parts[0]} | {parts[1]} |")
    print("\n| figure | bar | found | |\n| --- | --- | --- | --- |")
    for what, bar, ratios in t.bars():
        found = compare.describe(ratios) if ratios else "not measured"
        verdict = "" if bar is None or not ratios else "met" if statistics.median(ratios) >= bar else "missed"
        if verdict and "bf16" in what and "bf16" in t.missing:
            verdict = "emulated: no figure"
        print(f"| {what} | {'' if bar is None else bar} | {found} | {verdict} |")
    for p, r in t.products.items():
        if "gflops" in r:
            print(f"products of a step, {p}, {r['kernel']}: {r['gflops']:.1f} GFLOP/s"
                  + (f" of {r['peak_gflops']:.1f}" if r.get("peak_gflops") else " (the peak of its instruction is not measured)"))
    whole = [k for k in t.missing if k in ("bf16", "PyTorch", "DeepSpeed")]
    for name in whole + [k for k in t.missing if k not in whole and t.missing[k] != "not installed"]:
        print(f"missing: {name}: {t.missing[name]}")


def main():
    o = options()
    compare.end_on_sigterm()
    t, budget = Table(o), w.Budget(o.budget_s)
    w.say(f"{compare.machine()}; {compare.load()}")
    if find_what_is_missing(o, t):
        w.say(f"DeepSpeed: {w.build_deepspeed(o, limit=min(120, budget.left() / 4))} ({w.deepspeed_folder()})")
    for p in ("bf16", "fp32") if o.bf16 else ("fp32",):
        r = products(o, p, limit=budget.left())
        if p == "fp32" and r.get("refused", "").startswith(("lockstep: bad usage", "lockstep: invalid configuration")):
            sys.exit(r["refused"])  # it would refuse every run
        t.products[p] = r if "refused" not in r else {}
        if "refused" in r:
            t.missing[f"products {p}"] = r["refused"]
    with tempfile.TemporaryDirectory(prefix="lockstep-cpu-") as work:
        data = os.path.join(work, "ids.bin")
        w.write_ids(data, o.model, o.global_batch * o.seq * (o.steps + 4) + 1)
        for number in range(o.rounds):
            t.rounds.append({})
            w.say(f"round {number + 1}, {budget.left():.0f} s left")
            one_round(o, t, budget, data, work)
            if not t.rounds[-1]:
                t.rounds.pop()
                break
    for name in budget.out:
        t.missing.setdefault(name + ", later rounds", "no time left")
    t.save()
    if o.json:
        print(json.dumps(t.result(), indent=1))
    else:
        describe(t)
    sys.exit(0 if any(k.startswith("ours") for r in t.rounds for k in r) else 1)


if __name__ == "__main__":
    main()
