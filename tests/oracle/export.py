"""Checks exports with transformers and with the gguf package. usage: export.py LOCKSTEP WORK [GPT2_VOCAB]"""
import json
import os
import pathlib
import random
import subprocess
import sys

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import peers

lockstep, work = sys.argv[1], pathlib.Path(sys.argv[2])
DTYPE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
TEXT = "".join(f"line {i} of {i * 7919 % 1000} words and a few more\n" for i in range(400))


def run(*args):
    p = subprocess.run([lockstep, *map(str, args)], capture_output=True, text=True)
    assert p.returncode == 0, f"lockstep {args}: exit {p.returncode}\n{p.stderr}"
    return p.stdout


def byte_tokenizer(folder):
    """vocab.json and merges.txt, the older form of a tokenizer, with a few merges."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {x: i for i, x in enumerate(letters)}
    merges = [("l", "i"), ("n", "e"), ("li", "ne"), ("Ġ", "w"), ("o", "r"), ("o", "f"), ("Ġ", "of")]
    for a, b in merges:
        vocab[a + b] = len(vocab)
    vocab["<|endoftext|>"] = len(vocab)
    return two_files(folder, vocab, merges), len(vocab)


def gpt2_tokenizer(folder, source):
    with open(f"{source}/encoder.json") as v, open(f"{source}/vocab.bpe", encoding="utf-8") as m:
        return two_files(folder, json.load(v), [tuple(line.split()) for line in m.read().splitlines()[1:] if line])


def two_files(folder, vocab, merges):
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.model.save(str(folder))
    return t


def load(folder, **how):
    model, info = transformers.GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True, **how)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    return model.eval()


@torch.inference_mode()
def continue_like(folder, tokenizer, prompts, n, what):
    """Greedy ids of transformers and of lockstep for the same folder, both in fp32."""
    model = load(folder, dtype=torch.float32)
    (work / "prompts.txt").write_text("\n".join(prompts))
    ours = [json.loads(line) for line in run("generate", folder, "--prompts", work / "prompts.txt", "--batch", 16, "--greedy", "--no_stop",
                                             "--max_new_tokens", n, "--json", "--threads", 1).splitlines()]
    ids = [tokenizer.encode(p).ids for p in prompts]
    assert [x["prompt_tokens"] for x in ours] == [len(x) for x in ids], "the prompts have other ids"
    theirs = [None] * len(ids)
    for length in sorted({len(x) for x in ids}):  # prompts of one length are a batch without padding
        rows = [i for i, x in enumerate(ids) if len(x) == length]
        out = model.generate(torch.tensor([ids[i] for i in rows]), do_sample=False, max_new_tokens=n, min_new_tokens=n,
                             pad_token_id=model.config.eos_token_id, eos_token_id=None)
        for i, row in zip(rows, out.tolist()):
            theirs[i] = row[length:]
    for x, y, p in zip(ours, theirs, prompts):
        assert x["ids"] == y, f"{what}: {p!r}: {x['ids']} and {y}"
    different = len({tuple(y) for y in theirs})
    assert different > len(prompts) // 2, f"{what}: only {different} different texts"
    print(f"ok  {what}: {len(prompts)} prompts, {n} ids each, all equal; {different} different texts")


def make_prompts(n):
    r = random.Random(3)
    return [" ".join(r.choice(TEXT.split()) for _ in range(r.randrange(1, 4))) for _ in range(n)]


def check_gguf(folder, path, dtype, tokenizer):
    import gguf
    reader = gguf.GGUFReader(path)
    theirs = load(folder, dtype=torch.float32)
    want = dict(theirs.transformer.named_parameters())
    name = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT2, theirs.config.n_layer)
    seen = {t.name: t for t in reader.tensors}
    assert len(seen) == len(want), (len(seen), len(want))
    for key, value in want.items():
        t = seen[name.get_name(key, try_suffixes=(".weight", ".bias"))]
        if key.startswith("h.") and value.dim() == 2:
            value = value.T
        kind = t.tensor_type.name
        fixed = value.dim() < 2 or key == "wpe.weight"
        assert kind == ("F32" if fixed else {"fp32": "F32", "fp16": "F16", "bf16": "BF16"}[dtype]), (t.name, kind)
        assert list(t.shape) == list(reversed(value.shape)), (t.name, t.shape)
        data = np.ascontiguousarray(t.data)
        got = (torch.from_numpy(data.view(np.int16).copy()).view(torch.bfloat16) if kind == "BF16" else torch.from_numpy(data.copy()))
        value = value.detach().contiguous().to(got.dtype)
        assert torch.equal(got.reshape(value.shape), value), f"{path}: {t.name} differs"
    field = {k: f.contents() for k, f in reader.fields.items()}
    c = theirs.config
    for k, v in {"general.architecture": "gpt2", "gpt2.context_length": c.n_positions, "gpt2.embedding_length": c.n_embd,
                 "gpt2.feed_forward_length": 4 * c.n_embd, "gpt2.attention.head_count": c.n_head, "gpt2.block_count": c.n_layer,
                 "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.eos_token_id": c.eos_token_id}.items():
        assert field[k] == v, (k, field[k], v)
    vocab = tokenizer.get_vocab()
    assert field["tokenizer.ggml.tokens"] == sorted(vocab, key=vocab.get)
    model = json.loads(tokenizer.to_str())["model"]
    assert field["tokenizer.ggml.merges"] == [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    assert field["tokenizer.ggml.token_type"] == [3 if t == "<|endoftext|>" else 1 for t in field["tokenizer.ggml.tokens"]]
    print(f"ok  gguf {dtype}: {len(seen)} tensors and the vocabulary are equal")


def check_exports(folder, model, tokenizer, n_prompt, n):
    prompts = make_prompts(n_prompt)
    cases = [("fp32", ()), ("fp32", ("--shard_size", "100KB")), ("bf16", ("--max_shard_size", "60KB")), ("fp16", ())]
    for dtype, more in cases:
        what = f"{dtype}{' sharded' if more else ''}"
        out = work / f"{folder.name}-{what.replace(' ', '-')}"
        run("export", "--checkpoint", folder, "--out", out, "--dtype", dtype, *more)
        assert (len(list(out.glob("model*.safetensors"))) > 2) == bool(more), what
        opened = load(out, dtype="auto")
        assert opened.dtype == DTYPE[dtype], (what, opened.dtype)
        for key, value in model.state_dict().items():
            assert torch.equal(opened.state_dict()[key], value.to(DTYPE[dtype])), f"{what}: {key} differs"
        if dtype != "fp16":
            continue_like(out, tokenizer, prompts, n, what)
    run("export", "--checkpoint", folder, "--out", work / "m.bin", "--to", "llmc")
    run("export", "--checkpoint", work / "m.bin", "--out", work / "from-llmc")
    back = load(work / "from-llmc", dtype="auto")
    assert all(torch.equal(back.state_dict()[k], v) for k, v in model.state_dict().items())
    print("ok  through a file of llm.c: all tensors equal")


def fine_tune(folder):
    """A folder of transformers in, trained, out: what transformers computes with it is what lockstep computes."""
    (work / "text.txt").write_text(TEXT)
    run("prepare", work / "text.txt", "--out", work / "data", "--tokenizer", folder, "--quiet")
    run("train", "--data", work / "data", "--init_from", folder, "--seq_length", 32, "--micro_batch_size_per_gpu", 8, "--max_steps", 20,
        "--threads", 1, "--checkpoint_path", work / "run")
    run("export", "--checkpoint", work / "run", "--out", work / "tuned")
    before, after, run_model = load(folder), load(work / "tuned"), load(work / "run" / "epoch-1")
    val = np.fromfile(work / "data" / "val.bin", dtype="<u2").astype(np.int64)
    S, n = 32, (len(val) - 1) // 32
    ids, target = torch.tensor(val[: n * S]).view(n, S), torch.tensor(val[1: n * S + 1]).view(n, S)
    with torch.inference_mode():
        losses = [peers.mean_loss("hf", m, ids, target).item() for m in (before, after)]
        assert torch.equal(after(ids).logits, run_model(ids).logits), "the export has other logits than the run"
    ours = json.loads(run("eval", "--checkpoint", work / "tuned", "--data", work / "data", "--seq_length", S, "--threads", 1, "--json"))
    assert losses[1] < losses[0] - 0.1, f"training changed the loss from {losses[0]} to {losses[1]}"
    assert abs(ours["loss"] - losses[1]) < 1e-5 * losses[1], (ours["loss"], losses[1])
    assert transformers.AutoTokenizer.from_pretrained(work / "tuned").encode("line of") == Tokenizer.from_file(str(work / "data" / "tokenizer.json")).encode("line of").ids
    print(f"ok  fine-tuned: loss {losses[0]:.4f} to {losses[1]:.4f} in transformers, {ours['loss']:.4f} in lockstep; equal logits")


def main():
    folder = work / "theirs"
    folder.mkdir()
    tokenizer, V = byte_tokenizer(folder)
    model = peers.make_model("hf", L=3, H=4, E=64, P=64, V=V, seed=31, shake=0.25)
    peers.save_model("hf", model, folder)
    check_exports(folder, model, tokenizer, 50, 24 if os.environ.get("LS_TEST_ALL") else 8)
    try:
        import gguf  # noqa: F401
    except ImportError:
        print("not compared: GGUF files (the package gguf is missing; ./run oracle installs it)")
    else:
        for dtype in DTYPE:
            run("export", "--checkpoint", folder, "--out", work / f"{dtype}.gguf", "--to", "gguf", "--dtype", dtype)
            tokenizer.add_special_tokens(["<|endoftext|>"])
            check_gguf(folder, work / f"{dtype}.gguf", dtype, tokenizer)
    fine_tune(folder)
    if len(sys.argv) > 3:
        full = work / "full"
        full.mkdir()
        tokenizer = gpt2_tokenizer(full, sys.argv[3])
        peers.save_model("hf", peers.make_model("hf", L=12, H=12, E=768, P=1024, V=50257, seed=32, shake=0.05), full)
        run("export", "--checkpoint", full, "--out", work / "full-out", "--shard_size", "100MB")
        continue_like(work / "full-out", tokenizer, make_prompts(50), 8, "124M sharded")


main()
