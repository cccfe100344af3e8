"""PyTorch side of the GPU benchmarks: GPT-2 with all common optimizations, controlled by commands on stdin.
(ls-bench: by name; started by other scripts.)

Vocabulary padded to a multiple of 128 (50304), SDPA attention (the backend of --sdp), tanh GELU, bf16 or fp16 autocast (or fp32, TF32
products, or fp64), fused AdamW, gradients set to None (in graphs with several micro-batches: to 0), clipping at norm 1 (foreach), inputs copied
asynchronously from pinned memory, losses read only at the end of a segment. --mode eager | compile | compile-graphs (mode="reduce-overhead") | compile-max ("max-autotune-no-cudagraphs").

Protocol: prints one JSON line when it is ready (compiled, warm), then for each line on stdin
  steps N      N optimizer steps -> {"seconds": …, "steps": N, "loss": the last one}
  for S N      steps for about S seconds, at least N of them; the same answer
  losses N     N optimizer steps, every loss read -> {"losses": […], "norms": […], "rates": […]}
  gradients F  of one step, by their names in model.safetensors, to the file F (npz) -> {"loss": …}; the weights stay
  memory       -> {"allocated": peak bytes, "reserved": peak bytes}
  quit
Between answers the GPU is idle. Data: batches of a token file in the order of the lockstep trainer (--order ours: the keyed permutation of
--seed), or in file order (--order file: no gather, the least work).
"""
import argparse
import contextlib
import json
import math
import os
import sys
import time

try:
    import numpy as np
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
except ImportError as e:
    sys.exit(f"gpu_torch.py: {e}: install numpy and PyTorch")

from compare import SIZES
from torch_gpt2 import GPT2

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "oracle"))


def read_safetensors(path):
    """name -> float array."""
    raw = np.fromfile(path, dtype=np.uint8)
    n = int(raw[:8].view("<u8")[0])
    head = json.loads(bytes(raw[8 : 8 + n]))
    head.pop("__metadata__", None)
    for name, t in head.items():
        if t["dtype"] != "F32":
            raise SystemExit(f"{path}: {name} is {t['dtype']}, F32 expected")
    return {name: raw[8 + n + t["data_offsets"][0] : 8 + n + t["data_offsets"][1]].view("<f4").reshape(t["shape"]) for name, t in head.items()}


def named(model):
    """(name as in model.safetensors, parameter, whether it is stored transposed)"""
    yield "wte.weight", model.wte.weight, False
    yield "wpe.weight", model.wpe.weight, False
    for i, b in enumerate(model.blocks):
        for ours, theirs in ((b.ln_1, "ln_1"), (b.ln_2, "ln_2"), (b.qkv, "attn.c_attn"), (b.proj, "attn.c_proj"), (b.fc, "mlp.c_fc"), (b.out, "mlp.c_proj")):
            yield f"h.{i}.{theirs}.weight", ours.weight, ours.weight.dim() == 2
            yield f"h.{i}.{theirs}.bias", ours.bias, False
    yield "ln_f.weight", model.ln_f.weight, False
    yield "ln_f.bias", model.ln_f.bias, False


def load_folder(model, folder):
    """The weights of a Hugging Face folder (model.safetensors); ids beyond the vocabulary are not changed."""
    t = {k.removeprefix("transformer."): v for k, v in read_safetensors(os.path.join(folder, "model.safetensors")).items()}
    with torch.no_grad():
        for name, p, transposed in named(model):
            v = torch.from_numpy(t[name].copy())
            p[: v.shape[1 if transposed else 0]].copy_(v.T if transposed else v)


def batches(o, device):
    """Endless (accum, micro, T) pairs on the device, copied from pinned memory without a wait."""
    ids = np.fromfile(o.data, dtype="<u2")
    n, T = (len(ids) - 1) // o.seq, o.seq
    per = o.batch * o.accum
    pinned = device == "cuda"
    epoch = 0
    while True:
        if o.order == "ours":
            import peers  # the order as docs/ARCHITECTURE.md has it, written apart from the C code
            order = np.asarray(peers.sample_order(o.seed, epoch, n), dtype=np.int64)
        else:
            order = np.arange(n)
        for at in range(0, n - per + 1, per):
            begin = order[at : at + per] * T
            both = np.stack([ids[b : b + T + 1] for b in begin]).astype(np.int64)
            x = torch.from_numpy(both)
            if pinned:
                x = x.pin_memory()
            x = x.to(device, non_blocking=True).view(o.accum, o.batch, T + 1)
            yield x[..., :-1].contiguous(), x[..., 1:].contiguous()
        epoch += 1


