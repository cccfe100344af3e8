"""Compares lockstep's tokenizer with tiktoken and with the tokenizers library. Called by tokenizer.sh."""
import array
import hashlib
import itertools
import json
import pathlib
import random
import subprocess
import sys

import tiktoken
import tiktoken.load
from tiktoken_ext.openai_public import r50k_pat_str
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

program, vocab, small, scratch, count = sys.argv[1], *map(pathlib.Path, sys.argv[2:5]), int(sys.argv[5])
book = scratch / "book.txt"  # the text that tokenizers are trained on
EOT = 50256
failures = 0


def check(what, ok, more=""):
    global failures
    print(("ok    " if ok else "FAILED"), what, "" if ok else more)
    failures += not ok


def prepare(out, *args):
    subprocess.run([program, "prepare", "--quiet", "--out", str(scratch / out), *map(str, args)], check=True,
                   stdout=subprocess.DEVNULL)
    ids = array.array("H")
    ids.frombytes((scratch / out / "train.bin").read_bytes())
    return ids


ranks = tiktoken.load.data_gym_to_mergeable_bpe_ranks(str(vocab / "vocab.bpe"), str(vocab / "encoder.json"))
gpt2 = tiktoken.Encoding("gpt2", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": EOT})

# ---- random strings
rng = random.Random(20240607)
SPACES = "  \n\t\r\x0b\x0c\x85\xa0\u1680\u2003\u2028\u2029\u202f\u205f\u3000\x1c\u200b\ufeff"
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'RE", "'", "''s", "'l", "'r", "\u2019s"]


def make_book(n_word):
    """Words of an invented language with Zipf frequencies, in sentences with names, numbers and line ends."""
    syllables = ["".join(p) for p in itertools.product("bdfghklmnprstvwz", "aeiou", ["", "n", "r", "s", "th"])]
    known = ["".join(rng.choice(syllables) for _ in range(rng.choice((1, 1, 2, 2, 3)))) for _ in range(6000)]
    weights = list(itertools.accumulate(1 / (k + 1) for k in range(len(known))))
    out, capital = [], True
    for w in rng.choices(known, cum_weights=weights, k=n_word):
        w = w.capitalize() if capital else w
        end = rng.choices(["", ",", ".\n", ".", "'s", "; " + str(rng.randrange(2000))], [80, 8, 3, 4, 3, 2])[0]
        capital = end.startswith(".") or rng.randrange(60) == 0
        out.append(w + end)
    return " ".join(out).replace("\n ", "\n")


book.write_text(make_book(160000))
words = book.read_text().split()


def any_character():
    plane = rng.randrange(17)
    while True:
        c = plane * 0x10000 + rng.randrange(0x10000)
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def piece():
    kind = rng.randrange(15)
    if kind == 0:
        return any_character()
    if kind == 1:
        return rng.choice(SPACES) * rng.randrange(1, 6)
    if kind == 2:
        return rng.choice(CONTRACTIONS)
    if kind in (3, 4):
        return " " * (kind - 3) + rng.choice(words)
    if kind == 5:
        return str(rng.randrange(10 ** rng.randrange(1, 9)))
    if kind == 6:
        return chr(rng.randrange(0x300, 0x370))
    if kind == 7:
        return chr(rng.randrange(0x80, 0x3000))
    if kind == 8:
        return chr(rng.randrange(0x3000, 0xA000)) * rng.randrange(1, 4)
    if kind == 9:
        return chr(rng.randrange(0x1F300, 0x1FB00))
    if kind == 10:
        return chr(rng.randrange(128))
    if kind == 11:
        return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz\u00e9\u00df") for _ in range(rng.randrange(1, 90)))
    if kind == 12:
        return rng.choice("!?.,-=_*#<|>") * rng.randrange(1, 100)
    if kind == 13:
        return "<|endoftext|>"
    return rng.choice(SPACES)


strings = ["".join(piece() for _ in range(rng.randrange(14))) for _ in range(count)]
# every letter, number and space of the Unicode tables once, in runs and with blanks between
strings += ["".join(chr(c) for c in range(a, a + 256)) for a in range(0, 0x110000, 256) if not 0xD800 <= a < 0xE000]
strings += [" ".join(chr(c) for c in range(a, a + 256)) for a in range(0, 0x20000, 256) if not 0xD800 <= a < 0xE000]
with open(scratch / "strings.jsonl", "w") as f:
    for i, s in enumerate(strings):
        f.write(json.dumps({"text": s}, ensure_ascii=i % 2 == 0) + "\n")
got = prepare("strings", "--input", scratch / "strings.jsonl", "--vocab_dir", vocab, "--val_fraction", 0)
at = different = 0
for s in strings:
    want = gpt2.encode_ordinary(s)
    mine = list(got[at : at + len(want) + 1])
    if mine != want + [EOT]:
        different += 1
        print("differs:", ascii(s), mine[:40], want[:40])
        if different == 5:
            break
        end = at
        while got[end] != EOT:
            end += 1
        at = end + 1
        continue
    at += len(want) + 1
check(f"tiktoken {tiktoken.__version__}: {len(strings)} strings, {len(got)} ids, {different} differ", different == 0 and at == len(got))

# ---- whole texts: the book, and the small vocabulary of tests/data/bpe with its text
mine = list(prepare("book", "--input", book, "--vocab_dir", vocab, "--val_fraction", 0))
check(f"tiktoken and gpt2 agree on a text of {book.stat().st_size} bytes", mine == gpt2.encode_ordinary(book.read_text()) + [EOT])
ranks = tiktoken.load.data_gym_to_mergeable_bpe_ranks(str(small / "vocab.bpe"), str(small / "encoder.json"))
theirs = tiktoken.Encoding("small", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens={})
mine = prepare("small", "--input", small / "text.txt", "--vocab_dir", small, "--val_fraction", 0)
mine.pop()
digest = hashlib.sha256(mine.tobytes()).hexdigest()
check(f"tiktoken and tests/data/bpe agree: {len(mine)} ids, sha256 {digest[:16]}...",
      list(mine) == theirs.encode_ordinary((small / "text.txt").read_text(encoding="utf-8")) and
      digest == "37379e9fe546c81204e33e3c4ebe622ca43293db389958c12201c04badd9d4d2")

# ---- our tokenizer.json in the tokenizers library
for name, args in (("gpt2", ["--vocab_dir", vocab]), ("trained", ["--tokenizer", "train", "--vocab_size", 3000]),
                   ("bytes", ["--tokenizer", "bytes"])):
    ids = prepare(name, "--input", book, "--val_fraction", 0, *args)
    library = Tokenizer.from_file(str(scratch / name / "tokenizer.json"))
    text = book.read_text()
    eot = library.token_to_id("<|endoftext|>")
    check(f"tokenizers loads {name}: same ids on the book", library.encode(text).ids + [eot] == list(ids))
    check(f"tokenizers decodes {name}", library.decode(list(ids[:-1])) == text)
    check(f"tokenizers finds the special token of {name}", library.encode("a<|endoftext|>").ids[-1] == eot and
          eot == library.get_vocab_size() - 1)
    sample = [s for s in strings[:4000] if "<|endoftext|>" not in s]
    with open(scratch / "sample.jsonl", "w") as f:
        f.writelines(json.dumps({"text": s}) + "\n" for s in sample)
    ids = prepare("sample", "--input", scratch / "sample.jsonl", "--val_fraction", 0, "--tokenizer", scratch / name)
    want = [i for s in sample for i in library.encode(s).ids + [eot]]
    check(f"tokenizers and {name} agree on {len(sample)} random strings", want == list(ids))

# ---- the trainer: the same merges as the library's, in the same order
for size in (400, 3000, 60000):
    prepare("ours", "--input", book, "--tokenizer", "train", "--vocab_size", size)
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.train_from_iterator([book.read_text()], trainers.BpeTrainer(
        vocab_size=size - 1, min_frequency=2, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False))
    theirs = [" ".join(m) if isinstance(m, list) else m for m in json.loads(library.to_str())["model"]["merges"]]
    ours = json.load(open(scratch / "ours/tokenizer.json"))["model"]["merges"]
    check(f"trainer, {size} ids: {len(ours)} merges as the tokenizers library learns them", ours == theirs)

# ---- pairs of two languages: special tokens first, one vocabulary of both sides
lines = [line for line in book.read_text().replace("\t", " ").split("\n") if line.strip()][:3000]
pairs = list(zip(lines[::2], lines[1::2]))
(scratch / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
special = ["<eos_de>", "<eos_en>", "<pad>"]
for size in (400, 2000):
    ids = prepare("pairs", "--task", "translate", "--input", scratch / "pairs.tsv", "--val_fraction", 0, "--src_lang", "de",
                  "--tgt_lang", "en", "--vocab_size", size)
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.train_from_iterator([x for p in pairs for x in p], trainers.BpeTrainer(
        vocab_size=size, min_frequency=2, special_tokens=special, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False))
    theirs = [" ".join(m) if isinstance(m, list) else m for m in json.loads(library.to_str())["model"]["merges"]]
    ours = json.load(open(scratch / "pairs/tokenizer.json"))["model"]["merges"]
    check(f"pairs, {size} ids: {len(ours)} merges as the tokenizers library learns them", ours == theirs)
    own = Tokenizer.from_file(str(scratch / "pairs/tokenizer.json"))
    check(f"pairs, {size} ids: special tokens have the first ids", [own.token_to_id(t) for t in special] == [0, 1, 2])
    want = [i for a, b in pairs for i in own.encode(a + "<eos_de>").ids + own.encode(b + "<eos_en>").ids]
    check(f"pairs, {size} ids: the ids of {len(pairs)} pairs", want == list(ids))

sys.exit(1 if failures else 0)
