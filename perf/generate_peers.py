"""Tokens/s of `lockstep generate --weights fp32|bf16|int8`, with `--precision bf16` on a CPU with bf16 instructions, transformers and llama.cpp,
same weights, interleaved.

GPT-2 124M with random weights. `lockstep export` writes what the others read: a folder of transformers (fp32) and GGUF files (F32 and F16);
llama.cpp's own quantizer makes Q8_0 of the F32 file. Every program continues prompts of the same number of tokens greedily with a
key-value cache, without an end-of-text token, one prompt and --batch prompts at a time. A measurement is a process of its own and
reports the time of the prompt and of the new tokens, without loading. Programs that are not installed are left out and listed; lockstep
and llama.cpp need neither torch nor transformers.

  python perf/generate_peers.py --lockstep build/lockstep [--prompt 128] [--new 128] [--batch 8] [--rounds 5] [--threads N] [--json]

--device cuda: lockstep in bf16 and with int8 weights beside PyTorch on the same GPU, bf16, at batches of 1, 8 and 64 (--batches). The peer is a
decoder in plain PyTorch (generate_torch.py: eager, CUDA graph, torch.compile), and transformers if it is installed; all of it is one process,
asked in turns. A run of lockstep makes several texts or batches and counts them all (batch 1: the last text); the pass over one token is
recorded while it loads. Needs torch, neither transformers nor tokenizers.

  python perf/generate_peers.py --device cuda --lockstep build/lockstep [--batches 1,8,64] [--rounds 2] [--no_compile] [--json]
"""
import argparse
import array
import functools
import json
import os
import random
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import compare

MANY = 16
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def prompt_text(n, k):
    """A text of n tokens of write_folder's tokenizer, which joins neither letters with digits nor digits with letters; different for each k."""
    return "".join(LETTERS[(i * 7 + k) % 26] if i % 2 else str((i * 3 + k) % 10) for i in range(n))


def prompt_ids(n, k):
    """Its ids: each character is a token, the first 256 of which are the letters in order."""
    letters = sorted(byte_letters())
    return [letters.index(c) for c in prompt_text(n, k)]


