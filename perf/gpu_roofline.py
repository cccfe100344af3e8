"""Lower bound of the time of a training step, from its parts measured separately, compared with the measured step.
(ls-bench: by name; needs a GPU.)

  products     perf/cuda_gemm: every matrix product of a step, each with its best algorithm
  attention    perf/cuda_attention: forward and backward of a layer with the fastest kernel that a run may use by default, times the number of layers
  the rest     perf/cuda_kernels: memory-bound kernels (norms, embeddings, softmax, AdamW, gradient norm), times their number per step
  step         the file of perf/gpu_vs_torch.py (--speed), and per operation from a profile of lockstep (--profile RUN_DIR)

The lower bound is their sum, because one stream runs them in sequence. The three programs are run from --tools, or their output is read from
--texts (cuda_gemm.txt, cuda_attention.txt, cuda_kernels.txt). `TFLOP/s of the products` is the value for --ceiling of gpu_vs_torch.py.

  python perf/gpu_roofline.py --tools build --batch 64 --seq 1024 [--speed OUT/gpu_vs_torch.json --case b64] [--profile RUN] [--out DIR]
"""
import argparse
import json
import os
import re
import subprocess
import sys

import compare

LAYERS, HEADS, WIDTH = 12, 12, 768  # the three programs measure GPT-2 124M

# Calls per step of one micro-batch; residual additions are fused into the next norm, GELU into the products.
CALLS = {
    "embed_fwd": 1, "sort_ids": 1, "embed_bwd": 1, "layernorm_fwd": 1, "add_layernorm_fwd": 2 * LAYERS, "layernorm_again": 2 * LAYERS,
    "layernorm_bwd + dres": 2 * LAYERS, "layernorm_bwd": 1, "softmax loss + grad": 1, "adamw": 1, "sumsq": 1,
}


def run(tool, args, keep):
    p = subprocess.run([tool, *map(str, args)], capture_output=True, text=True)
    text = p.stdout + p.stderr
    if keep:
        with open(os.path.join(keep, os.path.basename(tool) + ".txt"), "w") as f:
            f.write(text)
    if p.returncode:
        print(f"{os.path.basename(tool)} ended with {p.returncode}: {text[-800:]}", file=sys.stderr)
    return text


def products(text, rows):
    """(ms, TFLOP/s) of the block whose heading has these rows."""
    found = None
    heading = None
    for line in text.splitlines():
        m = re.match(r"(\w+), (\d+) rows", line)
        if m:
            heading = int(m.group(2))
        m = re.match(r"all products of a step: ([\d.]+) ms, ([\d.]+) TFLOP/s", line)
        if m and (heading is None or heading == rows):
            found = (float(m.group(1)), float(m.group(2)))
    return found


def attention(text, batch, seq):
    """(ms of a layer, forward and backward, which way) of the fastest forward and the fastest backward: they are chosen separately."""
    best, here = [None, None], False
    for line in text.splitlines():
        m = re.match(r"\s+B(\d+) T(\d+) H(\d+) D(\d+)", line)
        if m:
            here = (int(m.group(1)), int(m.group(2)), int(m.group(3))) == (batch, seq, HEADS)
        m = re.search(r"^\s+(\S.*?)\s+forward\s+([\d.]+) ms.*backward\s+([\d.]+) ms.*both\s+([\d.]+) ms", line)
        if m and here and not m.group(1).endswith("drop"):
            for k in range(2):
                if best[k] is None or float(m.group(2 + k)) < best[k][0]:
                    best[k] = (float(m.group(2 + k)), m.group(1).strip())
    return best[0] and (best[0][0] + best[1][0], f"forward {best[0][1]}, backward {best[1][1]}")