def sdpa(kind):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    return sdpa_kernel([{"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
                         "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}[kind]])


def pick_sdp(o, dtype):
    """The fastest of PyTorch's ways for a layer of this shape, forward and backward; "auto" where none answers."""
    _, heads, width, _ = SIZES[o.model]
    times = {}
    for kind in ("flash", "cudnn", "efficient"):
        try:
            qkv = torch.randn(o.batch, o.seq, 3, heads, width // heads, device="cuda", dtype=dtype or torch.float32, requires_grad=True)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            with sdpa(kind):
                for i in range(13):
                    if i == 3:
                        begin.record()
                    q, k, v = (qkv[:, :, j].transpose(1, 2) for j in range(3))
                    F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
                end.record()
            torch.cuda.synchronize()
            times[kind] = begin.elapsed_time(end)
        except RuntimeError:  # not for this type or shape
            continue
    return min(times, key=times.get) if times else "auto"


class Trainer:
    def __init__(self, o):
        self.o, self.device = o, o.device
        layers, heads, width, positions = SIZES[o.model]
        padded = -(-o.vocab // 128) * 128
        torch.manual_seed(0)
        self.model = GPT2(layers, heads, width, positions, o.vocab, padded, o.checkpoint)
        if o.init:
            load_folder(self.model, o.init)
        self.model.mask = bool(o.init) or o.exact
        self.model.to(o.device)
        if o.precision == "fp64":
            self.model.double()
        self.dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(o.precision)
        if o.precision == "tf32":
            torch.set_float32_matmul_precision("high")
        modes = {"compile": {}, "compile-graphs": {"mode": "reduce-overhead"}, "compile-max": {"mode": "max-autotune-no-cudagraphs"}}
        self.step_model = torch.compile(self.model, **modes[o.mode]) if o.mode in modes else self.model
        settings = dict(lr=o.lr, betas=tuple(o.betas), eps=o.eps, weight_decay=o.weight_decay)
        try:
            self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True, **settings)
            self.adamw = "fused"
        except (RuntimeError, TypeError):
            self.optimizer = torch.optim.AdamW(self.model.parameters(), foreach=True, **settings)
            self.adamw = "foreach"
        self.sdp = "auto" if o.device != "cuda" or o.precision == "fp64" else pick_sdp(o, self.dtype) if o.sdp == "best" else o.sdp
        self.scaler = torch.amp.GradScaler(o.device, enabled=o.precision == "fp16")
        # a graph overwrites its outputs in its next replay, so micro-batches are added to gradients with memory of their own
        self.own_grads = o.mode == "compile-graphs" and o.accum > 1
        for p in self.model.parameters() if self.own_grads else ():
            p.grad = torch.zeros_like(p)
        self.stream = batches(o, o.device)
        self.next = next(self.stream)
        self.count = 0

    def sync(self):
        if self.device == "cuda":
            torch.cuda.synchronize()

    def attention(self):
        if self.sdp == "auto":
            return contextlib.nullcontext()
        return sdpa(self.sdp)

    def rate(self):
        o = self.o
        if o.lr_schedule == "constant":
            return o.lr
        k = self.count + 1  # ours: linear warm-up from above 0, then half a cosine down to min_lr_ratio at the last step
        if k <= o.warmup_steps:
            return o.lr * k / o.warmup_steps
        part = min(1.0, (k - o.warmup_steps) / max(1, o.total_steps - o.warmup_steps))
        return o.lr * (o.min_lr_ratio + (1 - o.min_lr_ratio) * 0.5 * (1 + math.cos(math.pi * part)))

    def step(self):
        x, y = self.next
        self.optimizer.zero_grad(set_to_none=not self.own_grads)
        total = None
        for m in range(self.o.accum):
            if self.o.mode == "compile-graphs":
                torch.compiler.cudagraph_mark_step_begin()
            with torch.autocast(self.device, dtype=self.dtype, enabled=self.dtype is not None), self.attention():
                loss = self.step_model(x[m], y[m])
            self.scaler.scale(loss / self.o.accum).backward()
            part = loss.detach().clone() if self.o.mode == "compile-graphs" else loss.detach()
            total = part if total is None else total + part
        self.next = next(self.stream)  # while the GPU works
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.o.clip if self.o.clip > 0 else float("inf"), foreach=True)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.count += 1
        return total / self.o.accum, norm

    def run(self, seconds, least):
        self.sync()
        begin, n, loss = time.perf_counter(), 0, None
        while n < least or (seconds and time.perf_counter() - begin < seconds):
            for _ in range(max(1, min(10, least))):
                loss, _ = self.step()
                n += 1
            if seconds:
                self.sync()  # the clock must mean something; once in ten steps
        self.sync()
        return {"seconds": time.perf_counter() - begin, "steps": n, "loss": loss.item()}

    def gradients(self, path):
        x, y = self.next
        self.optimizer.zero_grad(set_to_none=not self.own_grads)
        loss = 0.0
        for m in range(self.o.accum):
            with torch.autocast(self.device, dtype=self.dtype, enabled=self.dtype is not None), self.attention():
                part = self.step_model(x[m], y[m]) / self.o.accum
            part.backward()
            loss += part.item()
        vocab = self.o.vocab
        np.savez(path, **{name: (p.grad.T if transposed else p.grad[:vocab] if name == "wte.weight" else p.grad).double().cpu().numpy()
                          for name, p, transposed in named(self.model)})
        return {"loss": loss}

    def losses(self, n):
        rows = {"losses": [], "norms": [], "rates": []}
        kept = []
        for _ in range(n):
            rows["rates"].append(self.rate())
            kept.append(self.step())
            if len(kept) == 50:  # read now and then: a wait at every step would only cost time
                rows["losses"] += [a.item() for a, _ in kept]
                rows["norms"] += [b.item() for _, b in kept]
                kept = []
        rows["losses"] += [a.item() for a, _ in kept]
        rows["norms"] += [b.item() for _, b in kept]
        return rows

    def memory(self):
        if self.device != "cuda":
            return {"allocated": 0, "reserved": 0}
        return {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("--data", required=True, help="file of 16-bit ids, little-endian")
    a.add_argument("--model", default="gpt2", choices=sorted(SIZES))
    a.add_argument("--vocab", type=int, default=50257)
    a.add_argument("--batch", type=int, default=4, help="sequences per micro-batch")
    a.add_argument("--accum", type=int, default=1)
    a.add_argument("--seq", type=int, default=512)
    a.add_argument("--precision", default="bf16", choices=["bf16", "fp16", "fp32", "tf32", "fp64"])
    a.add_argument("--mode", default="compile", choices=["eager", "compile", "compile-graphs", "compile-max"])
    a.add_argument("--sdp", default="best", choices=["best", "auto", "flash", "cudnn", "efficient"],
                   help="attention kernel; best: measure all and use the fastest")
    a.add_argument("--checkpoint", action="store_true", help="recompute blocks in backward")
    a.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    a.add_argument("--warm", type=int, default=5, help="warm-up steps")
    a.add_argument("--init", help="Hugging Face folder with initial weights; masks the padding of the vocabulary")
    a.add_argument("--exact", action="store_true", help="mask the padding of the vocabulary")
    a.add_argument("--order", default="file", choices=["file", "ours"])
    a.add_argument("--seed", type=int, default=1337)
    a.add_argument("--lr", type=float, default=3e-4)
    a.add_argument("--betas", type=float, nargs=2, default=[0.9, 0.95])
    a.add_argument("--eps", type=float, default=1e-8)
    a.add_argument("--weight_decay", type=float, default=0.1)
    a.add_argument("--clip", type=float, default=1.0)
    a.add_argument("--lr_schedule", default="constant", choices=["constant", "cosine"])
    a.add_argument("--warmup_steps", type=int, default=0)
    a.add_argument("--min_lr_ratio", type=float, default=0.1)
    a.add_argument("--total-steps", type=int, default=1)
    o = a.parse_args()
    t = Trainer(o)
    begin = time.perf_counter()
    if o.warm:
        t.run(0, o.warm)
        if o.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            t.run(0, 2)
    ready = {"ready": True, "torch": torch.__version__, "mode": o.mode, "adamw": t.adamw, "sdp": t.sdp, "warm_seconds": time.perf_counter() - begin,
             "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version() if o.device == "cuda" else None,
             "gpu": torch.cuda.get_device_name() if o.device == "cuda" else None}
    print(json.dumps(ready), flush=True)
    for line in sys.stdin:
        words = line.split()
        if not words or words[0] == "quit":
            break
        if words[0] == "steps":
            answer = t.run(0, int(words[1]))
        elif words[0] == "for":
            answer = t.run(float(words[1]), int(words[2]))
        elif words[0] == "losses":
            answer = t.losses(int(words[1]))
        elif words[0] == "gradients":
            answer = t.gradients(words[1])
        elif words[0] == "memory":
            answer = t.memory()
        else:
            answer = {"error": f"no such command: {line.strip()}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
