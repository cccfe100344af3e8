"""Makes the files of this folder, with the Python of `./run oracle`: a text of our own and a small vocabulary in the two-file form of GPT-2.

text.txt      sentences of a small grammar, with numbers, contractions, white space and scripts other than Latin
vocab.bpe     merges that the tokenizers library learns from it, after a version line
encoder.json  every token and its id: 256 bytes in GPT-2's order, the merges, <|endoftext|>

Prints what tests/data/test_bpe.c expects: the number of ids that tiktoken finds in text.txt and the SHA-256 of these ids as 16-bit
little-endian integers.
"""
import hashlib
import json
import pathlib
import random
import struct

import tiktoken
import tiktoken.load
from tiktoken_ext.openai_public import r50k_pat_str
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

here = pathlib.Path(__file__).parent
IDS = 1200
rng = random.Random(7)
NOUN = "worker gradient bucket layer kernel schedule checkpoint token matrix buffer pipeline stage tensor shard ring queue river mountain".split()
VERB = "sends receives reduces gathers splits copies waits finishes reads writes saves restores counts follows crosses".split()
ADJ = "first second slow fast large small equal parallel local remote exact random quiet blue".split()
OTHER = ["naïve façade", "Straße über Köln", "ελληνικά γράμματα", "русский текст", "日本語の文", "한국어 문장", "שלום עולם", "हिन्दी", "🙂🚀", "e\u0301 o\u0308", "½ ² Ⅳ ٣"]
SPACE = ["  ", "\n", "\n\n", "\t", " \n  ", "\u00a0", "\u3000", "    "]


def sentence():
    kind = rng.randrange(12)
    a, b, c = rng.choice(NOUN), rng.choice(NOUN), rng.choice(ADJ)
    if kind == 0:
        return f"It's the {a}'s turn; they'll say we've lost {rng.randrange(10 ** rng.randrange(1, 7))} of I'm and don't."
    if kind == 1:
        return f"{rng.choice(OTHER)} ({a}, {b})!"
    if kind == 2:
        return f"{a}[{rng.randrange(64)}] = {rng.random():.4f} * {b}_{rng.randrange(9)}; // {c}"
    if kind == 3:
        return f"{a.upper()} {b.capitalize()}: {'=' * rng.randrange(1, 30)} {'?' * rng.randrange(4)}"
    return f"The {c} {a} {rng.choice(VERB)} a {b}, and the {b} {rng.choice(VERB)} the {rng.choice(ADJ)} {rng.choice(NOUN)}."


text = "".join(sentence() + (" " if rng.randrange(4) else rng.choice(SPACE)) for _ in range(420))
(here / "text.txt").write_text(text, encoding="utf-8")

order = [*range(33, 127), *range(161, 173), *range(174, 256)]  # bytes that stand for themselves come first
extra = [b for b in range(256) if b not in order]
stand_in = {b: chr(b) for b in order} | {b: chr(256 + i) for i, b in enumerate(extra)}
library = Tokenizer(models.BPE())
library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
library.train_from_iterator([text], trainers.BpeTrainer(vocab_size=IDS - 1, min_frequency=2, show_progress=False,
                                                        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
merges = [m if isinstance(m, list) else m.split(" ") for m in json.loads(library.to_str())["model"]["merges"]]
tokens = [stand_in[b] for b in order + extra] + ["".join(m) for m in merges] + ["<|endoftext|>"]
(here / "vocab.bpe").write_text("#version: 0.2\n" + "".join(" ".join(m) + "\n" for m in merges), encoding="utf-8")
(here / "encoder.json").write_text(json.dumps({t: i for i, t in enumerate(tokens)}))

ranks = tiktoken.load.data_gym_to_mergeable_bpe_ranks(str(here / "vocab.bpe"), str(here / "encoder.json"))
ids = tiktoken.Encoding("small", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens={}).encode_ordinary(text)
print(len(tokens), "tokens,", len(merges), "merges,", len(ids), "ids,", hashlib.sha256(struct.pack(f"<{len(ids)}H", *ids)).hexdigest())