def kernels(text, batch, seq):
    """name -> ms of a launch."""
    out, here = {}, False
    for line in text.splitlines():
        m = re.match(r"\S+, batch (\d+) x (\d+)", line)
        if m:
            here = (int(m.group(1)), int(m.group(2))) == (batch, seq)
        m = re.match(r"(.{26})\s*([\d.]+) us ", line)
        if m and here:
            out[m.group(1).strip()] = float(m.group(2)) / 1e3
    return out


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("--tools", default="build", help="folder with cuda_gemm, cuda_attention and cuda_kernels")
    a.add_argument("--texts", help="folder with saved output of these programs")
    a.add_argument("--batch", type=int, default=64)
    a.add_argument("--seq", type=int, default=1024)
    a.add_argument("--accum", type=int, default=1, help="micro-batches per step")
    a.add_argument("--dtype", default="bf16", choices=["bf16", "f16", "f32"])
    a.add_argument("--speed", help="gpu_vs_torch.json")
    a.add_argument("--case", default="b64")
    a.add_argument("--profile", help="run folder of `lockstep profile`")
    a.add_argument("--out", help="folder for gpu_roofline.json and .md")
    o = a.parse_args()
    compare.end_on_sigterm()
    if o.out:
        os.makedirs(o.out, exist_ok=True)

    def text(tool, args):
        if o.texts:
            path = os.path.join(o.texts, tool + ".txt")
            return open(path).read() if os.path.exists(path) else ""
        path = os.path.join(o.tools, tool)
        return run(path, args, o.out) if os.path.exists(path) else ""

    rows = o.batch * o.seq
    gemm = products(text("cuda_gemm", ["--batch", o.batch, "--seq", o.seq, "--type", o.dtype]), rows)
    attn = attention(text("cuda_attention", ["--dtype", o.dtype, "--no-check"]), o.batch, o.seq)
    kern = kernels(text("cuda_kernels", ["--dtype", o.dtype, "--batch", o.batch, "--seq", o.seq, "--no-check"]), o.batch, o.seq)
    parts, missing = [], []
    if gemm:
        parts.append(("products", o.accum * gemm[0], f"{gemm[1]:.0f} TFLOP/s"))
    else:
        missing.append("products (cuda_gemm)")
    if attn:
        parts.append(("attention", o.accum * LAYERS * attn[0], f"{LAYERS} layers, {attn[1]}, {attn[0]:.3f} ms each"))
    else:
        missing.append("attention (cuda_attention)")
    for name, calls in CALLS.items():
        if name in kern:
            times = calls * (1 if name in ("adamw", "sumsq") else o.accum)
            parts.append((name, times * kern[name], f"{times} x {1e3 * kern[name]:.0f} us"))
        else:
            missing.append(f"{name} (cuda_kernels)")
    floor = sum(p[1] for p in parts)
    lines = [f"Floor of a step, GPT-2 124M, B{o.batch} x {o.accum}, T{o.seq}, {o.dtype}", "", "| part | ms | |", "| --- | --- | --- |"]
    lines += [f"| {n} | {ms:.2f} | {words} |" for n, ms, words in parts]
    tokens = rows * o.accum
    if floor and not missing:
        lines.append(f"| floor | {floor:.2f} | {tokens / floor * 1e3:,.0f} tokens/s |")
    elif floor:
        lines.append(f"| what is known of it | {floor:.2f} | |")
    result = {"parts": parts, "floor_ms": floor, "missing": missing, "tokens": tokens}
    if o.speed:
        with open(o.speed) as f:
            cases = {c["case"]: c for c in json.load(f)["cases"]}
        for r in cases.get(o.case, {}).get("rows", []):
            step = tokens / r["tokens_per_sec"] * 1e3
            lines.append(f"| step, {r['side']} | {step:.2f} | {r['tokens_per_sec']:,.0f} tokens/s"
                         + (f", {100 * floor / step:.0f} % of it is the floor |" if floor and not missing else " |"))
            result["step_ms_" + r["side"]] = step
    if o.profile:
        with open(os.path.join(o.profile, "profiles", "profile_summary.json")) as f:
            ours = json.load(f)["lockstep"]
        steps = max(1, ours["per_rank"][0]["steps"])
        lines += ["", f"By operation in a profile of {steps} steps (CUPTI):", "", "| operation | ms per step | calls per step |", "| --- | --- | --- |"]
        lines += [f"| {r['name']} | {1e3 * r['total_sec'] / steps:.2f} | {r['calls'] / steps:.0f} |" for r in ours.get("device_operations", [])]
        result["operations"] = ours.get("device_operations", [])
    if missing:
        lines += ["", "not measured: " + ", ".join(missing)]
    print("\n".join(lines))
    if o.out:
        with open(os.path.join(o.out, "gpu_roofline.json"), "w") as f:
            json.dump(result, f, indent=1)
        with open(os.path.join(o.out, "gpu_roofline.md"), "w") as f:
            f.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
