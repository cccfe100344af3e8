"""Shared by the oracle tests: models in PyTorch, folders in both layouts, sample order, learning rates and the AdamW loop.

All of it was written from docs/REFERENCES.md and PyTorch, independently of our C code.
"""
import json
import math
import os
import subprocess

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

transformers.utils.logging.disable_progress_bar()
M64 = (1 << 64) - 1


# ---- models -------------------------------------------------------------------------------------------------------------

class R1Attention(nn.Module):
    def __init__(self, E, H):
        super().__init__()
        self.H = H
        self.query, self.key, self.value, self.out = (nn.Linear(E, E) for _ in range(4))

    def forward(self, x):
        B, T, E = x.shape
        q, k, v = (f(x).view(B, T, self.H, E // self.H).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = q @ k.transpose(-2, -1) / math.sqrt(E // self.H)
        mask = torch.triu(torch.full((T, T), torch.finfo(x.dtype).min, dtype=x.dtype), diagonal=1)
        return self.out((torch.softmax(scores + mask, dim=-1) @ v).transpose(1, 2).reshape(B, T, E))


class R1Block(nn.Module):
    def __init__(self, E, H):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(E, eps=1e-5), nn.LayerNorm(E, eps=1e-5)
        self.attn = R1Attention(E, H)
        self.fc1, self.fc2 = nn.Linear(E, 4 * E), nn.Linear(4 * E, E)

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))


class StudyModel(nn.Module):
    """The GPT-2 of the ZeRO scaling study (docs/REFERENCES.md): separate query, key and value, erf GELU, an untied head, torch's initialisation."""

    def __init__(self, L, H, E, P, V):
        super().__init__()
        self.size = dict(n_layer=L, n_head=H, n_embd=E, n_positions=P, vocab_size=V)
        self.token, self.position = nn.Embedding(V, E), nn.Embedding(P, E)
        self.blocks = nn.ModuleList(R1Block(E, H) for _ in range(L))
        self.ln_f = nn.LayerNorm(E, eps=1e-5)
        self.head = nn.Linear(E, V, bias=False)

    def forward(self, ids):
        x = self.token(ids) + self.position(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))


def r1_as_folder(get):
    """The tensors of StudyModel under Hugging Face's names and in its layout. get(parameter) picks the value or the gradient."""
    def names(model):
        out = {"transformer.wte.weight": get(model.token.weight), "transformer.wpe.weight": get(model.position.weight)}
        for i, b in enumerate(model.blocks):
            h, a = f"transformer.h.{i}.", b.attn
            out[h + "ln_1.weight"], out[h + "ln_1.bias"] = get(b.ln1.weight), get(b.ln1.bias)
            out[h + "attn.c_attn.weight"] = torch.cat([get(f.weight).T for f in (a.query, a.key, a.value)], dim=1)
            out[h + "attn.c_attn.bias"] = torch.cat([get(f.bias) for f in (a.query, a.key, a.value)])
            out[h + "attn.c_proj.weight"], out[h + "attn.c_proj.bias"] = get(a.out.weight).T, get(a.out.bias)
            out[h + "ln_2.weight"], out[h + "ln_2.bias"] = get(b.ln2.weight), get(b.ln2.bias)
            out[h + "mlp.c_fc.weight"], out[h + "mlp.c_fc.bias"] = get(b.fc1.weight).T, get(b.fc1.bias)
            out[h + "mlp.c_proj.weight"], out[h + "mlp.c_proj.bias"] = get(b.fc2.weight).T, get(b.fc2.bias)
        out["transformer.ln_f.weight"], out["transformer.ln_f.bias"] = get(model.ln_f.weight), get(model.ln_f.bias)
        out["lm_head.weight"] = get(model.head.weight)
        return out
    return names


def hf_as_folder(get):
    """The names of Hugging Face. The tied head shares the token embedding, whose gradient is the sum of both uses."""
    return lambda model: {name: get(p) for name, p in model.named_parameters()}


def as_folder(variant, get):
    return hf_as_folder(get) if variant == "hf" else r1_as_folder(get)


