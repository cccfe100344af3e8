"""GPT-2 with a key-value cache in plain PyTorch on a GPU, for comparison: perf/generate_peers.py --device cuda starts it.

bf16, scaled_dot_product_attention, a cache of fixed size with a mask. Variants of the pass over one token: eager; the same, captured as a CUDA
graph; torch.compile (reduce-overhead, which captures graphs, too). With transformers installed also its GPT2LMHeadModel, eager.
Reads lines "<variant> <batch>" and answers each with one line of JSON: the times of the prompts and of the new tokens after a warm-up.

  python perf/generate_torch.py MODEL_FOLDER --prompt 128 --new 128 --batches 1,8,64 [--no_compile]
"""
import argparse
import json
import os
import struct
import sys
import time

try:
    import torch
    import torch.nn.functional as F
except ImportError as e:
    sys.exit(f"generate_torch.py: {e}: install PyTorch")

HEADS, LAYERS, WIDTH = 12, 12, 768


def read_tensors(path):
    """The fp32 tensors of a safetensors file."""
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = bytearray(f.read())
    header.pop("__metadata__", None)
    return {name.removeprefix("transformer."): torch.frombuffer(data, dtype=torch.float32, offset=x["data_offsets"][0],
                                                               count=(x["data_offsets"][1] - x["data_offsets"][0]) // 4).view(x["shape"])
            for name, x in header.items() if x["dtype"] == "F32"}


class Decoder(torch.nn.Module):
    def __init__(self, weights, batch, length):
        super().__init__()
        for name, x in weights.items():  # buffers: a compiled pass reads them where they are
            self.register_buffer(name.replace(".", "_"), x)
        shape = (batch, HEADS, length, WIDTH // HEADS)
        for i in range(LAYERS):
            for kind in "kv":
                self.register_buffer(f"{kind}{i}", torch.zeros(shape, device="cuda", dtype=torch.bfloat16))
        self.register_buffer("mask", torch.ones(length, length, device="cuda", dtype=torch.bool).tril())

    def forward(self, ids, pos):
        """The most likely next ids (B,1) after columns pos (T) of ids (B,T)."""
        B, T = ids.shape
        x = self.wte_weight[ids] + self.wpe_weight[pos]
        mask = self.mask[pos]
        for i in range(LAYERS):
            p = f"h_{i}_"
            y = F.layer_norm(x, (WIDTH,), getattr(self, p + "ln_1_weight"), getattr(self, p + "ln_1_bias"))
            q, k, v = (t.view(B, T, HEADS, -1).transpose(1, 2) for t in F.linear(y, getattr(self, p + "attn_c_attn_weight"), getattr(self, p + "attn_c_attn_bias")).split(WIDTH, -1))
            keys, values = getattr(self, f"k{i}"), getattr(self, f"v{i}")
            keys.index_copy_(2, pos, k)
            values.index_copy_(2, pos, v)
            y = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask).transpose(1, 2).reshape(B, T, WIDTH)
            x = x + F.linear(y, getattr(self, p + "attn_c_proj_weight"), getattr(self, p + "attn_c_proj_bias"))
            y = F.layer_norm(x, (WIDTH,), getattr(self, p + "ln_2_weight"), getattr(self, p + "ln_2_bias"))
            y = F.gelu(F.linear(y, getattr(self, p + "mlp_c_fc_weight"), getattr(self, p + "mlp_c_fc_bias")), approximate="tanh")
            x = x + F.linear(y, getattr(self, p + "mlp_c_proj_weight"), getattr(self, p + "mlp_c_proj_bias"))
        y = F.layer_norm(x[:, -1:], (WIDTH,), self.ln_f_weight, self.ln_f_bias)
        return F.linear(y, self.wte_weight).argmax(-1)


class Own:
    """A decoder and one variant of its pass over one token."""

    def __init__(self, weights, batch, length, kind):
        self.model = Decoder(weights, batch, length)
        self.ids = torch.zeros(batch, 1, device="cuda", dtype=torch.long)
        self.pos = torch.zeros(1, device="cuda", dtype=torch.long)
        self.kind = kind
        if kind == "compile":
            self.step = torch.compile(self.model, mode="reduce-overhead", fullgraph=True, dynamic=False)
        elif kind == "graph":
            torch.cuda.synchronize()  # another stream reads what this one has written
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(3):
                    self.model(self.ids, self.pos)
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.out = self.model(self.ids, self.pos)

    def next(self):
        if self.kind == "graph":
            self.graph.replay()
            return self.out
        if self.kind == "compile":
            torch.compiler.cudagraph_mark_step_begin()
            return self.step(self.ids, self.pos)
        return self.model(self.ids, self.pos)

    def prompt(self, ids):
        return self.model(ids, torch.arange(ids.shape[1], device="cuda"))

    def new(self, last, n, first):
        """n tokens; their ids stay on the GPU until the end, as a program without stop texts may leave them."""
        made = [last]
        for i in range(n - 1):
            self.ids.copy_(made[-1])
            self.pos.fill_(first + i)
            made.append(self.next().clone())
        return torch.cat(made, 1).cpu()


class Transformers:
    def __init__(self, folder):
        import transformers

        self.model = transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=torch.bfloat16).cuda().eval()

    def prompt(self, ids):
        out = self.model(ids, use_cache=True, logits_to_keep=1)
        self.cache = out.past_key_values
        return out.logits[:, -1].argmax(-1, keepdim=True)

    def new(self, last, n, first):
        made = [last]
        for _ in range(n - 1):
            out = self.model(made[-1], past_key_values=self.cache, use_cache=True)
            made.append(out.logits[:, -1].argmax(-1, keepdim=True))
        return torch.cat(made, 1).cpu()


