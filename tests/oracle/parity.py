"""Compares our loss, gradients and AdamW with PyTorch and transformers, in fp32 on the CPU, for both variants.

  loss        relative 1e-5        gradients   relative norm 1e-4, each tensor
  20 steps    every loss within 1e-4, the rate exactly, the gradient norm within 1e-3 relative, each weight within 1e-4
  eval        relative 1e-5        fresh init  ln(V) for hf, ln(V) + 1/6 for r1

Query, key and value of r1 are compared as the fused tensor of the folder: the bias of the keys alone has gradient 0 (softmax
does not depend on it), which makes a relative error meaningless.
"""
import argparse
import json
import math
import os
import tempfile
import time

import numpy as np
import torch
from safetensors.torch import load_file

import peers

SMALL = dict(L=3, H=4, E=64, P=48, V=331)
FULL = dict(L=12, H=12, E=768, P=1024, V=50257)


def tokens(path, n, V, seed, pairs_of=0):
    """Ids with structure (a noisy walk), so that the model can learn and losses fall; pairs_of: as pairs for sequences of this length."""
    r = np.random.default_rng(seed)
    ids = np.cumsum(r.integers(1, 4, n)) % V
    ids[r.random(n) < 0.1] = r.integers(0, V)
    if pairs_of:
        peers.write_pairs(path, ids, r, pairs_of)
    else:
        peers.write_tokens(path, ids)


def relative(a, b):
    a, b = a.double(), b.double()
    return ((a - b).norm() / b.norm()).item()


def gradients(o, c, variant, size, B, T, micro_batches, work, compute="cpu", double=True, masked=False):
    model = peers.make_model(variant, **size, seed=1, shake=0.02)
    folder, data = os.path.join(work, f"{variant}-model"), os.path.join(work, "ids.bin")
    peers.save_model(variant, model, folder)
    tokens(data, (4 if masked else 1) * B * T * micro_batches + 1, size["V"], 2, T if masked else 0)
    ids, target = (x[: B * micro_batches] for x in peers.sequences(data, T))
    out = os.path.join(work, "grads.safetensors")
    ours = json.loads(peers.run([o.tool, folder, data, B, T, micro_batches, compute, out]))
    grads = load_file(out)
    label = f"{variant} {compute} B{B} T{T} x{micro_batches}{' masked' if masked else ''}"

    loss = peers.mean_loss(variant, model, ids, target)
    loss.backward()
    theirs = peers.as_folder(variant, lambda p: p.grad.detach().clone())(model)
    c.within(f"{label} loss", abs(ours["loss"] - loss.item()) / loss.item(), 1e-5, f"{ours['loss']:.6f}")
    if set(grads) != set(theirs):
        raise SystemExit(f"tensors differ: {sorted(set(grads) ^ set(theirs))}")
    errors = {n: relative(grads[n], theirs[n]) for n in theirs}
    worst = max(errors, key=errors.get)
    c.within(f"{label} gradients of {len(errors)} tensors", errors[worst], 1e-4, f"worst: {worst}")
    if not double:
        return
    model.double().zero_grad(set_to_none=True)
    exact = peers.mean_loss(variant, model, ids, target)
    exact.backward()
    truth = peers.as_folder(variant, lambda p: p.grad)(model)
    mine = max(relative(grads[n], truth[n]) for n in truth)
    peer = max(relative(theirs[n], truth[n]) for n in truth)
    c.within(f"{label} gradients against double", mine, 1e-4, f"PyTorch's own: {peer:.3g}")
    c.within(f"{label} loss against double", abs(ours["loss"] - exact.item()) / exact.item(), 1e-5)


def json_config(path, optimizer, scheduler, clip, B, A):
    config = {"train_micro_batch_size_per_gpu": B, "gradient_accumulation_steps": A, "optimizer": optimizer,
              "gradient_clipping": clip}
    if scheduler:
        config["scheduler"] = scheduler
    with open(path, "w") as f:
        json.dump(config, f)


ADAMW = torch.optim.AdamW


