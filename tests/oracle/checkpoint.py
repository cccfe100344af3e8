"""Checks folders of lockstep with transformers, and folders of transformers with lockstep. usage: checkpoint.py LOCKSTEP WORK"""
import json
import os
import pathlib
import subprocess
import sys

import safetensors.torch
import tokenizers
import torch
import transformers

lockstep, work = sys.argv[1], pathlib.Path(sys.argv[2])
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
n_ok = 0


def run(*args, fails=None):
    p = subprocess.run([lockstep, *map(str, args)], capture_output=True, text=True)
    if fails is None:
        assert p.returncode == 0, f"lockstep {args}: exit {p.returncode}\n{p.stderr}"
    else:
        assert p.returncode in (2, 3), f"lockstep {args} should fail, exit {p.returncode}"
        assert fails in p.stderr, f"{fails!r} not in {p.stderr!r}"
    return p


def build(variant, seed, dtype):
    torch.manual_seed(seed)
    config = transformers.GPT2Config(
        n_layer=3, n_head=4, n_embd=48, n_positions=40, vocab_size=131, bos_token_id=130, eos_token_id=130,
        activation_function="gelu_new" if variant == "hf" else "gelu", tie_word_embeddings=variant == "hf")
    model = transformers.GPT2LMHeadModel(config)
    for p in model.parameters():  # biases and norms too, so that swapped tensors are detected
        torch.nn.init.normal_(p, std=0.3)
    return model.to(dtype).eval()


def logits(model):
    torch.manual_seed(1)
    ids = torch.randint(0, 131, (2, 40))
    with torch.no_grad():
        return model(ids).logits


def same(ours, theirs, what):
    """ours: the model that from_pretrained loads from our folder; theirs: the model that transformers saved, in its own type."""
    global n_ok
    a, b = ours.state_dict(), theirs.state_dict()
    assert a.keys() == b.keys(), f"{what}: {a.keys() ^ b.keys()}"
    for k in a:
        assert a[k].dtype == torch.float32 and a[k].shape == b[k].shape, f"{what}: {k} {a[k].dtype} {a[k].shape} {b[k].shape}"
        assert torch.equal(a[k], b[k].float()), f"{what}: {k} differs"
    for k in ("activation_function", "tie_word_embeddings", "n_layer", "n_head", "n_embd", "n_positions", "vocab_size",
              "layer_norm_epsilon", "eos_token_id", "model_type"):
        assert getattr(ours.config, k) == getattr(theirs.config, k), f"{what}: config {k}"
    x, y = logits(ours), logits(theirs.float())
    assert torch.equal(x, y), f"{what}: logits differ by {(x - y).abs().max()}"
    n_ok += 1
    print(f"ok  {what}: {len(a)} tensors and the logits are equal")


def open_ours(folder):
    model, info = transformers.GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True, dtype=torch.float32)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    assert model.generation_config.eos_token_id == 130
    return model.eval()


for seed, (variant, dtype, shards) in enumerate(
        [(v, d, s) for v in ("hf", "r1") for d, s in
         ((torch.float32, None), (torch.float32, "100KB"), (torch.float16, None), (torch.bfloat16, "60KB"))]):
    name = f"{variant}-{str(dtype)[6:]}-{'sharded' if shards else 'single'}"
    theirs, checkpoint, plain = work / f"{name}-hf", work / f"{name}-ckpt", work / f"{name}-out"
    model = build(variant, seed, dtype)
    model.save_pretrained(theirs, **({"max_shard_size": shards} if shards else {}))
    n_file = len(list(theirs.glob("*.safetensors")))
    assert (n_file > 2) == bool(shards), f"{name}: {n_file} weight files"
    run("import", "--from", theirs, "--out", checkpoint)
    same(open_ours(checkpoint), model, f"{name}: import")
    run("export", "--checkpoint", checkpoint, "--out", plain)
    assert sorted(os.listdir(plain)) == ["config.json", "generation_config.json", "model.safetensors"], os.listdir(plain)
    same(open_ours(plain), model, f"{name}: export")
    with safetensors.safe_open(plain / "model.safetensors", "pt") as f:
        assert f.metadata() == {"format": "pt"}
        assert ("lm_head.weight" in f.keys()) == (variant == "r1")
        assert all(k == "lm_head.weight" or k.startswith("transformer.") for k in f.keys())