def measure(run, ids, new):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    last = run.prompt(ids)
    torch.cuda.synchronize()
    middle = time.perf_counter()
    made = run.new(last, new, ids.shape[1])
    end = time.perf_counter()
    return {"prompt_tokens": ids.numel(), "prompt_s": middle - begin, "new_tokens": made.numel(), "new_s": end - middle}


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("folder")
    a.add_argument("--prompt", type=int, default=128)
    a.add_argument("--new", type=int, default=128)
    a.add_argument("--batches", default="1,8,64")
    a.add_argument("--no_compile", action="store_true")
    o = a.parse_args()
    weights = {}
    for name, x in read_tensors(os.path.join(o.folder, "model.safetensors")).items():
        x = x.cuda()
        if name.startswith("h.") and x.dim() == 2:
            x = x.t()  # Conv1D stores (in, out)
        weights[name] = x.to(torch.bfloat16).contiguous()
    runs, prompts = {}, {}
    with torch.no_grad():
        for batch in map(int, o.batches.split(",")):
            g = torch.Generator().manual_seed(batch)
            prompts[batch] = torch.randint(0, 50000, (batch, o.prompt), generator=g).cuda()
            for kind in ("eager", "graph") + (() if o.no_compile else ("compile",)) + ("transformers",):
                try:
                    run = Transformers(o.folder) if kind == "transformers" else Own(weights, batch, o.prompt + o.new, kind)
                    for _ in range(2):
                        measure(run, prompts[batch], min(o.new, 8))
                    runs[kind, batch] = run
                except Exception as e:  # a variant that this installation cannot do
                    print(f"left out: {kind}, batch {batch}: {type(e).__name__}: {(str(e).splitlines() or [''])[0]}", file=sys.stderr)
        print(json.dumps({"variants": [[k, b] for k, b in runs], "torch": torch.__version__, "gpu": torch.cuda.get_device_name()}), flush=True)
        for line in sys.stdin:
            kind, batch = line.split()
            print(json.dumps(measure(runs[kind, int(batch)], prompts[int(batch)], o.new)), flush=True)


if __name__ == "__main__":
    main()
