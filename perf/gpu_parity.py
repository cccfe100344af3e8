"""Compares training on a GPU with the CPU and with PyTorch, using `lockstep train`.
(ls-bench: by name; needs a GPU.)

  losses      50 steps of bf16 (fp16, fp32) on the GPU and of fp32 on the CPU, same seed and data (--text, else random words): every
              loss within 2e-3
  gradients   of one step, per tensor and all together, cosine above 0.999: at fresh weights and at those after the 50 steps. They are read
              from the first moments in the checkpoint: with --betas 0,… and no clipping m of AdamW is the gradient
  torch       2,000 steps on real text, bf16, against PyTorch (perf/gpu_torch.py) from the same weights in the same order: the mean loss of
              the last 100 steps within 0.01

  double      gradients of one step in fp32 by ours and by PyTorch, each against PyTorch's in fp64, from the same weights: ours are not farther away,
              all tensors together

  python perf/gpu_parity.py losses gradients double [--model gpt2 --batch 4 --seq 256]
  python perf/gpu_parity.py torch --text book.txt [--tokenizer gpt2 --vocab_dir DIR]
  python perf/gpu_parity.py losses gradients torch --dry          # tiny model on the CPU, to test the script

Exit code 1 if a limit is exceeded.
"""
import argparse
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import compare

try:
    import numpy as np
except ImportError:
    np = None  # main() reports it

HERE = os.path.dirname(os.path.abspath(__file__))


def say(text):
    print(text, file=sys.stderr, flush=True)


def read_safetensors(path):
    """name -> float array, mapped."""
    raw = np.memmap(path, dtype=np.uint8, mode="r")
    n = int(raw[:8].view("<u8")[0])
    head = json.loads(bytes(raw[8 : 8 + n]))
    out = {}
    for name, t in head.items():
        if name == "__metadata__":
            continue
        a, b = t["data_offsets"]
        if t["dtype"] != "F32":
            raise SystemExit(f"{path}: {name} is {t['dtype']}, F32 expected")
        out[name] = raw[8 + n + a : 8 + n + b].view("<f4").reshape(t["shape"])
    return out


