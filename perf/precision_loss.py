"""Trains the same model on the same text in several precisions and compares the losses with those of the first.
(ls-bench: by name; takes minutes on a GPU, hours on a CPU.)

The runs of a seed have the same first weights, the same data in the same order and the same options; only --precision differs. Printed are the mean of the training
losses of the last --last steps and the validation loss at the end, each with its difference from the first precision. Two runs in one precision that differ only in
the order of sums end with losses that differ, too, so one pair decides little: with several --seeds the mean of the differences counts, and its interval of
95 % is printed.

  python perf/precision_loss.py --data DIR --precisions bf16,fp8 --device cuda [--seeds 1,2,3] [--steps 2000] [--model gpt2] [--batch 16] [--seq 512]
  python perf/precision_loss.py --data DIR --precisions fp32,bf16 --device cpu --steps 1000 --model tiny --batch 4 --seq 128

With --reference FILE... the losses are compared with those of other calls' --out: their first precision, of the same seeds, model, batch, steps and text. They can have run
on another device, for example fp32 on a GPU for bf16 on a CPU, where the same steps in fp32 would take hours.

  python perf/precision_loss.py --data DIR --precisions fp32 --device cuda --steps 1000 --batch 4 --out fp32.json
  python perf/precision_loss.py --data DIR --precisions bf16 --device cpu --steps 1000 --batch 4 --reference fp32.json

--control NAME=VALUE runs the first precision once more for each seed, with this environment variable, which changes the order of sums and nothing else: LS_GEMM=blas
or LS_GEMM=avx2 in fp32 on a CPU, LS_GEMM_TUNE=0 on a GPU. Its differences show how far two runs in the same precision are apart: a pair with a difference no larger
shows no effect of the precision. They do not count for --limit.

  python perf/precision_loss.py --data DIR --precisions fp32,bf16 --device cpu --control LS_GEMM=blas --steps 1000 --batch 1 --seq 128 --seeds 1,2,3

With --done FILE... the runs of earlier calls (their --out) are not made again, so that the seeds can be divided among several calls and machines:

  python perf/precision_loss.py --data DIR --precisions bf16 --device cpu --steps 1000 --batch 4 --seeds 1,2,3,4 --reference fp32.json --done seeds12.json seeds34.json

DIR is an output folder of `lockstep prepare` with train.bin and val.bin. Exit codes: 1: a difference (with several seeds: a mean) is above --limit, and nothing
else; 2: bad usage, also what `lockstep train` refuses as such; 3: a run failed; 130, 143: ended by SIGINT, SIGTERM.
"""
import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import compare

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("--lockstep", default=os.environ.get("LOCKSTEP", "build/lockstep"))
p.add_argument("--data", required=True, help="output folder of `lockstep prepare`")
p.add_argument("--precisions", default="bf16,fp8", help="the first one is the reference")
p.add_argument("--device", default="auto")
p.add_argument("--model", default="gpt2")
p.add_argument("--batch", type=int, default=16)
p.add_argument("--seq", type=int, default=512)
p.add_argument("--steps", type=int, default=2000)
p.add_argument("--last", type=int, help="training steps at the end whose losses are averaged [100, or all if there are fewer]")
p.add_argument("--seeds", default="1337", help="of weights and data order; one set of runs for each")
p.add_argument("--limit", type=float, default=0.01)
p.add_argument("--out", help="JSON file, written after each run")
p.add_argument("--reference", nargs="+", metavar="FILE", help="--out of other calls: their first precision is the reference, also for the first one of --precisions")
p.add_argument("--done", nargs="+", default=[], metavar="FILE", help="--out of earlier calls: their runs are not made again")
p.add_argument("--control", metavar="NAME=VALUE", help="also run the first precision with this environment variable, which only changes the order of sums")
p.add_argument("more", nargs="*", help="options of `lockstep train`, after --")
a = p.parse_args()
compare.check_program(p, a.lockstep)


def fail(code, why):
    print(why, file=sys.stderr)
    sys.exit(code)


def set_again():
    """Of the options after --, those that this script sets: the program would take them instead."""
    mine = {"data", "device", "precision", "model", "seq_length", "micro_batch_size_per_gpu", "global_batch_size", "max_steps", "save_every", "seed", "checkpoint_path"}
    try:
        listed = subprocess.run([a.lockstep, "train", "--help=json"], capture_output=True, text=True)
        mine |= {x["name"] for x in json.loads(listed.stdout)["options"] if x["alias_of"] in mine}
    except (OSError, ValueError, LookupError, TypeError):
        p.error(f"{a.lockstep} train --help=json does not list its options: it is not lockstep, or another version")
    return [x for x in a.more if x.startswith("--") and x[2:].partition("=")[0].replace("-", "_") in mine]


again = set_again()
if again:
    p.error(f"{' '.join(again)}: this script sets that option, so it cannot be given after --")
if a.last is None:
    a.last = min(100, max(a.steps, 1))
if not 0 < a.last <= a.steps:
    p.error("--last must be between 1 and --steps")
if not a.limit >= 0:
    p.error(f"--limit {a.limit}: give a difference of losses, 0 or more")