def byte_letters():
    """The characters by which byte-level tokenizers write the 256 bytes, in the order of the bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def write_folder(folder):
    """Random GPT-2 weights, and a tokenizer of exactly 50,257 ids: letters, then pairs of letters."""
    rng = random.Random(0)
    table = array.array("f", (rng.gauss(0, 0.02) for _ in range(1 << 20)))  # every matrix takes pieces of it

    def normal(n):
        x = array.array("f")
        while len(x) < n:
            at = rng.randrange(len(table) - 4096)
            x.extend(table[at:at + min(n - len(x), 4096)])
        return x

    C, V, P, L = 768, 50257, 1024, 12
    shapes = {"wte.weight": (V, C), "wpe.weight": (P, C), "ln_f.weight": (C,), "ln_f.bias": (C,)}
    for i in range(L):
        for name, shape in {"ln_1.weight": (C,), "ln_1.bias": (C,), "ln_2.weight": (C,), "ln_2.bias": (C,), "attn.c_attn.weight": (C, 3 * C),
                            "attn.c_attn.bias": (3 * C,), "attn.c_proj.weight": (C, C), "attn.c_proj.bias": (C,), "mlp.c_fc.weight": (C, 4 * C),
                            "mlp.c_fc.bias": (4 * C,), "mlp.c_proj.weight": (4 * C, C), "mlp.c_proj.bias": (C,)}.items():
            shapes[f"h.{i}.{name}"] = shape
    os.makedirs(folder, exist_ok=True)
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 4
        for n in shape:
            size *= n
        header["transformer." + name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes.items():
            if len(shape) == 1:
                x = array.array("f", [float("ln_" in name and name.endswith("weight"))]) * shape[0]
            else:
                x = normal(shape[0] * shape[1])
            x.tofile(f)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": C, "n_layer": L, "n_head": 12, "n_positions": P, "n_ctx": P,
                   "vocab_size": V, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True}, f)
    letters = sorted(byte_letters())
    pairs = [(a, b) for a in letters for b in letters][:50000]
    vocab = {x: i for i, x in enumerate(letters + [a + b for a, b in pairs])}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    end = {"id": 50256, "content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    with open(os.path.join(folder, "tokenizer.json"), "w") as f:
        json.dump({"version": "1.0", "truncation": None, "padding": None, "added_tokens": [end], "normalizer": None, "pre_tokenizer": level,
                   "post_processor": None, "decoder": level,
                   "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                             "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": [f"{a} {b}" for a, b in pairs]}}, f)


def ours_on_gpu(o, folder, weights, batch):
    """Batch 1: the last of three texts. Else MANY batches, of which the first also loads the kernels of prompts."""
    args = [o.lockstep, "generate", "--device", "cuda", "--checkpoint", folder, "--max_new_tokens", o.new, "--greedy", "--no_stop",
            "--precision", "bf16", "--stats"] + (["--weights", weights] if weights in ("bf16", "int8") else [])
    if batch == 1:
        args += ["--prompt", prompt_text(o.prompt, 0), "--num_samples", 3]
    else:
        path = os.path.join(folder, f"prompts_{batch}.txt")
        with open(path, "w") as f:
            f.writelines(prompt_text(o.prompt, k) + "\n" for k in range(MANY * batch))
        args += ["--prompts", path, "--batch", batch]
    p = subprocess.run([str(a) for a in args], capture_output=True)
    err = p.stderr.decode(errors="replace")
    if p.returncode:
        raise SystemExit(f"failed ({p.returncode}): {' '.join(map(str, args))}\n{err[-2000:]}")
    found = re.findall(r"(\d+) prompt tokens in ([\d.]+) s .*?, (\d+) new (?:tokens )?in ([\d.]+) s", err)[-1]
    n_prompt, prompt_s, n_new, new_s = (float(x) for x in found)
    assert n_new == (1 if batch == 1 else MANY) * batch * o.new, err
    return {"prompt_tokens": n_prompt, "prompt_s": prompt_s, "new_tokens": n_new, "new_s": new_s}


# without --weights: products of the library (cuBLASLt); --weights bf16 and int8: our kernel for few rows
OUR_WEIGHTS = ("bf16, library", "bf16", "int8")
PEER_NAMES = {"eager": "PyTorch, own decoder, eager", "graph": "PyTorch, own decoder, CUDA graph", "compile": "PyTorch, own decoder, torch.compile",
              "transformers": "transformers, eager"}


def measure_on_gpu(o, work):
    """(program, weights, batch) -> measurements, and what was measured with."""
    folder = os.path.join(work, "written")
    if not os.path.exists(folder):
        write_folder(folder)
    args = [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "generate_torch.py"), folder, "--prompt", str(o.prompt),
            "--new", str(o.new), "--batches", ",".join(map(str, o.batches))] + (["--no_compile"] if o.no_compile else [])
    peer = subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        return in_turns(o, folder, peer)
    finally:
        peer.kill()
        peer.wait()


def in_turns(o, folder, peer):
    for batch in o.batches:  # products of these shapes are measured once and remembered
        for w in OUR_WEIGHTS:
            ours_on_gpu(o, folder, w, batch)
    ready = peer.stdout.readline()
    about = json.loads(ready) if ready else {"variants": [], "torch": "failed", "gpu": "a GPU"}
    if not ready:
        print("generate_torch.py failed: lockstep is measured alone", file=sys.stderr)

    def ask(kind, batch):
        """None if the process has ended."""
        try:
            peer.stdin.write(f"{kind} {batch}\n")
            peer.stdin.flush()
        except BrokenPipeError:
            return None
        line = peer.stdout.readline()
        return json.loads(line) if line else None

    found = {}
    for r in range(o.rounds):
        for batch in o.batches:
            jobs = {("lockstep", w, batch): lambda w=w, b=batch: ours_on_gpu(o, folder, w, b) for w in OUR_WEIGHTS}
            jobs.update({(PEER_NAMES[k], "bf16", b): lambda k=k, b=b: ask(k, b) for k, b in about["variants"] if b == batch})
            for key, run in jobs.items():
                m = run()
                if m is None:
                    continue
                found.setdefault(key, []).append(m)
                print(f"round {r + 1}: {key[0]} {key[1]}, batch {batch}: prompt {m['prompt_tokens'] / m['prompt_s']:.0f}, new "
                      f"{m['new_tokens'] / m['new_s']:.0f} tokens/s", file=sys.stderr, flush=True)
    try:
        peer.stdin.close()
    except BrokenPipeError:
        pass
    peer.wait()
    return found, about


def report_on_gpu(o, work):
    begin = compare.load()
    found, about = measure_on_gpu(o, work)
    if o.json:
        print(json.dumps({"machine": about["gpu"], "load": begin, "versions": [f"torch {about['torch']}"], "rounds": o.rounds, "prompt": o.prompt,
                          "new": o.new, "runs": [{"program": k[0], "weights": k[1], "batch": k[2], "measured": x} for k, x in found.items()]}, indent=2))
        return
    print(f"GPT-2 124M, {o.prompt} + {o.new} tokens, greedy, {about['gpu']}; torch {about['torch']}; {o.rounds} rounds\n")
    print("| batch | program | weights | prompt, tokens/s | new tokens/s | us per step | x fastest PyTorch, new |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for (name, weights, batch), x in found.items():
        new = statistics.median(m["new_tokens"] / m["new_s"] for m in x)
        peers = [statistics.median(m["new_tokens"] / m["new_s"] for m in y) for k, y in found.items() if k[2] == batch and k[0] != "lockstep"]
        ratio = f"{new / max(peers):.2f}" if peers else ""
        print(f"| {batch} | {name} | {weights} | {statistics.median(m['prompt_tokens'] / m['prompt_s'] for m in x):.0f} | {new:.0f} | "
              f"{1e6 * batch / new:.0f} | {ratio} |")


PRODUCTS = "bf16, products too"  # --precision bf16


def ours(o, folder, weights, batch, more=()):
    kind = ["--precision", "bf16"] if weights == PRODUCTS else ["--weights", weights]
    args = [o.lockstep, "generate", "--device", "cpu", "--checkpoint", folder, "--max_new_tokens", o.new, "--greedy", "--no_stop",
            "--threads", o.threads, *kind, "--stats", *more]
    if batch == 1:
        args += ["--prompt", prompt_text(o.prompt, 0)]
    else:
        path = os.path.join(folder, f"prompts_{batch}.txt")
        with open(path, "w") as f:
            f.writelines(prompt_text(o.prompt, k) + "\n" for k in range(batch))
        args += ["--prompts", path, "--batch", batch]
    p = subprocess.run([str(a) for a in args], capture_output=True)
    err = p.stderr.decode(errors="replace")
    if p.returncode:
        raise SystemExit(f"failed ({p.returncode}): {' '.join(map(str, args))}\n{err[-2000:]}")
    found = re.search(r"(\d+) prompt tokens in ([\d.]+) s .*?, (\d+) new (?:tokens )?in ([\d.]+) s", err)
    n_prompt, prompt_s, n_new, new_s = (float(x) for x in found.groups())
    assert n_new == batch * o.new, err
    return {"prompt_tokens": n_prompt, "prompt_s": prompt_s, "new_tokens": n_new, "new_s": new_s,
            "drafts": (re.search(r"\d+ of \d+ drafts", err) or [""])[0]}


def peer_transformers(o, folder, dtype, batch):
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(o.threads)
    model = transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    ids = torch.tensor([prompt_ids(o.prompt, k) for k in range(batch)])
    with torch.inference_mode():
        model(ids[:, :8], use_cache=True)  # warm-up
        begin = time.perf_counter()
        out = model(ids, use_cache=True, logits_to_keep=1)
        next_id = out.logits[:, -1].argmax(-1, keepdim=True)
        middle = time.perf_counter()
        for _ in range(o.new - 1):
            out = model(next_id, past_key_values=out.past_key_values, use_cache=True)
            next_id = out.logits[:, -1].argmax(-1, keepdim=True)
        end = time.perf_counter()
    return {"prompt_tokens": ids.numel(), "prompt_s": middle - begin, "new_tokens": batch * o.new, "new_s": end - middle,
            "version": f"transformers {transformers.__version__}, torch {torch.__version__}"}


def peer_llama(o, folder, path, batch, plain=False):
    """llama.cpp through the C interface of llama-cpp-python: one llama_decode for the prompts, then one for each column of all rows. plain: without
    copies of the weights in the layout of the CPU's instructions (use_extra_bufts)."""
    import ctypes

    import llama_cpp as c
    import numpy as np

    @c.llama_log_callback
    def silent(level, text, data):
        pass

    c.llama_log_set(silent, ctypes.c_void_p(0))
    c.llama_backend_init()
    how = c.llama_model_default_params()
    how.use_extra_bufts = not plain
    model = c.llama_model_load_from_file(path.encode(), how)
    if not model:
        raise SystemExit(f"llama.cpp cannot load {path}")
    n_vocab = c.llama_vocab_n_tokens(c.llama_model_get_vocab(model))
    p = c.llama_context_default_params()
    length = o.prompt + o.new
    p.n_ctx, p.n_batch, p.n_ubatch, p.n_seq_max = batch * ((length + 255) // 256 * 256), batch * o.prompt, 512, batch
    p.n_threads = p.n_threads_batch = o.threads
    ctx = c.llama_init_from_model(model, p)
    rows = c.llama_batch_init(batch * o.prompt, 0, 1)
    prompts = [prompt_ids(o.prompt, k) for k in range(batch)]

    def run(columns, first):
        """columns[k]: the next ids of row k. Returns the most likely id after each."""
        n = 0
        for k, ids in enumerate(columns):
            for i, token in enumerate(ids):
                rows.token[n], rows.pos[n], rows.n_seq_id[n], rows.seq_id[n][0] = token, first + i, 1, k
                rows.logits[n] = i == len(ids) - 1
                n += 1
        rows.n_tokens = n
        if c.llama_decode(ctx, rows):
            raise SystemExit("llama_decode failed")
        last = [len(columns[0]) * (k + 1) - 1 for k in range(len(columns))]
        return [int(np.ctypeslib.as_array(c.llama_get_logits_ith(ctx, i), (n_vocab,)).argmax()) for i in last]

    run([ids[:8] for ids in prompts], 0)  # warm-up
    c.llama_memory_clear(c.llama_get_memory(ctx), True)
    begin = time.perf_counter()
    ids = run(prompts, 0)
    middle = time.perf_counter()
    for i in range(o.new - 1):
        ids = run([[x] for x in ids], o.prompt + i)
    end = time.perf_counter()
    return {"prompt_tokens": batch * o.prompt, "prompt_s": middle - begin, "new_tokens": batch * o.new, "new_s": end - middle,
            "version": f"llama-cpp-python {c.__version__}{', without use_extra_bufts' if plain else ''}"}


def child(o, *args):
    """A measurement in its own process; None and the reason on stderr if the program is not available."""
    p = subprocess.run([sys.executable, os.path.abspath(__file__), "--prompt", str(o.prompt), "--new", str(o.new), "--threads",
                        str(o.threads), "--peer", *map(str, args)], capture_output=True, text=True)
    if p.returncode < 0 and args[0] == "llama.cpp":
        print(f"{' '.join(map(str, args[:1] + args[2:]))}: ended by signal {-p.returncode}; measured without use_extra_bufts", file=sys.stderr)
        return child(o, "llama.cpp plain", *args[1:])
    if p.returncode:
        why = p.stderr.strip().splitlines()[-1:] or [f"exit code {p.returncode}"]
        print(f"left out: {' '.join(map(str, args[:1] + args[2:]))}: {why[0]}", file=sys.stderr)
        return None
    return json.loads(p.stdout.splitlines()[-1])


def export(o, checkpoint, out, *more):
    p = subprocess.run([o.lockstep, "export", "--checkpoint", checkpoint, "--out", out, *more], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if p.returncode:
        raise SystemExit(f"{o.lockstep} export failed ({p.returncode}): {p.stderr[-2000:].strip() or 'it printed nothing; is it lockstep?'}")


def make_models(o, work):
    """Folder of transformers and GGUF files of the same weights."""
    made, folder = os.path.join(work, "made"), os.path.join(work, "model")
    gguf = {x: os.path.join(work, f"model_{x}.gguf") for x in ("F32", "F16", "Q8_0")}
    if not os.path.exists(folder):
        write_folder(made)
        export(o, made, folder)
    for x, dtype in (("F32", "fp32"), ("F16", "fp16")):
        if not os.path.exists(gguf[x]):
            export(o, folder, gguf[x], "--to", "gguf", "--dtype", dtype)
    if not os.path.exists(gguf["Q8_0"]) and not child(o, "quantize", gguf["F32"], gguf["Q8_0"]):
        del gguf["Q8_0"]
    return folder, gguf


def quantize(source, target):
    import llama_cpp as c

    p = c.llama_model_quantize_default_params()
    p.ftype, p.nthread = c.LLAMA_FTYPE_MOSTLY_Q8_0, 1
    if c.llama_model_quantize(source.encode(), target.encode(), p):
        raise SystemExit("llama_model_quantize failed")
    return {"file": target}


def spread(x):
    i = compare.interval(x)
    return f"{statistics.median(x):.1f}" + (f" ({i[0]:.1f} to {i[1]:.1f})" if i else "")


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--lockstep", default="build/lockstep")
    a.add_argument("--prompt", type=int, default=128, help="tokens of a prompt")
    a.add_argument("--new", type=int, default=128, help="tokens that are generated")
    a.add_argument("--batch", type=int, default=8, help="prompts at a time on the CPU, where one prompt alone is measured, too")
    a.add_argument("--batches", default="1,8,64", help="numbers of prompts at a time with --device cuda")
    a.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    a.add_argument("--no_compile", action="store_true", help="with --device cuda: without torch.compile")
    a.add_argument("--rounds", type=int, help="[5; cuda: 2]")
    a.add_argument("--threads", type=int, default=compare.cores(), help="of every program, on the CPU [all cores]")
    a.add_argument("--folder", help="folder in which the models are kept and reused")
    a.add_argument("--json", action="store_true")
    a.add_argument("--peer", nargs="+", help=argparse.SUPPRESS)
    o = a.parse_args()
    o.rounds = (2 if o.device == "cuda" else 5) if o.rounds is None else o.rounds
    try:
        o.batches = [int(b) for b in o.batches.split(",")]
    except ValueError:
        a.error(f"--batches {o.batches}: give numbers with commas between them")
    if min(o.prompt, o.new, o.batch, o.rounds, o.threads, *o.batches) < 1:
        a.error("--prompt, --new, --batch, --batches, --rounds and --threads must be at least 1")
    if not o.peer:
        compare.check_program(a, o.lockstep)
        try:
            if o.folder:
                os.makedirs(o.folder, exist_ok=True)
        except OSError as e:
            a.error(f"--folder {o.folder} cannot be made: {e.strerror}")
        compare.end_on_sigterm()
    if o.device == "cuda":
        with tempfile.TemporaryDirectory(prefix="lockstep-generate-") as temporary:
            work = o.folder or temporary
            report_on_gpu(o, work)
        return
    if o.peer:
        what, *rest = o.peer
        if what == "quantize":
            print(json.dumps(quantize(*rest)))
        else:
            run = {"transformers": peer_transformers, "llama.cpp": peer_llama, "llama.cpp plain": functools.partial(peer_llama, plain=True)}[what]
            print(json.dumps(run(o, rest[0], rest[1], int(rest[2]))))
        return
    with tempfile.TemporaryDirectory(prefix="lockstep-generate-") as temporary:
        work = o.folder or temporary
        folder, gguf = make_models(o, work)
        begin = compare.load()
        jobs = {}
        for batch in (1, o.batch):
            for w in ("fp32", "bf16", "int8", *([PRODUCTS] if compare.has_bf16(o.lockstep) else ())):
                more = ("--speculate", 0) if batch == 1 else ()
                jobs["lockstep", w, batch] = lambda w=w, b=batch, m=more: ours(o, folder, w, b, m)
                if batch == 1 and w in ("fp32", "bf16"):
                    jobs["lockstep, drafts", w, batch] = lambda w=w: ours(o, folder, w, 1)
            for dtype in ("float32", "bfloat16"):
                jobs["transformers", dtype, batch] = lambda d=dtype, b=batch: child(o, "transformers", folder, d, b)
            for x, path in gguf.items():
                jobs["llama.cpp", x, batch] = lambda path=path, b=batch: child(o, "llama.cpp", folder, path, b)
        found = {}
        for r in range(o.rounds):
            for key, run in list(jobs.items()):
                m = run()
                if m is None:
                    del jobs[key]
                    continue
                found.setdefault(key, []).append(m)
                print(f"round {r + 1}: {key[0]} {key[1]}, batch {key[2]}: prompt {m['prompt_tokens'] / m['prompt_s']:.1f}, new "
                      f"{m['new_tokens'] / m['new_s']:.1f} tokens/s", file=sys.stderr, flush=True)
    versions = sorted({m["version"] for x in found.values() for m in x if "version" in m})
    result = {"machine": compare.machine(), "load": begin, "threads": o.threads, "versions": versions, "rounds": o.rounds,
              "prompt": o.prompt, "new": o.new,
              "runs": [{"program": k[0], "weights": k[1], "batch": k[2], "measured": x} for k, x in found.items()]}
    if o.json:
        print(json.dumps(result, indent=2))
        return
    print(f"GPT-2 124M, {o.prompt} + {o.new} tokens, {result['machine']}, {o.threads} threads; {'; '.join(versions)}; {begin}; "
          f"{o.rounds} rounds\n")
    print("| batch | program | weights | prompt, tokens/s | new tokens/s | x transformers float32, new |")
    print("| --- | --- | --- | --- | --- | --- |")
    for (name, weights, batch), x in found.items():
        base = found.get(("transformers", "float32", batch))
        ratio = ""
        if base and len(base) == len(x):
            ratio = spread([b["new_s"] / m["new_s"] for m, b in zip(x, base)])
        drafts = f" ({x[-1]['drafts']} accepted)" if x[-1].get("drafts") else ""
        print(f"| {batch} | {name}{drafts} | {weights} | {spread([m['prompt_tokens'] / m['prompt_s'] for m in x])} | "
              f"{spread([m['new_tokens'] / m['new_s'] for m in x])} | {ratio} |")


if __name__ == "__main__":
    main()