def cases(steps):
    """One row per run. Adam's update does not depend on the scale of the gradient, so tests of clipping use an eps as large as an element."""
    def adam(wd, betas, eps=1e-8):
        return dict(lr=0.0, betas=betas, eps=eps, weight_decay=wd)
    return [
        dict(name="cosine, decay 0.1, clip 0.5, 3 micro-batches", variant="hf", A=3, clip=0.5,
             flags=["--lr", 2e-3, "--lr_schedule", "cosine", "--warmup_steps", 5, "--min_lr_ratio", 0.1,
                    "--weight_decay", 0.1, "--clip", 0.5, "--betas", "0.9,0.95", "--eps", 1e-3],
             rate=peers.Cosine(2e-3, 5, steps, 0.1), optimizer=(ADAMW, adam(0.1, (0.9, 0.95), 1e-3))),
        dict(name="JSON WarmupLR, decay 0.01, clip 1", variant="hf", A=1, clip=1.0,
             json=({"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}},
                   {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 2e-3, "warmup_num_steps": 8}}),
             rate=peers.warmup_lr(0.0, 2e-3, 8), optimizer=(ADAMW, adam(0.01, (0.9, 0.999)))),
        dict(name="JSON WarmupDecayLR, linear, 2 micro-batches, no clip", variant="hf", A=2, clip=0.0,
             json=({"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.8, 0.98], "eps": 1e-6, "weight_decay": 0.3}},
                   {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 1e-5, "warmup_max_lr": 2e-3, "warmup_num_steps": 6,
                                                        "total_num_steps": steps, "warmup_type": "linear"}}),
             rate=peers.warmup_decay_lr(1e-5, 2e-3, 6, steps, "linear"), optimizer=(ADAMW, adam(0.3, (0.8, 0.98), 1e-6))),
        dict(name="JSON WarmupCosineLR, decay 0.1, clip 0.3", variant="r1", A=1, clip=0.3,
             json=({"type": "AdamW", "params": {"lr": 2e-3, "betas": [0.9, 0.95], "eps": 1e-3, "weight_decay": 0.1}},
                   {"type": "WarmupCosineLR", "params": {"total_num_steps": steps, "warmup_num_steps": 6,
                                                         "warmup_min_ratio": 0.1, "cos_min_ratio": 0.001}}),
             rate=peers.warmup_cosine_lr(2e-3, 6, steps, 0.1, 0.001), optimizer=(ADAMW, adam(0.1, (0.9, 0.95), 1e-3))),
        dict(name="constant, no decay, no clip, 4 micro-batches", variant="r1", A=4, clip=0.0,
             flags=["--lr", 1e-3, "--lr_schedule", "constant", "--weight_decay", 0, "--clip", 0, "--betas", "0.9,0.999"],
             rate=peers.Constant(1e-3), optimizer=(ADAMW, adam(0.0, (0.9, 0.999)))),
        dict(name="loss on targets of pairs, 2 micro-batches", variant="hf", A=2, clip=1.0, masked=True,
             flags=["--lr", 1e-3, "--lr_schedule", "constant", "--weight_decay", 0.01, "--clip", 1.0, "--betas", "0.9,0.999"],
             rate=peers.Constant(1e-3), optimizer=(ADAMW, adam(0.01, (0.9, 0.999)))),
        dict(name="JSON Adam with coupled decay", variant="r1", A=1, clip=0.0,
             json=({"type": "Adam", "params": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.05,
                                               "adam_w_mode": False}}, None),
             rate=peers.Constant(1e-3), optimizer=(torch.optim.Adam, adam(0.05, (0.9, 0.999)))),
    ]


def full_cases():
    """Optimizer and rate of the ZeRO scaling study (docs/REFERENCES.md). The first updates of Adam divide a gradient by its own size, so elements with a
    gradient near 0 change by rounding errors alone. The 124M model has many of them, and any two fp32 programs differ slightly (fp32
    PyTorch differs from its own double results more than we do). Here losses are compared relatively, the rest within that noise."""
    adam = {"lr": 1e-4, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}
    for variant in ("hf", "r1"):
        yield dict(name="JSON WarmupLR to 1e-4, decay 0.01, clip 1", variant=variant, A=1, clip=1.0, full=True,
                   json=({"type": "AdamW", "params": adam},
                         {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 1e-4, "warmup_num_steps": 8}}),
                   rate=peers.warmup_lr(0.0, 1e-4, 8),
                   optimizer=(torch.optim.AdamW, dict(lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)))


