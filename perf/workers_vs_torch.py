"""Several workers compared with PyTorch DDP and DeepSpeed ZeRO on CPU, and scaling with workers: GPT-2, fp32, constant global batch.

A round runs, for each number of workers W with cores/W threads each, in sequence: `lockstep train -n W` with
every requested strategy, then every peer (perf/torch_workers.py: "ddp" is DistributedDataParallel of PyTorch over
gloo, "zero1" to "zero3" are those of DeepSpeed from build-deepspeed, see perf/fetch_deepspeed.sh). Same file of
ids, same global batch, same micro-batch, same cores for worker r, same work: forward, loss, backward, average over
workers, clipping at norm 1, AdamW. The first step of a run is not counted; a rate is the global batch over the median
of the others. Ratios are per round; their median and 95 % interval are printed. Strategies that the build
rejects are listed and skipped.

With --scaling W, each round also runs, with K = cores/W threads per worker:
  one        one worker on K cores of an idle machine, the whole global batch (in --one-rounds of the rounds: it is long)
  part       one worker on K cores of an idle machine, its share of the batch: as many optimizer steps per token as with W
  copies     W of those at the same time without communication: the limit of the machine for W independent workers
  triad      STREAM triad with 1 x K and W x K threads: the limit of memory bandwidth
  efficiency = ddp on W / (W x one);     allowed = copies / (W x one);     communication = ddp on W / copies

  python perf/workers_vs_torch.py [--workers 8,4,2] [--strategies ddp] [--peers ddp] [--rounds 3] [--steps 2] [--scaling 8]
      [--cores N] [--model gpt2] [--budget-s S] [--json] [--out FILE]

Results are printed immediately (stderr); --out is updated after each measurement, so nothing is lost at the time
limit.
"""
import argparse
import json
import math
import os
import statistics
import tempfile

import compare
import workers as w


def words(value):
    return [x for x in value.replace("none", "").split(",") if x]


def options():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("--lockstep", default=os.environ.get("LOCKSTEP", "build/lockstep"))
    a.add_argument("--model", default="gpt2", choices=["tiny", "gpt2", "gpt2-medium", "gpt2-large"])
    a.add_argument("--seq", type=int, default=512)
    a.add_argument("--global_batch", type=int, default=16, help="sequences per step over all workers")
    a.add_argument("--micro", type=int, default=2, help="sequences per micro-batch on both sides")
    a.add_argument("--cores", type=int, default=0, help="CPU cores to use; 0 = all")
    a.add_argument("--workers", default="8,4,2")
    a.add_argument("--strategies", default="ddp", help="comma-separated: single,dp,ddp,zero1,zero2,zero3")
    a.add_argument("--peers", default="ddp", help="comma-separated: ddp,zero1,zero2,zero3, or none")
    a.add_argument("--scaling", type=int, default=0, metavar="W")
    a.add_argument("--one-rounds", type=int, default=1)
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--steps", type=int, default=2, help="timed steps per run, after one warm-up step")
    a.add_argument("--compile", action="store_true", help="use torch.compile for PyTorch DDP")
    a.add_argument("--budget-s", type=float, default=0, help="stop after this many seconds and print the results so far; 0 = no limit")
    a.add_argument("--json", action="store_true")
    a.add_argument("--out", help="JSON file, updated after each result")
    o = a.parse_args()
    compare.check_program(a, o.lockstep)
    compare.end_on_sigterm()
    o.cores = min(o.cores or compare.cores(), compare.cores())
    o.seq = min(o.seq, w.POSITIONS.get(o.model, 1024))
    o.counts = [int(x) for x in words(o.workers)]
    o.strategies, o.peers = words(o.strategies), words(o.peers)
    for n in o.counts + ([o.scaling] if o.scaling else []):
        if o.global_batch % (n * o.micro):
            a.error(f"global batch {o.global_batch} does not divide into {n} workers x micro-batches of {o.micro}")
    return o


