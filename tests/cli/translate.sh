#!/usr/bin/env bash
# The translation task: scores of files, prepared pairs, training, translations, and what is refused.
. "$(dirname "$0")/../support/lib.sh"
cd "$SCRATCH" || exit 1

# ---- eval --task bleu ----
printf 'The cat sat on the mat.\nEin Haus steht dort\nкошка сидит на коврике\n' >hyp.txt
printf 'The cat is on the mat.\r\nEin altes Haus steht dort drüben\r\nкошка сидит на стуле' >ref.txt
expect 0 '^bleu 39.8062$' "$LOCKSTEP" eval --task bleu --hyp hyp.txt --ref ref.txt
expect 0 '^chrf 59.3632$' "$LOCKSTEP" eval --task bleu --hyp hyp.txt --ref ref.txt
gzip -k ref.txt
expect 0 '"bleu_signature": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:' \
  "$LOCKSTEP" eval --task bleu --hyp - --ref ref.txt.gz --json <hyp.txt
expect 2 'needs --hyp FILE and --ref FILE' "$LOCKSTEP" eval --task bleu --hyp hyp.txt
head -n 2 ref.txt >short.txt
expect 3 'short.txt ends after line 2, but hyp.txt goes on' "$LOCKSTEP" eval --task bleu --hyp hyp.txt --ref short.txt
printf 'ok\n\xff\n' >bytes.txt
expect 3 'bytes.txt: line 2: byte 1 (0xff) is not UTF-8' "$LOCKSTEP" eval --task bleu --hyp bytes.txt --ref bytes.txt
: >none.txt
expect 3 'have no lines' "$LOCKSTEP" eval --task bleu --hyp none.txt --ref none.txt
expect 3 'missing.txt' "$LOCKSTEP" eval --task bleu --hyp hyp.txt --ref missing.txt

# ---- prepare --task translate ----
for i in $(seq 60); do printf 'das wort%d ist gross\tthe word%d is large\n' $((i % 9)) $((i % 9)); done >train.tsv
cut -f 1 train.tsv >train.de
cut -f 2 train.tsv >train.en
p=(prepare --task translate --quiet --vocab-size 300 --val-fraction 0.1)
expect 0 'train .* 54 pairs' "$LOCKSTEP" "${p[@]}" --input train.tsv --src-lang de --tgt-lang en --out tsv
expect 0 '<eos_de> and <eos_en>' "$LOCKSTEP" "${p[@]}" --input train.de train.en --test-input train.tsv --limit-test 3 --out text
python3 - <<'PY'
import json
with open("train.jsonl", "w") as f:
    for line in open("train.tsv"):
        src, tgt = line.rstrip("\n").split("\t")
        f.write(json.dumps({"src": src, "tgt": tgt}) + "\n")
PY
expect 0 'val .* 6 pairs' "$LOCKSTEP" "${p[@]}" --input train.jsonl --src-lang de --tgt-lang en --out json
for f in train.bin train.mask val.bin val.mask val.jsonl tokenizer.json; do
  same tsv/$f text/$f
  same tsv/$f json/$f
done
[ "$(wc -l <text/test.jsonl)" = 3 ] || bad "test.jsonl has $(wc -l <text/test.jsonl) lines"
head -n 1 text/test.jsonl | grep -q '^{"de": "das wort1 ist gross", "en": "the word1 is large"}$' || bad "$(head -n 1 text/test.jsonl)"
# another corpus with the tokenizer of the first; text instead of pairs in the same folder removes the masks
expect 0 'vocab' "$LOCKSTEP" "${p[@]:0:3}" --input train.tsv --tokenizer tsv/tokenizer.json --src-lang de --tgt-lang en --out again
expect 2 'translates de to en' "$LOCKSTEP" "${p[@]:0:3}" --input train.tsv --tokenizer tsv/tokenizer.json --out again
expect 0 'train' "$LOCKSTEP" prepare --quiet --input "$LS_SOURCE/tests/data/bpe/text.txt" --tokenizer bytes --out again
[ ! -e again/train.mask ] && [ ! -e again/val.mask ] || bad "prepare leaves the masks of pairs"
expect 2 'needs its translation after it' "$LOCKSTEP" "${p[@]}" --input train.de --out x
expect 2 '--limit-test needs --test-input' "$LOCKSTEP" "${p[@]}" --input train.tsv --limit-test 3 --out x
expect 2 '259 (bytes and special tokens) to 65536' "$LOCKSTEP" prepare --task translate --input train.tsv --out x --vocab-size 258
echo 'no tab' >bad.tsv
expect 3 'bad.tsv: line 1 has no tab' "$LOCKSTEP" "${p[@]}" --input train.tsv --test-input bad.tsv --out x
[ ! -e x ] || bad "a refused corpus leaves a folder"

done_tests
