#!/usr/bin/env python3
"""Writes pairs of a small language and English, made by a grammar: SOURCE TAB TARGET, one pair per line.

    make_pairs.py FOLDER TRAIN VALIDATION TEST [SEED]

The source resembles German. A translation has to choose words by context and to move them: articles agree with the gender of the noun and
its case, an adverb at the front puts the verb before the subject, the verb of a subordinate clause comes last, and a split verb leaves its
prefix at the end. No sentence of the validation and test files is in the training file."""
import random
import sys

# source, English, gender
ANIMATE = [("hund", "dog", "m"), ("katze", "cat", "f"), ("kind", "child", "n"), ("lehrer", "teacher", "m"), ("frau", "woman", "f"),
           ("mann", "man", "m"), ("pferd", "horse", "n"), ("königin", "queen", "f"), ("bäcker", "baker", "m"), ("mädchen", "girl", "n")]
THING = [("apfel", "apple", "m"), ("brief", "letter", "m"), ("tasche", "bag", "f"), ("buch", "book", "n"), ("lampe", "lamp", "f"),
         ("brot", "bread", "n"), ("stein", "stone", "m"), ("blume", "flower", "f"), ("bild", "picture", "n"), ("schlüssel", "key", "m")]
ADJECTIVE = [("klein", "small"), ("groß", "big"), ("alt", "old"), ("neu", "new"), ("schön", "beautiful"), ("rot", "red")]
# source, English, prefix that moves to the end
VERB = [("sieht", "sees", ""), ("findet", "finds", ""), ("sucht", "looks for", ""), ("kauft", "buys", ""), ("trägt", "carries", ""),
        ("nimmt", "takes away", "weg"), ("macht", "opens", "auf"), ("hebt", "picks up", "auf"), ("malt", "paints", "")]
ADVERB = [("heute", "today"), ("morgens", "in the morning"), ("oft", "often"), ("im garten", "in the garden"), ("am fluss", "by the river")]
OPENING = [("ich glaube", "i believe"), ("sie sagt", "she says"), ("er weiß", "he knows")]
DEFINITE = {"nom": {"m": "der", "f": "die", "n": "das"}, "acc": {"m": "den", "f": "die", "n": "das"}}
INDEFINITE = {"nom": {"m": "ein", "f": "eine", "n": "ein"}, "acc": {"m": "einen", "f": "eine", "n": "ein"}}


def ending(case, gender, definite):
    if definite:
        return "en" if (case, gender) == ("acc", "m") else "e"
    return {"m": "er" if case == "nom" else "en", "f": "e", "n": "es"}[gender]


def phrase(r, nouns, case):
    noun, english, gender = r.choice(nouns)
    definite = r.random() < 0.6
    words = [(DEFINITE if definite else INDEFINITE)[case][gender]]
    translated = []
    if r.random() < 0.5:
        adjective, meaning = r.choice(ADJECTIVE)
        words.append(adjective + ending(case, gender, definite))
        translated.append(meaning)
    translated.append(english)
    article = "the" if definite else "an" if translated[0][0] in "aeio" else "a"
    return " ".join([*words, noun]), " ".join([article, *translated])


def pair(r):
    subject, who = phrase(r, ANIMATE, "nom")
    thing, what = phrase(r, ANIMATE + THING, "acc")
    verb, does, prefix = r.choice(VERB)
    adverb, when = r.choice(ADVERB)
    kind = r.randrange(4)
    if kind == 0:
        return f"{subject} {verb} {thing} {prefix}".strip() + " .", f"{who} {does} {what} ."
    if kind == 1:
        return f"{adverb} {verb} {subject} {thing} {prefix}".strip() + " .", f"{when} {who} {does} {what} ."
    if kind == 2:
        opening, start = r.choice(OPENING)
        return f"{opening} , dass {subject} {thing} {prefix}{verb} .", f"{start} that {who} {does} {what} ."
    other, other_what = phrase(r, THING, "acc")
    verb2, does2, prefix2 = r.choice(VERB)
    first, second = (f"{verb} {thing} {prefix}".strip(), f"{verb2} {other} {prefix2}".strip())
    return f"{subject} {first} und {second} .", f"{who} {does} {what} and {does2} {other_what} ."


def main():
    folder, sizes = sys.argv[1], [int(x) for x in sys.argv[2:5]]
    r = random.Random(int(sys.argv[5]) if len(sys.argv) > 5 else 1)
    seen = set()
    for name, n in zip(("train", "val", "test"), sizes):
        with open(f"{folder}/{name}.tsv", "w", encoding="utf-8") as f:
            lines = 0
            while lines < n:
                source, target = pair(r)
                if source in seen:
                    continue
                seen.add(source)
                f.write(f"{source}\t{target}\n")
                lines += 1


main()