class Table:
    """Rounds of named measurements; a name that was refused is not asked again."""

    def __init__(self, o):
        self.o, self.rounds, self.refused, self.peer_words = o, [], {}, {}
        self.head = {"machine": compare.machine(), "siblings_of_core_0": w.siblings(), "load": compare.load(), "cores": o.cores,
                     "model": o.model, "seq": o.seq, "global_batch": o.global_batch, "micro": o.micro, "counted_steps": o.steps}

    def add(self, name, r):
        if r is None:
            return None
        if "refused" in r:
            self.refused[name] = r["refused"]
            w.say(f"  {name}: {r['refused']}")
            return None
        self.rounds[-1][name] = r
        if "words" in r:
            self.peer_words[name.rsplit(" ", 1)[0]] = f"torch {r['torch']}, {r['words']}"
        if "bytes_per_s" in r:
            w.say(f"  {name}: {r['bytes_per_s'] / 1e9:.1f} GB/s")
        else:
            first = self.rounds[-1].setdefault("first loss", r["loss"][0])
            if abs(first - r["loss"][0]) > 0.2:
                raise SystemExit(f"runs are not comparable: first losses {first:.3f} and {r['loss'][0]:.3f} ({name})")
            w.say(f"  {name}: {r['tokens_per_s']:.1f} tokens/s, steps {', '.join(f'{x:.2f}' for x in r['steps'])} s")
        self.save()
        return r

    def rates(self, name):
        key = "bytes_per_s" if "triad" in name else "tokens_per_s"
        return [r[name][key] for r in self.rounds if name in r]

    def ratios(self, top, below, factor=1.0):
        """Ratios of the rounds that have both; `one` is long and measured in fewer rounds, so its median is used for the others."""
        rest, key = self.rates(below), "tokens_per_s"
        typical = statistics.median(rest) if rest and below == "one" else None
        pairs = [(r[top][key], r[below][key] if below in r else typical) for r in self.rounds if top in r]
        return [a / (factor * b) for a, b in pairs if b]

    def pairs(self):
        """(ours, peer) names that are compared: the same strategy, and ddp with every peer."""
        names = sorted({k for r in self.rounds for k in r}, key=lambda k: k)
        for n in self.o.counts:
            for p in self.o.peers:
                peer = f"{'torch' if p == 'ddp' else 'deepspeed'} {p} x{n}"
                for s in dict.fromkeys([p, "ddp"]):
                    if f"ours {s} x{n}" in names and peer in names:
                        yield f"ours {s} x{n}", peer

    def result(self):
        def line(ratios):
            return {"median": statistics.median(ratios), "interval_95": compare.interval(ratios), "rounds": ratios}
        names = list(dict.fromkeys(k for r in self.rounds for k in r if k != "first loss"))
        out = {**self.head, "peers": self.peer_words, "refused": self.refused,
               "medians": {k: statistics.median(self.rates(k)) for k in names},
               "ratios": {f"{a} / {b}": line(self.ratios(a, b)) for a, b in self.pairs()}}
        s = self.o.scaling
        if s:
            laws = {"efficiency": (f"ours ddp x{s}", "one", s), "allowed": (f"copies x{s}", "one", s),
                    "communication": (f"ours ddp x{s}", f"copies x{s}", 1),
                    "efficiency_of_part": (f"ours ddp x{s}", "part", s), "contention": (f"copies x{s}", "part", s)}
            found = {k: self.ratios(*v) for k, v in laws.items()}
            out["scaling"] = {k: line(v) for k, v in found.items() if v}
            if {"triad x1", f"triad x{s}"} <= set(names):
                one, many = (statistics.median(self.rates(k)) for k in ("triad x1", f"triad x{s}"))
                out["scaling"]["memory"] = {"bytes_per_s_x1": one, f"bytes_per_s_x{s}": many, "median": many / (s * one)}
        return {**out, "rounds": self.rounds}

    def save(self):
        if self.o.out:
            with open(self.o.out + ".new", "w") as f:
                json.dump(self.result(), f, indent=1)
            os.replace(self.o.out + ".new", self.o.out)