# names as in the first published files: no prefix, with the mask buffers, and a head that repeats wte
model = build("hf", 50, torch.float32)
old = work / "old"
model.save_pretrained(old)
tensors = {k.removeprefix("transformer."): v.clone() for k, v in model.state_dict().items()}
for layer in range(3):
    tensors[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 40, 40, dtype=torch.bool).tril()
    tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
safetensors.torch.save_file(tensors, old / "model.safetensors")
run("import", "--from", old, "--out", work / "old-ckpt")
same(open_ours(work / "old-ckpt"), model, "old names, buffers, repeated head")

tensors["lm_head.weight"] = tensors["lm_head.weight"] + 1
safetensors.torch.save_file(tensors, old / "model.safetensors")
run("import", "--from", old, "--out", work / "x", fails="lm_head.weight differs")
del tensors["lm_head.weight"], tensors["h.1.mlp.c_fc.bias"]
safetensors.torch.save_file(tensors, old / "model.safetensors")
run("import", "--from", old, "--out", work / "x", fails="transformer.h.1.mlp.c_fc.bias")
assert not (work / "x").exists()

# a missing shard
(sorted((work / "hf-float32-sharded-hf").glob("*.safetensors"))[1]).unlink()
run("import", "--from", work / "hf-float32-sharded-hf", "--out", work / "x", fails="cannot read")
# a flipped byte is caught by export
damaged = work / "hf-float32-single-ckpt" / "model.safetensors"
data = bytearray(damaged.read_bytes())
data[len(data) // 2] ^= 1
damaged.write_bytes(data)
run("export", "--checkpoint", work / "hf-float32-single-ckpt", "--out", work / "x", fails="is damaged")
assert not (work / "x").exists()

# the tokenizer of a folder is copied and opens
tok = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}, merges=[("a", "b")]))
src = work / "r1-float32-single-hf"
tok.save(str(src / "tokenizer.json"))
run("import", "--from", src, "--out", work / "with-tok")
assert transformers.PreTrainedTokenizerFast.from_pretrained(work / "with-tok").encode("aab") == [0, 2]
run("export", "--checkpoint", work / "with-tok", "--out", work / "with-tok-out")
assert (work / "with-tok-out" / "tokenizer.json").read_bytes() == (src / "tokenizer.json").read_bytes()
sums = json.loads((work / "with-tok" / "checksums.json").read_text())
assert set(sums["files"]) == set(os.listdir(work / "with-tok")) - {"checksums.json"}

# checkpoints of a run, with optimizer and trainer state
text = work / "text.txt"
text.write_text("".join(f"line {i} of {i * 7919 % 1000} words and a few more\n" for i in range(400)))
run("prepare", "--input", text, "--out", work / "data", "--tokenizer", "train", "--vocab_size", "300")
for variant in ("hf", "r1"):
    small = {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 16}
    (work / "small.json").write_text(json.dumps(small))
    run("train", "--data", work / "data", "--model", work / "small.json", "--variant", variant, "--seq_length", 16,
        "--micro_batch_size_per_gpu", 2, "--max_steps", 3, "--threads", 1, "--checkpoint_path", work / f"run-{variant}")
    folder = work / f"run-{variant}" / "epoch-1"
    model, info = transformers.GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    file = safetensors.torch.load_file(folder / "model.safetensors")
    state = model.state_dict()
    assert all(torch.equal(state[k], v) for k, v in file.items())
    assert set(state) - set(file) == ({"lm_head.weight"} if variant == "hf" else set())
    tok = transformers.AutoTokenizer.from_pretrained(folder)
    words = "line 12 of 28 words\n"
    ids = tok.encode(words)
    assert tok.decode(ids) == words and max(ids) < model.config.vocab_size, (ids, tok.decode(ids))
    assert model.generate(torch.tensor([ids[:4]]), max_new_tokens=4, do_sample=False).shape[1] <= 8
    moments = safetensors.torch.load_file(folder / "optimizer.safetensors")
    assert set(moments) == {f"{m}/{k}" for m in "mv" for k in file}
    assert all(moments[f"{m}/{k}"].shape == v.shape for m in "mv" for k, v in file.items())
    n_ok += 1
    print(f"ok  {variant}: epoch-1 of the run and its tokenizer open without conversion")
print(f"{n_ok} folders agree with transformers {transformers.__version__}")