def make_model(variant, L, H, E, P, V, seed, shake=0.0):
    """A random model. shake adds noise to every parameter, also to the zeros and ones of norms and biases, so that an error in any shows."""
    torch.manual_seed(seed)
    if variant == "hf":
        config = GPT2Config(n_layer=L, n_head=H, n_embd=E, n_positions=P, vocab_size=V, embd_pdrop=0.0, attn_pdrop=0.0,
                            resid_pdrop=0.0, bos_token_id=V - 1, eos_token_id=V - 1)
        model = GPT2LMHeadModel(config)
    else:
        model = StudyModel(L, H, E, P, V)
    model.eval()  # no dropout; gradients are still computed
    with torch.no_grad():
        for p in model.parameters():
            if shake:
                p.add_(torch.randn_like(p) * shake)
    return model


def save_model(variant, model, folder):
    if variant == "hf":
        model.save_pretrained(folder)
        return
    os.makedirs(folder, exist_ok=True)
    tensors = r1_as_folder(lambda p: p.detach())(model)
    save_file({k: v.contiguous() for k, v in tensors.items()}, os.path.join(folder, "model.safetensors"))
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "lockstep_variant": "r1",
                   "activation_function": "gelu", "tie_word_embeddings": False, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
                   "resid_pdrop": 0.0, "layer_norm_epsilon": 1e-5, **model.size}, f)


def logits_of(variant, model, ids):
    return model(ids).logits if variant == "hf" else model(ids)


def mean_loss(variant, model, ids, target):
    logits = logits_of(variant, model, ids)
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1))


# ---- data ---------------------------------------------------------------------------------------------------------------

def write_tokens(path, ids):
    np.asarray(ids, dtype="<u2").tofile(path)


def write_pairs(path, ids, rng, S):
    """The ids as pairs of a source and a target, with their mask beside them; some are longer than a sequence, some targets are cut off."""
    mask = np.zeros(0, dtype=np.uint8)
    while len(mask) < len(ids):
        source, target = rng.integers(1, S), rng.integers(1, S)
        if rng.random() < 0.1:
            source = S + 1
        mask = np.concatenate([mask, np.zeros(source, np.uint8), np.ones(target, np.uint8)])
    mask = mask[: len(ids)]
    mask[-1] = 1
    write_tokens(path, ids)
    mask.tofile(path.removesuffix(".bin") + ".mask")


def pairs(ids, mask, S):
    """Each pair padded with id 2 or cut to S + 1 ids; targets that the mask does not count are -100, which cross_entropy ignores."""
    starts = np.flatnonzero((mask == 0) & (np.concatenate([[1], mask[:-1]]) == 1))
    rows = []
    for a, b in zip(starts, [*starts[1:], len(ids)]):
        x, m = np.full(S + 1, 2, np.int64), np.zeros(S + 1, np.int64)
        n = min(b - a, S + 1)
        x[:n], m[:n] = ids[a : a + n], mask[a : a + n]
        rows.append((x[:-1], np.where(m[1:] == 1, x[1:], -100)))
    return tuple(torch.from_numpy(np.stack(c)) for c in zip(*rows))


def sequences(path, S):
    """All whole sequences of a file: inputs and targets, (n, S)."""
    ids = np.fromfile(path, dtype="<u2").astype(np.int64)
    mask = path.removesuffix(".bin") + ".mask"
    if os.path.exists(mask):
        return pairs(ids, np.fromfile(mask, dtype=np.uint8), S)
    n = (len(ids) - 1) // S
    return torch.from_numpy(ids[: n * S].reshape(n, S)), torch.from_numpy(ids[1 : n * S + 1].reshape(n, S))


def mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M64
    return z ^ (z >> 31)


def order_key(seed, epoch):
    order = 2  # identifies the stream of random numbers for the sample order
    k = mix((seed + 0x9E3779B97F4A7C15 * order) & M64)
    k = mix(k ^ ((epoch + 0x632BE59BD9B4E019) & M64))
    return mix(k ^ 0x2545F4914F6CDD1D)


def sample_order(seed, epoch, n):
    """The keyed permutation of an epoch: six Feistel rounds over the next even power of two, repeated until the result is below n."""
    if n < 2:
        return [0] * n
    key, half = order_key(seed, epoch), 1
    while (n - 1) >> (2 * half):
        half += 1
    mask = (1 << half) - 1
    rounds = [mix(key ^ ((r + 1) * 0xD1342543DE82EF95 & M64)) for r in range(6)]

    def walk(i):
        while True:
            left, right = i >> half, i & mask
            for k in rounds:
                left, right = right, left ^ (mix((k + (right + 1) * 0x9E3779B97F4A7C15) & M64) & mask)
            i = left << half | right
            if i < n:
                return i
    order = [walk(i) for i in range(n)]
    assert sorted(order) == list(range(n))
    return order


