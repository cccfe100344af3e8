"""Compares `lockstep generate --greedy` with generate of transformers (hf) and with a loop without a cache (r1), id by id.

At the first difference, the logits of the two ids in PyTorch must be equal within rounding; later ids are not compared. Noise in the
weights makes logits differ by whole numbers, so that a wrong cache or position is detected and ties do not occur.
"""
import argparse
import json
import os
import tempfile

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import peers

END = "<|endoftext|>"


def save_tokenizer(model, path):
    t = Tokenizer(model)
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([END])
    t.save(path)
    return t


def byte_tokenizer(path):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    return save_tokenizer(models.BPE(vocab={x: i for i, x in enumerate(letters)}, merges=[]), path)


def gpt2_tokenizer(folder, path):
    with open(os.path.join(folder, "encoder.json")) as f:
        vocab = json.load(f)
    with open(os.path.join(folder, "vocab.bpe"), encoding="utf-8") as f:
        merges = [tuple(line.split()) for line in f.read().splitlines()[1:] if line]
    return save_tokenizer(models.BPE(vocab=vocab, merges=merges), path)


@torch.inference_mode()
def their_ids(variant, model, prompt, n):
    if variant == "hf":
        out = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=n, min_new_tokens=n,
                             pad_token_id=model.config.eos_token_id, eos_token_id=None)
        return out[0, len(prompt):].tolist()
    ids = list(prompt)
    for _ in range(n):
        ids.append(model(torch.tensor([ids]))[0, -1].argmax().item())
    return ids[len(prompt):]


@torch.inference_mode()
def gap_at(variant, model, prefix, theirs, ours):
    """The difference of the logits of the two ids in PyTorch, as a fraction of the largest logit."""
    logits = peers.logits_of(variant, model, torch.tensor([prefix]))[0, -1].double()
    return ((logits[theirs] - logits[ours]) / logits.abs().max()).item()


def compare(o, c, label, variant, model, tokenizer, folder, text, n, distinct):
    prompt = tokenizer.encode(text).ids
    out = json.loads(peers.run([o.lockstep, "generate", "--checkpoint", folder, "--prompt", text, "--max_new_tokens", n,
                                "--greedy", "--no_stop", "--json"]))["samples"][0]
    ours, theirs = out["ids"], their_ids(variant, model, prompt, n)
    label = f"{label}, {len(prompt)} + {n} ids"
    c.within(f"{label}: prompt ids", abs(out["prompt_tokens"] - len(prompt)), 0)
    c.within(f"{label}: number of ids", abs(len(ours) - n), 0)
    same = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), n)
    gap = 0.0 if same == n else gap_at(variant, model, prompt + theirs[:same], theirs[same], ours[same])
    c.within(f"{label}: gap of logits where the ids differ", gap, 1e-5, f"{same} of {n} ids are equal, {len(set(theirs))} different ids")
    if len(set(theirs)) < distinct:
        c.within(f"{label}: the text does not repeat itself (at least {distinct} different ids)", distinct - len(set(theirs)), 0)


def small(o, c, variant, work):
    P = 320
    model = peers.make_model(variant, L=3, H=4, E=64, P=P, V=257, seed=21, shake=0.25)
    folder = os.path.join(work, variant)
    peers.save_model(variant, model, folder)
    tokenizer = byte_tokenizer(os.path.join(folder, "tokenizer.json"))
    compare(o, c, f"{variant} small", variant, model, tokenizer, folder, "The cat", 150, 10)
    compare(o, c, f"{variant} small", variant, model, tokenizer, folder, "a", 40, 5)
    long = "".join(chr(97 + i * i % 26) for i in range(200))  # longer than one pass: the cache is filled in parts
    compare(o, c, f"{variant} small", variant, model, tokenizer, folder, long, P - 200, 10)


def full(o, c, work):
    model = peers.make_model("hf", L=12, H=12, E=768, P=1024, V=50257, seed=22, shake=0.05)
    folder = os.path.join(work, "full")
    peers.save_model("hf", model, folder)
    tokenizer = gpt2_tokenizer(o.vocab, os.path.join(folder, "tokenizer.json"))
    compare(o, c, "hf 124M", "hf", model, tokenizer, folder, "First Citizen: before we proceed any further, hear me speak.",
            128, 10)


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("--lockstep", required=True)
    a.add_argument("--vocab", help="folder with encoder.json and vocab.bpe, for --full")
    a.add_argument("--full", action="store_true", help="GPT-2 124M too")
    o = a.parse_args()
    c = peers.Checks()
    for variant in ("hf", "r1"):
        with tempfile.TemporaryDirectory(prefix="lockstep-generate-") as work:
            small(o, c, variant, work)
    if o.full and o.vocab and os.path.exists(os.path.join(o.vocab, "vocab.bpe")):
        with tempfile.TemporaryDirectory(prefix="lockstep-generate-") as work:
            full(o, c, work)
    elif o.full:
        print("skipped: 124M needs --vocab, a folder with encoder.json and vocab.bpe")
    c.end()


if __name__ == "__main__":
    main()
