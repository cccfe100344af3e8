"""Compares BLEU, its parts, chrF and the signatures with sacrebleu on random corpora: within 1e-9.

Sets have 1 to 12 sentences of Latin, Cyrillic, Arabic, Chinese, Japanese, Hindi and mixed text, with numbers, punctuation, entities, the
white space of Unicode, empty sentences, and references that are equal, edited or unrelated."""
import json
import random
import subprocess
import sys
import tempfile

import sacrebleu
from sacrebleu.metrics import BLEU, CHRF

WORDS = {
    "latin": "the a cat dog sat on mat it's don't naïve élan Straße über ein Haus U.S. e.g. 3.14 1,000 10-20 5- -5 x/y a=b".split(),
    "cyrillic": "кошка сидит на коврике и смотрит дом 7 — «да»".split(),
    "arabic": "القط على الحصيرة في البيت ١٢٣".split(),
    "chinese": "猫 坐在 垫子上 北京 大学 ， 。 我爱".split(),
    "japanese": "ネコ が マット に すわる 。 東京".split(),
    "hindi": "बिल्ली चटाई पर बैठी है ।".split(),
    "emoji": "😀 👩‍👩‍👧 🇩🇪 x̂ é".split(),
}
MARKS = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + ["&quot;", "&amp;", "&lt;", "&gt;", "&amp;lt;", "<skipped>", "...", "-\n", "\n", "1.", ".5", ",,"]
SPACES = [" ", "  ", "\t", "\u00a0", "\u3000", "\u2003", "\u2028", "\u0085", "\x1c", "\u205f", "\u1680", "\u200b"]


def sentence(r, kind):
    if r.random() < 0.06:
        return r.choice(["", " ", "\u3000", "\t "])
    out = []
    for _ in range(r.randrange(1, 25)):
        out.append(r.choice(WORDS[r.choice(list(WORDS)) if kind == "mixed" else kind]))
        while r.random() < 0.2:
            out.append(r.choice(MARKS))
        if r.random() < 0.85:
            out.append(r.choice(SPACES) if r.random() < 0.1 else " ")
    return "".join(out)


def edited(r, text):
    chars = list(text)
    for _ in range(r.randrange(0, 6)):
        if chars:
            k = r.randrange(len(chars))
            chars[k : k + r.randrange(0, 4)] = r.choice([[], ["x"], [" "], [r.choice(MARKS)]])
    return "".join(chars)


def corpus(r):
    kind = r.choice([*WORDS, "mixed"])
    hyp, ref = [], []
    for _ in range(r.randrange(1, 13)):
        ref.append(sentence(r, kind))
        p = r.random()
        hyp.append(ref[-1] if p < 0.2 else edited(r, ref[-1]) if p < 0.8 else sentence(r, kind))
    if r.random() < 0.03:
        hyp = [""] * len(ref)
    return {"hyp": hyp, "ref": ref}


def main():
    tool, lockstep, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
    r = random.Random(20)
    sets = [corpus(r) for _ in range(n)]
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        f.writelines(json.dumps(s) + "\n" for s in sets)
        f.flush()
        lines = subprocess.run([tool, f.name], check=True, capture_output=True, text=True).stdout.splitlines()
    if len(lines) != n + 2:
        raise SystemExit(f"{len(lines)} lines, {n + 2} expected")
    worst, total = 0.0, 0.0
    for s, line in zip(sets, lines):
        bleu, chrf = BLEU(), CHRF()
        b, c = bleu.corpus_score(s["hyp"], [s["ref"]]), chrf.corpus_score(s["hyp"], [s["ref"]])
        theirs = [b.score, *b.precisions, b.bp, c.score]
        apart = max(abs(x - y) for x, y in zip(map(float, line.split()), theirs))
        if apart > 1e-9:
            raise SystemExit(f"{json.dumps(s)}\nours   {line}\nsacrebleu {theirs}")
        worst, total = max(worst, apart), total + b.score
    print(f"ok   {n} corpora within {worst:.2g} (mean BLEU {total / n:.1f})")
    # a corpus that no score is 0 or 100 of, or the comparison shows little
    if not 5 < total / n < 95:
        raise SystemExit(f"the random corpora are too easy or too hard: mean BLEU {total / n}")
    names = [str(bleu.get_signature()), str(chrf.get_signature())]
    same_version = [x.replace(sacrebleu.__version__, "V") for x in names]
    ours = [x.replace("2.6.0", "V") for x in lines[n:]]
    if same_version != ours:
        raise SystemExit(f"signatures: {ours}, sacrebleu: {same_version}")
    command_line(r, lockstep)


def command_line(r, lockstep):
    """The same numbers from the program, which reads lines."""
    ref = [" ".join(sentence(r, "mixed").split()) for _ in range(50)]
    hyp = [edited(r, x).replace("\n", " ") for x in ref]
    with tempfile.NamedTemporaryFile("w", newline="\n") as h, tempfile.NamedTemporaryFile("w", newline="\n") as f:
        h.writelines(x + "\n" for x in hyp)
        f.writelines(x + "\n" for x in ref)
        h.flush()
        f.flush()
        ours = json.loads(subprocess.run([lockstep, "eval", "--task", "bleu", "--hyp", h.name, "--ref", f.name, "--json"],
                                         check=True, capture_output=True, text=True).stdout)
    for name, theirs in (("bleu", BLEU().corpus_score(hyp, [ref]).score), ("chrf", CHRF().corpus_score(hyp, [ref]).score)):
        if abs(ours[name] - theirs) > 1e-9:
            raise SystemExit(f"eval --task bleu: {name} {ours[name]}, sacrebleu {theirs}")
    print("ok   eval --task bleu")


main()
