"""PyTorch side of the training benchmark on CPUs, and the GPT-2 of all PyTorch benchmarks.
(ls-bench: by name; started by other scripts.)

Fused query-key-value projection, F.scaled_dot_product_attention, tanh GELU, tied head, cross_entropy over all rows at once,
AdamW with fused=True where the build has it, gradients set to None between steps. No dropout. fp32.

Run as a program it trains a few steps on a file of 16-bit ids and prints one JSON line: seconds of each step, losses, and the
peak resident memory of the process (also before the model was created, to show the share of the libraries).
"""
import argparse
import json
import math
import resource
import sys
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from compare import SIZES


class Block(nn.Module):
    def __init__(self, n_head, width):
        super().__init__()
        self.n_head = n_head
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (y.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
                   for y in self.qkv(self.ln_1(x)).split(C, dim=2))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(B, T, C))
        return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    """padded: rows of the embedding, more than the vocabulary for speed. If results are compared (mask), the additional rows are left
    out of the softmax. checkpoint: recompute the activations of blocks."""

    def __init__(self, n_layer, n_head, width, n_ctx=1024, vocab=50257, padded=0, checkpoint=False):
        super().__init__()
        self.vocab, self.checkpoint, self.mask = vocab, checkpoint, False
        self.wte, self.wpe = nn.Embedding(padded or vocab, width), nn.Embedding(n_ctx, width)
        self.blocks = nn.ModuleList(Block(n_head, width) for _ in range(n_layer))
        self.ln_f = nn.LayerNorm(width)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                last = name.endswith(("proj.weight", "out.weight"))
                nn.init.normal_(p, std=0.02 / (math.sqrt(2 * n_layer) if last else 1))
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, ids, target):
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for block in self.blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) if self.checkpoint else block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        if self.mask:
            logits = logits[..., : self.vocab]
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.view(-1))


def make_optimizer(model, lr=3e-4):
    settings = dict(lr=lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    try:
        return torch.optim.AdamW(model.parameters(), fused=True, **settings), "fused"
    except (RuntimeError, TypeError) as why:
        print(f"fused AdamW is not available ({why}); using foreach", file=sys.stderr)
        return torch.optim.AdamW(model.parameters(), foreach=True, **settings), "foreach"


def peak_rss():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("--data", required=True, help="file of 16-bit ids, little-endian")
    a.add_argument("--model", default="gpt2", choices=sorted(SIZES))
    a.add_argument("--batch", type=int, default=4)
    a.add_argument("--seq", type=int, default=512)
    a.add_argument("--steps", type=int, default=3, help="timed steps, after one warm-up step")
    a.add_argument("--threads", type=int, default=0)
    a.add_argument("--clip", type=float, default=1.0)
    a.add_argument("--compile", action="store_true")
    a.add_argument("--bf16", action="store_true", help="forward and loss under torch.autocast in bfloat16")
    o = a.parse_args()
    if o.threads:
        torch.set_num_threads(o.threads)
    torch.manual_seed(0)
    libraries = peak_rss()
    model = GPT2(*SIZES[o.model])
    step_model = torch.compile(model) if o.compile else model
    optimizer, adamw = make_optimizer(model)
    ids = np.fromfile(o.data, dtype="<u2").astype(np.int64)
    n = o.batch * o.seq
    times, cpu, losses = [], [], []
    for step in range(o.steps + 1):
        at = (step * n) % (len(ids) - n)
        x = torch.from_numpy(ids[at : at + n]).view(o.batch, o.seq)
        y = torch.from_numpy(ids[at + 1 : at + n + 1]).view(o.batch, o.seq)
        begin, used = time.perf_counter(), time.process_time()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=o.bf16):
            loss = step_model(x, y)
        loss.backward()
        if o.clip > 0:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
        optimizer.step()
        losses.append(loss.item())
        times.append(time.perf_counter() - begin)
        cpu.append(time.process_time() - used)
    print(json.dumps({"torch": torch.__version__, "mode": "compile" if o.compile else "eager", "bf16": o.bf16, "adamw": adamw,
                      "threads": torch.get_num_threads(), "first_step": times[0], "steps": times[1:],
                      "cpu": cpu[1:], "loss": losses,
                      "tokens": n, "peak_rss": peak_rss(), "rss_of_libraries": libraries}))


if __name__ == "__main__":
    main()
