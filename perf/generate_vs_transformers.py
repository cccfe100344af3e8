"""Tokens/s of `lockstep generate` and of generate in transformers, GPT-2 124M with random weights, interleaved.

Both read the same folder, continue the same prompt greedily with a key-value cache, fp32, and are timed from the prompt to
the last token, without loading. Each measurement is a separate process. transformers runs under torch.inference_mode after a
short warm-up, with the fastest thread count of the first round.

  python perf/generate_vs_transformers.py --lockstep build/lockstep [--new 128] [--rounds 5] [--threads N] [--json]
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import compare

PROMPT = "The quick brown fox jumps over the lazy dog, and then"
END = "<|endoftext|>"


def make_folder(folder):
    """Random weights, and a tokenizer of exactly 50,257 ids that needs no download: letters, then pairs of letters."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(transformers.GPT2Config()).save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(a, b) for a in letters for b in letters][:50000]
    vocab = {x: i for i, x in enumerate(letters + [a + b for a, b in pairs])}
    t = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([END])
    t.save(os.path.join(folder, "tokenizer.json"))


def peer(folder, new, threads):
    """One process: load, warm up, one timed generation for each thread count. Prints JSON."""
    import torch
    import transformers
    from tokenizers import Tokenizer

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    model = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
    ids = torch.tensor([Tokenizer.from_file(os.path.join(folder, "tokenizer.json")).encode(PROMPT).ids])
    out = {"torch": torch.__version__, "transformers": transformers.__version__, "prompt": ids.shape[1], "runs": []}
    settings = dict(do_sample=False, use_cache=True, eos_token_id=None, pad_token_id=0)
    with torch.inference_mode():
        for n in threads:
            torch.set_num_threads(n)
            model.generate(ids, max_new_tokens=4, min_new_tokens=4, **settings)
            begin = time.perf_counter()
            made = model.generate(ids, max_new_tokens=new, min_new_tokens=new, **settings)
            seconds = time.perf_counter() - begin
            assert made.shape[1] == ids.shape[1] + new
            out["runs"].append({"threads": n, "tokens_per_sec": new / seconds})
    print(json.dumps(out))


def child(args):
    p = subprocess.run([str(a) for a in args], capture_output=True, text=True)
    if p.returncode:
        raise SystemExit(f"failed ({p.returncode}): {' '.join(map(str, args))}\n{p.stderr[-3000:]}")
    return json.loads(p.stdout)


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("--lockstep", default="build/lockstep")
    a.add_argument("--new", type=int, default=128)
    a.add_argument("--rounds", type=int, default=5)
    a.add_argument("--threads", type=int, default=0, help="threads of lockstep; 0 = all cores (transformers uses its best number)")
    a.add_argument("--json", action="store_true")
    a.add_argument("--folder", help="folder in which the model is kept and reused")
    a.add_argument("--peer", nargs="+", help=argparse.SUPPRESS)
    o = a.parse_args()
    if o.peer:
        return peer(o.peer[0], o.new, [int(x) for x in o.peer[1:]])
    compare.check_program(a, o.lockstep)
    compare.end_on_sigterm()
    compare.check_modules(a, "torch", "transformers", "tokenizers")
    with tempfile.TemporaryDirectory(prefix="lockstep-generate-") as work:
        folder = o.folder or os.path.join(work, "model")
        if not os.path.exists(os.path.join(folder, "tokenizer.json")):
            make_folder(folder)
        begin = compare.load()
        n = compare.cores()
        threads = sorted({1, max(1, n // 2), n})
        ours, theirs, search = [], [], None
        for _ in range(o.rounds):
            r = child([o.lockstep, "generate", "--device", "cpu", "--checkpoint", folder, "--prompt", PROMPT, "--max_new_tokens", o.new,
                       "--greedy", "--no_stop", "--json", "--threads", o.threads])["samples"][0]
            assert len(r["ids"]) == o.new
            ours.append(r["tokens_per_sec"])
            p = child([sys.executable, os.path.abspath(__file__), "--new", o.new, "--peer", folder, *threads])
            best = max(p["runs"], key=lambda x: x["tokens_per_sec"])
            search = search or p["runs"]
            threads = [best["threads"]]
            theirs.append(best["tokens_per_sec"])
            assert p["prompt"] == r["prompt_tokens"]
            print(f"ours {ours[-1]:.1f}  transformers {theirs[-1]:.1f} ({threads[0]} threads)  "
                  f"ratio {ours[-1] / theirs[-1]:.2f}", file=sys.stderr, flush=True)
    ratios = [x / y for x, y in zip(ours, theirs)]
    result = {"machine": compare.machine(), "load": begin, "torch": p["torch"], "transformers": p["transformers"],
              "new_tokens": o.new, "prompt_tokens": p["prompt"], "ours_tokens_per_sec": ours,
              "peer_tokens_per_sec": theirs, "peer_threads": threads[0], "peer_thread_search": search, "ratios": ratios,
              "median_ratio": statistics.median(ratios), "interval_95": compare.interval(ratios),
              "drafted": r["drafted"], "accepted": r["accepted"]}
    if o.json:
        print(json.dumps(result, indent=2))
        return
    print(f"GPT-2 124M, fp32, {p['prompt']} + {o.new} ids, {result['machine']}; torch {p['torch']}, transformers "
          f"{p['transformers']}; {begin}")
    print(f"ours         {statistics.median(ours):.1f} tokens/s ({r['accepted']} of {r['drafted']} drafts accepted)")
    print(f"transformers {statistics.median(theirs):.1f} tokens/s ({threads[0]} threads)")
    print(f"ratio        {compare.describe(ratios)}")


if __name__ == "__main__":
    main()