def one_round(o, t, budget, data, work, number):
    def measure(name, f, *args, **kw):
        if name not in t.refused:
            t.add(name, budget.run(name, f, *args, **kw))

    for n in o.counts:
        threads = max(1, o.cores // n)
        for s in o.strategies:
            measure(f"ours {s} x{n}", w.ours, o, data, work, s, n, threads)
        for p in o.peers:
            measure(f"{'torch' if p == 'ddp' else 'deepspeed'} {p} x{n}", w.peer, o, data, work, p, n, threads)
    if o.scaling:
        n, threads = o.scaling, max(1, o.cores // o.scaling)
        if n not in o.counts or "ddp" not in o.strategies:
            measure(f"ours ddp x{n}", w.ours, o, data, work, "ddp", n, threads)
        measure("part", w.ours, o, data, work, "single", 1, threads, batch=o.global_batch // n)
        measure(f"copies x{n}", w.ours, o, data, work, "single", 1, threads, batch=o.global_batch // n, copies=n)
        measure("triad x1", w.triad, o, 1, threads)
        measure(f"triad x{n}", w.triad, o, n, threads)
        if number < o.one_rounds:
            measure("one", w.ours, o, data, work, "single", 1, threads, steps=1 if o.steps < 3 else o.steps // 2)


def describe(o, t):
    r = t.result()
    print(f"{o.model}, T{o.seq}, global batch {o.global_batch}, micro-batch {o.micro}, fp32, {o.cores} cores, {r['machine']}, "
          f"hardware threads of the first core: {r['siblings_of_core_0']}; {r['load']}")
    for name, text in r["peers"].items():
        print(f"{name}: {text}")
    print("\n| run | tokens/s (median) | rounds |\n| --- | --- | --- |")
    for name, value in r["medians"].items():
        if "triad" not in name:
            print(f"| {name} | {value:.1f} | {len(t.rates(name))} |")
    for name, why in r["refused"].items():
        print(f"| {name} | {why} | |")
    for name, x in r["ratios"].items():
        print(f"{name}: {compare.describe(x['rounds'])}")
    for name, x in r.get("scaling", {}).items():
        if name == "memory":
            values = [v / 1e9 for k, v in x.items() if k.startswith("bytes")]
            print(f"triad: {values[0]:.1f} GB/s alone, {values[1]:.1f} GB/s all at once: {x['median']:.2f} of {o.scaling} x one")
        else:
            print(f"{name}: {compare.describe(x['rounds'])}")


def main():
    o = options()
    t, budget = Table(o), w.Budget(o.budget_s)
    w.say(f"{t.head['machine']}; {t.head['load']}")
    if any(p != "ddp" for p in o.peers):
        w.say(f"DeepSpeed: {w.build_deepspeed(o, limit=min(300, budget.left()))} ({w.deepspeed_folder()})")
    with tempfile.TemporaryDirectory(prefix="lockstep-workers-") as work:
        data = os.path.join(work, "ids.bin")
        w.write_ids(data, o.model, o.global_batch * o.seq * (o.steps + 4) + 1)
        for number in range(o.rounds):
            t.rounds.append({})
            w.say(f"round {number + 1}")
            one_round(o, t, budget, data, work, number)
            if not t.rounds[-1]:
                t.rounds.pop()
                break
    t.save()
    if not t.rounds:
        raise SystemExit("nothing was measured: " + "; ".join(f"{k}: {v}" for k, v in t.refused.items()))
    if o.json:
        print(json.dumps(t.result(), indent=2))
    else:
        describe(o, t)
    assert all(math.isfinite(x) for r in t.rounds for k, m in r.items() if k != "first loss" for x in m.get("steps", []))


if __name__ == "__main__":
    main()