def training(o, c, case, size, B, T, steps, work):
    variant, A, seed = case["variant"], case["A"], 11
    model = peers.make_model(variant, **size, seed=3)
    folder, data, out = (os.path.join(work, x) for x in (f"{variant}-start", "train.bin", "run"))
    peers.save_model(variant, model, folder)
    per_epoch = steps * 2 // 3  # so that the run crosses into the second epoch
    masked = case.get("masked", False)
    tokens(data, (per_epoch * B * A + 1) * T + 1, size["V"], 4, T if masked else 0)
    args = [o.lockstep, "train", "--init_from", folder, "--train_data_path", data, "--checkpoint_path", out, "--seq_length", T,
            "--max_steps", steps, "--seed", seed, "--dropout", 0]
    if "json" in case:
        json_config(os.path.join(work, "ds.json"), *case["json"], case["clip"], B, A)
        args += ["--deepspeed_config", os.path.join(work, "ds.json")]
    else:
        args += ["--micro_batch_size_per_gpu", B, "--grad_accum_steps", A, *case["flags"]]
    peers.run(args)
    ours = peers.read_jsonl(os.path.join(out, "metrics.jsonl"))
    kind, settings = case["optimizer"]
    theirs = peers.train(variant, model, peers.batches(data, T, B * A, seed), case["rate"], steps, A,
                         kind(model.parameters(), **settings), case["clip"])
    label = f"{variant} {case['name']}"
    if len(ours) != steps:
        raise SystemExit(f"{label}: {len(ours)} lines in metrics.jsonl, {steps} expected")
    apart = [abs(a["loss"] - b["loss"]) / (b["loss"] if case.get("full") else 1) for a, b in zip(ours, theirs)]
    c.within(f"{label}: losses of {steps} steps{', relative' if case.get('full') else ''}", max(apart), 1e-4,
             f"{theirs[0]['loss']:.4f} -> {theirs[-1]['loss']:.4f}")
    c.within(f"{label}: rates", max(abs(a["lr"] - b["lr"]) for a, b in zip(ours, theirs)), 1e-12)
    c.within(f"{label}: gradient norms",
             max(abs(a["grad_norm"] - b["grad_norm"]) / b["grad_norm"] for a, b in zip(ours, theirs)),
             5e-3 if case.get("full") else 1e-3)
    # Parameters whose true gradient is 0 (the bias of the keys) change by rounding errors alone: Adam divides noise by its own size.
    # Their part of c_attn.bias is not compared; the losses above do not depend on it.
    last = sorted((d for d in os.listdir(out) if d.startswith("epoch-")), key=lambda d: int(d[6:]))[-1]
    saved = load_file(os.path.join(out, last, "model.safetensors"))
    errors = {}
    for name, p in peers.as_folder(variant, lambda p: p.detach())(model).items():
        a, b = saved[name], p
        if name.endswith("c_attn.bias"):
            E = size["E"]
            a, b = (torch.cat([x[:E], x[2 * E :]]) for x in (a, b))
        errors[name] = relative(a, b)
    worst = max(errors, key=errors.get)
    c.within(f"{label}: weights after", errors[worst], 1e-3 if case.get("full") else 1e-4, f"worst: {worst}")


def evaluation(o, c, variant, size, work):
    model = peers.make_model(variant, **size, seed=5, shake=0.05)
    folder, data = os.path.join(work, f"{variant}-eval"), os.path.join(work, "val.bin")
    peers.save_model(variant, model, folder)
    T = size["P"] - 5
    tokens(data, 7 * T + 12, size["V"], 6)  # 7 sequences: batches of 3, 3 and 1
    ours = json.loads(peers.run([o.lockstep, "eval", "--checkpoint", folder, "--data", data, "--seq_length", T,
                                 "--micro_batch_size", 3, "--json"]))
    ids, target = peers.sequences(data, T)
    with torch.no_grad():
        loss = peers.mean_loss(variant, model, ids, target).item()
    c.within(f"{variant} eval", abs(ours["loss"] - loss) / loss, 1e-5, f"{loss:.6f}")
    c.within(f"{variant} eval counts every token", abs(ours["tokens"] - ids.numel()), 0)


def fresh(o, c, variant, work):
    V, T = 2048, 64
    r = np.random.default_rng(7)
    data, out = os.path.join(work, "random.bin"), os.path.join(work, f"fresh-{variant}")
    peers.write_tokens(data, r.integers(0, V, 32 * T + 1))
    peers.run([o.lockstep, "train", "--model", "tiny", "--variant", variant, "--vocab_size", V, "--train_data_path", data,
               "--checkpoint_path", out, "--seq_length", T, "--micro_batch_size_per_gpu", 32, "--max_steps", 1,
               "--dropout", 0])
    loss = peers.read_jsonl(os.path.join(out, "metrics.jsonl"))[0]["loss"]
    expected = math.log(V) + (1 / 6 if variant == "r1" else 0)
    c.within(f"{variant} loss of fresh weights is near {expected:.3f}", abs(loss - expected), 0.06, f"{loss:.4f}")


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("--lockstep", required=True)
    a.add_argument("--tool", required=True, help="the program oracle_parity_tool")
    a.add_argument("--full", action="store_true", help="GPT-2 124M at B2 T128 too (minutes, 10 GB)")
    a.add_argument("--only-full", action="store_true")
    o = a.parse_args()
    c = peers.Checks()

    def within_folder(f, *args, **kw):
        with tempfile.TemporaryDirectory(prefix="lockstep-parity-") as work:
            f(o, c, *args, work=work, **kw)

    if not o.only_full:
        for variant in ("hf", "r1"):
            within_folder(gradients, variant, SMALL, 3, 40, 1)
            within_folder(gradients, variant, SMALL, 2, 33, 5)
            within_folder(gradients, variant, SMALL, 2, 24, 2, compute="cpu-ref")
            within_folder(gradients, variant, SMALL, 3, 32, 3, masked=True)
            within_folder(evaluation, variant, SMALL)
            within_folder(fresh, variant)
        for case in cases(20):
            within_folder(training, case, SMALL, 3, 32, 20)
    if o.full or o.only_full:
        for variant in ("hf", "r1"):
            begin = time.time()
            within_folder(gradients, variant, FULL, 2, 128, 1)
            print(f"     {time.time() - begin:.0f} s", flush=True)
        for case in full_cases():
            begin = time.time()
            within_folder(training, case, FULL, 2, 128, 20)
            print(f"     {time.time() - begin:.0f} s", flush=True)
    c.end()


if __name__ == "__main__":
    main()