def write_ids(path, n, vocab):
    """Words of 2 to 6 ids, drawn from 400: there is something to learn, so losses move."""
    r = np.random.default_rng(5)
    words = [r.integers(0, min(vocab, 1000), r.integers(2, 7)) for _ in range(400)]
    ids = np.concatenate([words[i] for i in r.integers(0, len(words), n // 2)])[:n]
    ids.astype("<u2").tofile(path)


def prepared(o, folder):
    """The ids of --text."""
    args = [o.lockstep, "prepare", "--input", *o.text, "--out", folder, "--tokenizer", o.tokenizer, "--val_fraction", "0"]
    if o.vocab_dir:
        args += ["--vocab_dir", o.vocab_dir]
    subprocess.run([str(a) for a in args], check=True, capture_output=True)
    return os.path.join(folder, "train.bin")


def keep_newest(run_dir, stop):
    """Checkpoints of finished epochs are of no use here and large."""
    while not stop.wait(1.0):
        try:
            whole = sorted((d for d in os.listdir(run_dir) if d.startswith("epoch-")), key=lambda d: int(d[6:]))
        except OSError:
            continue
        for d in whole[:-1]:
            shutil.rmtree(os.path.join(run_dir, d), ignore_errors=True)


def train(o, run_dir, data, where, **settings):
    """Runs it; rows of metrics.jsonl, and the newest checkpoint."""
    shutil.rmtree(run_dir, ignore_errors=True)
    args = [o.lockstep, "train", "--train_data_path", data, "--checkpoint_path", run_dir, "--dropout", 0, "--seed", 7]
    for k, v in settings.items():
        args += [f"--{k}"] if v is True else [f"--{k}", v]
    if where == "cpu":
        args += ["--device", "cpu"]
    else:
        args += ["--device", "cuda", "--precision", "fp32" if where == "tf32" else where] + (["--tf32"] if where == "tf32" else [])
        args += o.ours_args.split()
    args = [str(a) for a in args]
    stop = threading.Event()
    cleaner = threading.Thread(target=keep_newest, args=(run_dir, stop))
    cleaner.start()
    begin = time.time()
    try:
        p = subprocess.run(args, capture_output=True, text=True)
    finally:
        stop.set()
        cleaner.join()
    if p.returncode:
        raise SystemExit(f"failed ({p.returncode}): {' '.join(args)}\n{p.stdout[-1500:]}{p.stderr[-3000:]}")
    with open(os.path.join(run_dir, "metrics.jsonl")) as f:
        rows = [json.loads(line) for line in f]
    last = sorted((d for d in os.listdir(run_dir) if d.startswith("epoch-")), key=lambda d: int(d[6:]))[-1]
    say(f"  {where}: {len(rows)} steps in {time.time() - begin:.0f} s, loss {rows[0]['loss']:.4f} -> {rows[-1]['loss']:.4f}")
    return rows, os.path.join(run_dir, last)


class Checks:
    def __init__(self):
        self.rows = []

    def within(self, name, value, limit, note=""):
        holds = value <= limit  # a NaN does not
        self.rows.append({"name": name, "value": value, "limit": limit, "holds": bool(holds), "note": note})
        print(f"{'ok  ' if holds else 'FAIL'} {name}: {value:.3g} (limit {limit:.3g}){'  ' + note if note else ''}", flush=True)

    def above(self, name, value, limit, note=""):
        holds = value >= limit
        self.rows.append({"name": name, "value": value, "limit": limit, "holds": bool(holds), "note": note})
        print(f"{'ok  ' if holds else 'FAIL'} {name}: {value:.6f} (at least {limit}){'  ' + note if note else ''}", flush=True)


# ---- against the CPU ----------------------------------------------------------------------------------------------------

def base(o):
    s = dict(model=o.model, seq_length=o.seq, micro_batch_size_per_gpu=o.batch, grad_accum_steps=o.accum)
    if o.vocab:
        s["vocab_size"] = o.vocab
    return s


def losses(o, c, work, data):
    s = dict(base(o), max_steps=o.steps, lr=o.lr, lr_schedule="cosine", warmup_steps=10, clip=1.0)
    theirs, at = train(o, os.path.join(work, "cpu"), data, "cpu", **s)
    for where in o.precisions.split(","):
        ours, _ = train(o, os.path.join(work, where), data, "cpu" if o.dry else where, **s)
        apart = [abs(a["loss"] - b["loss"]) for a, b in zip(ours, theirs)]
        worst = max(range(len(apart)), key=apart.__getitem__)
        c.within(f"{where}: losses of {len(ours)} steps against fp32 on the CPU", max(apart) if len(ours) == len(theirs) else math.nan, 2e-3,
                 f"worst at step {worst + 1}: {ours[worst]['loss']:.5f} and {theirs[worst]['loss']:.5f}")
        c.within(f"{where}: gradient norms, relative, median", statistics.median(
            abs(a["grad_norm"] - b["grad_norm"]) / b["grad_norm"] for a, b in zip(ours, theirs)), 2e-2)
    return at


def cosine(a, b):
    a, b = np.asarray(a, dtype=np.float64).ravel(), np.asarray(b, dtype=np.float64).ravel()
    return float(a @ b / math.sqrt((a @ a) * (b @ b)))


def gradients(o, c, work, data, begins):
    for label, begin in begins:
        s = dict(base(o), max_steps=1, lr=0, weight_decay=0, clip=0, betas="0,0.95", **({"init_from": begin} if begin else {}))
        _, at = train(o, os.path.join(work, "grad-cpu"), data, "cpu", **s)
        truth = {k: v for k, v in read_safetensors(os.path.join(at, "optimizer.safetensors")).items() if k.startswith("m/")}
        for where in o.precisions.split(","):
            _, at = train(o, os.path.join(work, "grad-" + where), data, "cpu" if o.dry else where, **s)
            got = read_safetensors(os.path.join(at, "optimizer.safetensors"))
            # A key's bias has gradient 0 (softmax does not see it): what is there is rounding, and has no direction.
            each, dot, aa, bb = {}, 0.0, 0.0, 0.0
            for k, b in truth.items():
                a = np.asarray(got[k], dtype=np.float64).ravel()
                b = np.asarray(b, dtype=np.float64).ravel()
                if k.endswith("c_attn.bias"):
                    E = a.size // 3
                    a, b = np.delete(a, slice(E, 2 * E)), np.delete(b, slice(E, 2 * E))
                dot, aa, bb = dot + a @ b, aa + a @ a, bb + b @ b
                each[k] = cosine(a, b)
            worst = min(each, key=each.get)
            c.above(f"{where}: gradient at {label}, all tensors, cosine", dot / math.sqrt(aa * bb), 0.999,
                    f"norms {math.sqrt(aa):.5g} and {math.sqrt(bb):.5g}")
            c.above(f"{where}: gradient at {label}, the worst of {len(each)} tensors", each[worst], 0.999, worst)


# ---- fp32 against double ------------------------------------------------------------------------------------------------

def torch_gradients(o, work, data, begin, precision):
    path = os.path.join(work, precision + ".npz")
    args = [o.python, os.path.join(HERE, "gpu_torch.py"), "--data", data, "--model", o.model, "--vocab", o.vocab or 50257, "--batch", o.batch, "--accum", o.accum,
            "--seq", o.seq, "--precision", precision, "--mode", "eager", "--device", "cpu" if o.dry else "cuda", "--warm", 0, "--init", begin, "--order", "ours",
            "--seed", 7]
    p = subprocess.run([str(a) for a in args], input=f"gradients {path}\nquit\n", capture_output=True, text=True)
    if p.returncode:
        raise SystemExit(f"PyTorch failed: {p.stderr[-3000:]}")
    return np.load(path), json.loads(p.stdout.strip().splitlines()[-1])["loss"]


def distances(g, truth):
    """Sum of squares of g - truth for each tensor."""
    return {k: float(np.sum((np.asarray(g[k], dtype=np.float64).ravel() - truth[k].ravel()) ** 2)) for k in truth.files}


def double(o, c, work, data):
    s = dict(base(o), max_steps=1, lr=0, weight_decay=0, clip=0, betas="0,0.95")
    _, begin = train(o, os.path.join(work, "double-begin"), data, "cpu", **dict(s, micro_batch_size_per_gpu=1, grad_accum_steps=1))
    truth, loss = torch_gradients(o, work, data, begin, "fp64")
    theirs = distances(torch_gradients(o, work, data, begin, "fp32")[0], truth)
    whole = math.sqrt(sum(float(truth[k].ravel() @ truth[k].ravel()) for k in truth.files))
    far = math.sqrt(sum(theirs.values()))
    for variant in o.variants:
        env = dict(x.split("=", 1) for x in variant.split())
        before = {k: os.environ.get(k) for k in env}
        os.environ.update(env)
        rows, at = train(o, os.path.join(work, "double-ours"), data, "cpu" if o.dry else "fp32", init_from=begin, **s)
        for k, v in before.items():
            os.environ.pop(k) if v is None else os.environ.update({k: v})
        stored = read_safetensors(os.path.join(at, "optimizer.safetensors"))
        ours = distances({k.removeprefix("m/").removeprefix("transformer."): v for k, v in stored.items() if k.startswith("m/")}, truth)
        name = f"fp32{' with ' + variant if variant else ''}"
        c.within(f"{name}: loss against fp64", abs(rows[0]["loss"] - loss), 1e-5, f"{rows[0]['loss']:.8f} and {loss:.8f}")
        error = math.sqrt(sum(ours.values()))
        worst = max(truth.files, key=lambda k: ours[k] / theirs[k] if theirs[k] else 0)
        c.within(f"{name}: distance of the gradient from fp64, over PyTorch's distance", error / far, 1.25 if o.dry else 1.0,
                 f"relative: ours {error / whole:.3g}, PyTorch {far / whole:.3g}; largest ratio of a tensor {math.sqrt(ours[worst] / theirs[worst]):.2f} ({worst})")
        kinds = {}
        for k in truth.files:
            kind = re.sub(r"^h\.\d+\.", "h.*.", k)
            x = kinds.setdefault(kind, [0.0, 0.0])
            x[0] += ours[k]
            x[1] += theirs[k]
        say("  by kind, share of our squared distance and ratio to PyTorch's distance: " +
            ", ".join(f"{k} {x[0] / error**2:.3f} {math.sqrt(x[0] / x[1]) if x[1] else 0:.2f}" for k, x in sorted(kinds.items(), key=lambda i: -i[1][0])[:10]))


# ---- against PyTorch ----------------------------------------------------------------------------------------------------

def torch_run(o, c, work):
    ids = prepared(o, os.path.join(work, "text"))
    vocab = 50257 if o.tokenizer == "gpt2" else int(np.fromfile(ids, dtype="<u2").max()) + 1
    sequences = (os.path.getsize(ids) // 2 - 1) // o.seq
    say(f"  {os.path.getsize(ids) // 2:,} ids, {sequences} sequences: {o.torch_steps * o.batch * o.accum / sequences:.1f} epochs")
    s = dict(base(o), vocab_size=vocab)
    _, begin = train(o, os.path.join(work, "begin"), ids, "cpu", **dict(s, micro_batch_size_per_gpu=1, grad_accum_steps=1, max_steps=1, lr=0,
                                                                       weight_decay=0, max_train_steps=1))
    warm = o.torch_steps // 10
    s.update(max_steps=o.torch_steps, lr=o.lr, lr_schedule="cosine", warmup_steps=warm, min_lr_ratio=0.1, clip=1.0, betas="0.9,0.95",
             weight_decay=0.1, init_from=begin)
    precision = o.precisions.split(",")[0]
    ours, _ = train(o, os.path.join(work, "ours"), ids, "cpu" if o.dry else precision, **s)
    args = [o.python, os.path.join(HERE, "gpu_torch.py"), "--data", ids, "--model", o.model, "--vocab", vocab, "--batch", o.batch, "--accum",
            o.accum, "--seq", o.seq, "--precision", "fp32" if o.dry else precision, "--mode", "eager" if o.dry else o.mode, "--device",
            "cpu" if o.dry else "cuda", "--warm", 0, "--init", begin, "--order", "ours", "--seed", 7, "--lr", o.lr, "--lr_schedule", "cosine",
            "--warmup_steps", warm, "--total-steps", o.torch_steps]
    begin_at = time.time()
    p = subprocess.run([str(a) for a in args], input=f"losses {o.torch_steps}\nquit\n", capture_output=True, text=True)
    if p.returncode:
        raise SystemExit(f"PyTorch failed: {p.stderr[-3000:]}")
    theirs = json.loads(p.stdout.strip().splitlines()[-1])
    say(f"  PyTorch: {len(theirs['losses'])} steps in {time.time() - begin_at:.0f} s, loss {theirs['losses'][0]:.4f} -> {theirs['losses'][-1]:.4f}")
    a, b = [r["loss"] for r in ours], theirs["losses"]
    tail = min(100, len(a) // 4)
    c.within("the first loss: same weights, same batch", abs(a[0] - b[0]), 5e-3, f"{a[0]:.5f} and {b[0]:.5f}")
    c.within("rates", max(abs(x["lr"] - y) for x, y in zip(ours, theirs["rates"])), 1e-9)
    c.within(f"mean loss of the last {tail} of {len(a)} steps", abs(statistics.fmean(a[-tail:]) - statistics.fmean(b[-tail:])), 0.01,
             f"{statistics.fmean(a[-tail:]):.5f} and PyTorch's {statistics.fmean(b[-tail:]):.5f}")
    c.within("mean distance of all losses", statistics.fmean(abs(x - y) for x, y in zip(a, b)), 0.02)
    return {"ours": a, "torch": b}


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("what", nargs="+", choices=["losses", "gradients", "double", "torch"])
    a.add_argument("--lockstep", default=os.environ.get("LOCKSTEP", "build/lockstep"))
    a.add_argument("--python", default=os.environ.get("PYTHON", sys.executable), help="Python interpreter with torch")
    a.add_argument("--model", default="gpt2")
    a.add_argument("--vocab", type=int, default=0, help="vocabulary size; 0 = default of the model")
    a.add_argument("--batch", type=int, default=4)
    a.add_argument("--accum", type=int, default=1)
    a.add_argument("--seq", type=int, default=256)
    a.add_argument("--steps", type=int, default=50)
    a.add_argument("--lr", type=float, default=3e-4)
    a.add_argument("--precisions", default="bf16", help="precisions on the GPU: bf16,fp16,fp32,tf32")
    a.add_argument("--text", nargs="*", default=[], help="files or folders with text for the comparison with PyTorch")
    a.add_argument("--tokenizer", default="bytes", help="gpt2 (with --vocab_dir) or bytes")
    a.add_argument("--vocab_dir")
    a.add_argument("--torch-steps", type=int, default=2000)
    a.add_argument("--mode", default="compile", help="mode of PyTorch: eager or compile")
    a.add_argument("--ours-args", default="", help="additional options for lockstep train on the GPU")
    a.add_argument("--variants", nargs="+", default=[""], metavar="NAME=VALUE", help="double: ours once for each of these settings of the environment")
    a.add_argument("--dry", action="store_true", help="tiny model, no GPU")
    a.add_argument("--out", help="folder for gpu_parity.json")
    o = a.parse_args()
    compare.check_program(a, o.lockstep)
    compare.check_modules(a, "numpy")
    compare.end_on_sigterm()
    if o.dry:
        o.model, o.vocab, o.batch, o.seq, o.steps, o.torch_steps = "tiny", 300, 2, 64, 12, 40
    if "torch" in o.what and not o.text and not o.dry:
        a.error("torch needs --text")
    c = Checks()
    result = {"argv": sys.argv[1:]}
    with tempfile.TemporaryDirectory(prefix="lockstep-parity-") as work:
        if o.dry and not o.text:
            o.text = [os.path.join(work, "words.txt")]
            with open(o.text[0], "w") as f:
                r = np.random.default_rng(3)
                f.write(" ".join(r.choice(["lockstep", "trains", "a", "model", "in", "C"], 4000)))
        if o.text:
            data = prepared(o, os.path.join(work, "ids"))
        else:
            data = os.path.join(work, "ids.bin")
            write_ids(data, o.batch * o.accum * o.seq * (o.steps + 2) + 1, o.vocab or 50257)
        trained = losses(o, c, work, data) if "losses" in o.what else None
        if "gradients" in o.what:
            gradients(o, c, work, data, [("fresh weights", None)] + ([(f"weights after {o.steps} steps", trained)] if trained else []))
        if "double" in o.what:
            double(o, c, work, data)
        if "torch" in o.what:
            result["torch"] = torch_run(o, c, work)
    result["checks"] = c.rows
    if o.out:
        os.makedirs(o.out, exist_ok=True)
        with open(os.path.join(o.out, "gpu_parity.json"), "w") as f:
            json.dump(result, f, indent=1)
    bad = [r["name"] for r in c.rows if not r["holds"]]
    print(f"{len(c.rows) - len(bad)} of {len(c.rows)} checks passed" + (f"; broken: {'; '.join(bad)}" if bad else ""))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