precisions = a.precisions.split(",")
try:
    seeds = [str(int(x)) for x in a.seeds.split(",")]
except ValueError:
    p.error(f"--seeds {a.seeds}: give whole numbers with commas between them")
for name, listed in (("precisions", precisions), ("seeds", seeds)):
    if len(set(listed)) < len(listed):
        p.error(f"--{name} {getattr(a, name)}: give each of them once, because each run counts as one sample")
if a.control and (a.reference or "=" not in a.control.lstrip("=")):
    p.error("--control takes NAME=VALUE, and compares runs of this call: leave out --reference")
if a.control and os.environ.get(a.control.partition("=")[0]) == a.control.partition("=")[2]:
    p.error(f"{a.control} is set for all runs, so the control would be the same run twice")


def text():
    """What says that two calls used the same text."""
    try:
        with open(os.path.join(a.data, "meta.json")) as f:
            meta = json.load(f)
        parts = {k: meta.get(k) or {} for k in ("train", "val")}
        hashes, n_val = {k: x.get("sha256") for k, x in parts.items()}, parts["val"].get("tokens", 0)
        if n_val > a.seq:
            return hashes
    except (OSError, ValueError, TypeError, AttributeError) as e:
        p.error(f"{a.data} is not an output folder of `lockstep prepare`: {e}")
    p.error(f"{a.data} has {n_val} tokens of validation, too few for --seq {a.seq}: `lockstep prepare --val_fraction` sets their number")


def deciding(options):
    """Those that can change a loss: not the number of threads, as a run has the same bits with any."""
    left, options = [], iter(options)
    for x in options:
        if x == "--threads":
            next(options, None)
        elif not x.startswith("--threads="):
            left.append(x)
    return left


SAME = {"model": a.model, "batch": a.batch, "seq": a.seq, "steps": a.steps, "options": deciding(a.more), "text": text()}


def is_loss(x):
    return type(x) in (int, float) and math.isfinite(x)


def is_text(*x):
    return all(isinstance(v, str) for v in x)


def earlier(path):
    """Runs of another call and what they are, by (precision, control, seed)."""
    found = {}
    try:
        with open(path) as f:
            other = json.load(f)
        other["options"] = deciding(other.get("options", []))
        for k, v in SAME.items():
            if other.get(k) != v:
                p.error(f"{path} has {k} {other.get(k)}, this call {v}: give the same to both")
        for r in other["runs"]:
            precision, control, seed, device, losses = r["precision"], r.get("control"), r["seed"], r.get("device", other["device"]), r["losses"]
            if not is_text(precision, control or "", seed, device) or len(losses) != a.steps or not all(map(is_loss, [r["first"], r["val"], *losses])):
                raise ValueError(f"the run of seed {seed} in {precision} has other values than one of {a.steps} steps")
            key = precision, control, str(int(seed))
            if key in found:
                raise ValueError(f"it has seed {seed} in {named(precision, control)} twice")
            found[key] = {**r, "train": sum(losses[-a.last:]) / a.last, "device": device}
        if not found:
            raise ValueError("it has no runs")
    except Exception as e:  # whatever is wrong with its contents
        p.error(f"{path} is not a file of --out: {f'it has no {e}' if isinstance(e, KeyError) else e}")
    return found


def all_of(paths):
    """Runs of several calls; each counts as one sample, so no two files may have the same."""
    runs = {}
    for path in paths:
        for key, r in earlier(path).items():
            if key in runs:
                p.error(f"{path} has seed {key[2]} in {named(*key[:2])}, which an earlier file has, too")
            runs[key] = r
    return runs


def reference():
    """Runs of the other calls by seed, and what they are."""
    runs = all_of(a.reference)
    precision, device = next((x, r["device"]) for (x, _, _), r in runs.items())
    found = {seed: r for (x, control, seed), r in runs.items() if x == precision and not control}
    missing = [x for x in seeds if x not in found]
    if missing:
        p.error(f"{' '.join(a.reference)}: no run with seed {', '.join(missing)}")
    return found, f"{precision} on {device}"


def named(precision, control):
    return f"{precision} with {control}" if control else precision


given, what = reference() if a.reference else ({}, None)
done = all_of(a.done)
for (precision, control, seed), r in done.items():
    if r["device"] != a.device:
        p.error(f"--done: seed {seed} in {named(precision, control)} ran on {r['device']}, and this call is about {a.device}; give it to --reference")
if a.out:
    for path in a.done + (a.reference or []):
        if os.path.realpath(path) in (os.path.realpath(a.out), os.path.realpath(a.out) + ".new"):
            p.error(f"--out {a.out} would overwrite {path}, a file of --done or --reference")
    a.out = compare.check_out(p, a.out)


