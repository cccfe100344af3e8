"""Cost of determinism: tokens/s of DDP on 2 and 4 workers, deterministic and with --no_deterministic, interleaved.

A round runs both, one after the other in separate processes; the next round uses the other order. The first step of a
run is not counted. The rate of a run is that of its median step, or with --best of its fastest step (for a shared
machine, where disturbances only slow steps down). The cost of a round is 1 - deterministic / free; the median and 95 %
interval over all rounds are printed. `at most` is the fraction of a step in which workers waited for gradients
(comm_exposed_sec of metrics.jsonl): an all-reduce that takes no time could not save
more.

  python perf/determinism_price.py [--workers 2,4] [--rounds 10] [--steps 3] [--model gpt2] [--global_batch 8] [--best]
      [--strategy ddp] [--budget-s S] [--json] [--out FILE]
"""
import argparse
import json
import os
import statistics
import tempfile

import compare
import workers as w

SIDES = {"deterministic": [], "free": ["--no_deterministic"]}


def waited(r):
    """Seconds of a step that rank 0 waited for gradients; reduce_sec is its name in earlier versions."""
    return r["split"].get("comm_exposed_sec", r["split"].get("reduce_sec", 0.0))


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("--lockstep", default=os.environ.get("LOCKSTEP", "build/lockstep"))
    a.add_argument("--model", default="gpt2", choices=["tiny", "gpt2", "gpt2-medium"])
    a.add_argument("--strategy", default="ddp")
    a.add_argument("--seq", type=int, default=512)
    a.add_argument("--micro", type=int, default=1)
    a.add_argument("--global_batch", type=int, default=8)
    a.add_argument("--workers", default="2,4")
    a.add_argument("--cores", type=int, default=0, help="CPU cores to use; 0 = all")
    a.add_argument("--rounds", type=int, default=10)
    a.add_argument("--steps", type=int, default=3, help="timed steps per run, after one warm-up step")
    a.add_argument("--best", action="store_true", help="use the fastest step of a run instead of the median")
    a.add_argument("--budget-s", type=float, default=0)
    a.add_argument("--json", action="store_true")
    a.add_argument("--out")
    o = a.parse_args()
    compare.check_program(a, o.lockstep)
    compare.end_on_sigterm()
    o.cores = min(o.cores or compare.cores(), compare.cores())
    o.seq = min(o.seq, w.POSITIONS.get(o.model, 1024))
    counts = [int(x) for x in o.workers.split(",")]
    head = {"machine": compare.machine(), "load": compare.load(), "model": o.model, "strategy": o.strategy, "seq": o.seq,
            "global_batch": o.global_batch, "micro": o.micro, "cores": o.cores, "steps": o.steps,
            "rate": "best" if o.best else "median"}
    budget, rounds = w.Budget(o.budget_s), {n: [] for n in counts}

    def result():
        out = {**head, "workers": {}}
        for n in counts:
            ratios = [r["deterministic"] / r["free"] for r in rounds[n]]
            if ratios:
                i = compare.interval(ratios)
                out["workers"][n] = {"rounds": rounds[n], "price": 1 - statistics.median(ratios),
                                     "interval_95": [1 - i[1], 1 - i[0]] if i else None,
                                     "at_most": statistics.median(r["deterministic_waited_sec"] / statistics.median(
                                         r["deterministic_steps"]) for r in rounds[n]),
                                     **{s: statistics.median(r[s] for r in rounds[n]) for s in SIDES},
                                     **{k: statistics.median(r[k] for r in rounds[n]) for k in
                                        (s + "_waited_sec" for s in SIDES)}}
        return out

    with tempfile.TemporaryDirectory(prefix="lockstep-price-") as work:
        data = os.path.join(work, "ids.bin")
        w.write_ids(data, o.model, o.global_batch * o.seq * (o.steps + 4) + 1)
        for number in range(o.rounds):
            for n in counts:
                row = {}
                for side in sorted(SIDES, reverse=number % 2 == 1):
                    r = budget.run(f"{side} x{n}", w.ours, o, data, work, o.strategy, n, max(1, o.cores // n), extra=SIDES[side])
                    if r and "refused" in r:
                        w.say(f"{side} x{n}: {r['refused']}")
                    elif r:
                        row[side] = o.global_batch * o.seq / min(r["steps"]) if o.best else r["tokens_per_s"]
                        row[side + "_steps"], row[side + "_waited_sec"] = r["steps"], waited(r)
                if len(row) == 6:
                    rounds[n].append(row)
                    w.say(f"round {number + 1}, {n} workers: deterministic {row['deterministic']:.1f}, free {row['free']:.1f} "
                          f"tokens/s: price {100 * (1 - row['deterministic'] / row['free']):.1f} %")
                if o.out:
                    with open(o.out, "w") as f:
                        json.dump(result(), f, indent=1)
    found = result()
    if not found["workers"]:
        raise SystemExit("nothing was measured")
    if o.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{o.model}, {o.strategy}, T{o.seq}, global batch {o.global_batch}, {o.cores} cores, {head['machine']}; {head['load']}")
    for n, r in found["workers"].items():
        i = r["interval_95"]
        print(f"{n} workers: deterministic {r['deterministic']:.1f} tokens/s, free {r['free']:.1f}; price {100 * r['price']:.1f} % "
              f"(median of {len(r['rounds'])} rounds" + (f", 95 % interval {100 * i[0]:.1f} to {100 * i[1]:.1f} %" if i else "") +
              f"); waited for gradients {r['deterministic_waited_sec']:.3f} and {r['free_waited_sec']:.3f} s a step: "
              f"at most {100 * r['at_most']:.1f} %")


if __name__ == "__main__":
    main()