def batches(path, S, per_step, seed):
    """Endless (ids, target) of complete optimizer steps; the rest of an epoch is dropped."""
    ids, target = sequences(path, S)
    epoch = 0
    while True:
        order = sample_order(seed, epoch, len(ids))
        for at in range(0, len(ids) - per_step + 1, per_step):
            pick = order[at : at + per_step]
            yield ids[pick], target[pick]
        epoch += 1


# ---- rates --------------------------------------------------------------------------------------------------------------

class Rate:
    """As in DeepSpeed: an index that starts at -1 and advances after each applied update; `at(i)` is the schedule."""

    def __init__(self, first, at):
        self.i, self.first, self.at = -1, first, at

    def next(self):
        rate = self.first if self.i < 0 else self.at(self.i)
        self.i += 1
        return rate


def warm(kind, i, N):
    return math.log(i + 1) / math.log(N) if kind == "log" else i / N


def warmup_lr(lo, hi, N, kind="log"):
    return Rate(lo, lambda i: lo + (hi - lo) * (warm(kind, i, N) if i < N else 1.0))


def warmup_decay_lr(lo, hi, N, T, kind="log"):
    return Rate(lo, lambda i: lo + (hi - lo) * (warm(kind, i, N) if i < N else max(0.0, (T - i) / max(1, T - N))))


def warmup_cosine_lr(base, N, T, r0=0.0, c=0.0001, kind="log"):
    def at(i):
        if i < N:
            return base * (r0 + (1 - r0) * warm(kind, i, N))
        x = min(1.0, (i - N + 1) / max(1, T - N))
        return base * (c + (1 - c) * (1 + math.cos(math.pi * x)) / 2)
    return Rate(0.0, at)


class Cosine:
    """Our schedule: linear warm-up that starts above 0, then a half cosine down to a fraction of the peak at update T."""

    def __init__(self, base, w, T, floor):
        self.k, self.base, self.w, self.T, self.floor = 0, base, w, T, floor

    def next(self):
        self.k += 1
        if self.k <= self.w:
            return self.base * self.k / self.w
        x = min(1.0, (self.k - self.w) / max(1, self.T - self.w))
        return self.base * (self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * x)))


class Constant:
    def __init__(self, base):
        self.base = base

    def next(self):
        return self.base


# ---- the training loop in PyTorch ---------------------------------------------------------------------------------------

def train(variant, model, stream, rate, steps, accum, optimizer, clip):
    """Micro-batches by autograd accumulation, clip_grad_norm_, torch's optimizer. Returns one row per step."""
    rows = []
    for _ in range(steps):
        ids, target = next(stream)
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for x, y in zip(ids.chunk(accum), target.chunk(accum)):
            loss = mean_loss(variant, model, x, y) * ((y >= 0).sum() / (target >= 0).sum()).item()
            loss.backward()
            total += loss.item()
        norm = nn.utils.clip_grad_norm_(model.parameters(), clip if clip > 0 else float("inf")).item()
        lr = rate.next()
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        rows.append({"loss": total, "grad_norm": norm, "lr": lr})
    return rows


# ---- lockstep -----------------------------------------------------------------------------------------------------------

def run(args, **kw):
    p = subprocess.run([str(a) for a in args], capture_output=True, text=True, **kw)
    if p.returncode:
        raise SystemExit(f"failed ({p.returncode}): {' '.join(str(a) for a in args)}\n{p.stdout[-2000:]}{p.stderr[-4000:]}")
    return p.stdout


def read_jsonl(path):
    with open(path) as f:
        return [json.loads(line) for line in f if line.strip()]


class Checks:
    """Named comparisons. Each is printed; one that fails makes the test fail."""

    def __init__(self):
        self.failed = []

    def within(self, name, value, limit, note=""):
        good = value <= limit  # false for NaN
        print(f"{'ok  ' if good else 'FAIL'} {name}: {value:.3g} (limit {limit:.3g}){'  ' + note if note else ''}", flush=True)
        if not good:
            self.failed.append(name)

    def end(self):
        if self.failed:
            raise SystemExit(f"{len(self.failed)} comparison(s) failed: {', '.join(self.failed)}")
        print("all comparisons are within their limits")