def call(precision, seed, folder, control, *more):
    """`lockstep train` of one run; ends this program if it fails."""
    args = [a.lockstep, "train", "--data", a.data, "--device", a.device, "--precision", precision, "--model", a.model, "--seq_length", a.seq,
            "--micro_batch_size_per_gpu", a.batch, "--global_batch_size", a.batch, "--max_steps", a.steps, "--save_every", 0,
            "--seed", seed, "--checkpoint_path", folder, *a.more, *more]
    env = dict(os.environ)
    if control:
        name, _, value = control.partition("=")
        env[name] = value
    try:
        done = subprocess.run([str(x) for x in args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    except OSError as e:
        fail(2, f"{a.lockstep} does not start: {e.strerror}")
    if done.returncode:
        fail(2 if done.returncode == 2 else 3, f"{named(precision, control)}: exit code {done.returncode}\n{done.stdout[-2000:].strip()}")
    return done.stdout


def run(work, precision, seed, control=None):
    folder = os.path.join(work, precision)
    begin = time.time()
    call(precision, seed, folder, control)
    try:
        with open(os.path.join(folder, "metrics.jsonl")) as f:
            losses = [json.loads(x)["loss"] for x in f]
        with open(os.path.join(folder, "training_metrics.json")) as f:
            val = json.load(f)["epochs"][-1]["val_loss_avg_global"]  # at the end, which need not be the smallest of several epochs
    except (OSError, ValueError, LookupError) as e:
        fail(3, f"{precision}: the run has no losses: {e}")
    if len(losses) != a.steps:
        fail(3, f"{precision}: {len(losses)} steps were made, not {a.steps}: the text is too short for them; give `-- --epochs N`")
    if val is None:
        fail(3, f"{precision}: no validation was made: {a.data} has too short a val.bin")
    if not all(map(is_loss, [*losses, val])):
        fail(3, f"{precision}: seed {seed} has a loss that is not a finite number")
    shutil.rmtree(folder)
    return {"precision": precision, "control": control, "seed": seed, "train": sum(losses[-a.last:]) / a.last, "val": val, "device": a.device, "first": losses[0],
            "seconds": time.time() - begin, "losses": losses}


def save():
    if a.out:
        try:
            with open(a.out + ".new", "w") as f:
                json.dump({**SAME, "device": a.device, "limit": a.limit, "runs": runs}, f)
            os.replace(a.out + ".new", a.out)
        except OSError as e:
            fail(3, f"--out {a.out} cannot be written: {e.strerror}")


def mean(x):
    """With its interval, where there are several."""
    m, i = statistics.mean(x), compare.mean_interval(x)
    return m, f"{m:+.4f}" + (f" ({i[0]:+.4f} to {i[1]:+.4f})" if i else "")


runs, wrong = [], False
sides = [(x, None) for x in precisions]
if a.control:
    sides.insert(1, (precisions[0], a.control))
compare.end_on_sigterm()
made = [(*side, seed) for seed in seeds for side in sides if (*side, seed) not in done]
for precision, control in dict.fromkeys(x[:2] for x in made):  # what is refused is refused before hours of training
    settings = call(precision, seeds[0], os.path.join(tempfile.gettempdir(), "lockstep-precision-none"), control, "--print_config")
    if ["max_val_steps", "0"] in (x.split()[:2] for x in settings.splitlines()):
        p.error("max_val_steps is 0: without validation there is no validation loss to compare")
print(f"{a.model}, batch {a.batch} x {a.seq}, {a.steps} steps\n\n| seed | precision | first loss | train, last {a.last} | difference | validation | difference | largest difference of a step |"
      "\n| --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
with tempfile.TemporaryDirectory(prefix="lockstep-precision-") as work:
    for seed in seeds:
        first = len(runs)
        if given:
            of = given[seed]
            print(f"| {seed} | {what} | {of['first']:.4f} | {of['train']:.4f} | | {of['val']:.4f} | | |", flush=True)
        for precision, control in sides:
            r = done.get((precision, control, seed)) or run(work, precision, seed, control)
            runs.append(r)
            of = given.get(seed, runs[first])
            r["train_diff"], r["val_diff"] = r["train"] - of["train"], r["val"] - of["val"]
            step = r["step_diff"] = max(abs(x - y) for x, y in zip(r["losses"], of["losses"]))
            print(f"| {seed} | {named(precision, control)} | {r['first']:.4f} | {r['train']:.4f} | {r['train_diff']:+.4f} | {r['val']:.4f} | {r['val_diff']:+.4f} | {step:.4f} |", flush=True)
            save()
for precision, control in sides[0 if given else 1:]:
    of_side = [r for r in runs if (r["precision"], r["control"]) == (precision, control)]
    train, val = (mean([r[k] for r in of_side]) for k in ("train_diff", "val_diff"))
    wrong |= not control and not (abs(train[0]) <= a.limit and abs(val[0]) <= a.limit)
    if control and not any(r["step_diff"] for r in of_side):
        print(f"{control} changed nothing: the runs have the same losses at every step, so there is no control")
        continue
    print(f"{named(precision, control)} - {what or precisions[0]}: training {train[1]}, validation {val[1]}, {len(seeds)} seed{'s' if len(seeds) > 1 else ''}")
if given or precisions[1:]:
    print(f"limit {a.limit:g}: {'exceeded' if wrong else 'kept'}")
sys.exit(wrong)
