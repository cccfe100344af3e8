#!/usr/bin/env bash
# prepare: formats, splits, limits, threads, refusals. Each refusal prints one clear line, has the right exit code, and leaves no files.
. "$(dirname "${BASH_SOURCE[0]}")/../support/lib.sh"
[ -x "$LOCKSTEP" ] || skip "no program at $LOCKSTEP"
for tool in python3 gzip zstd; do command -v $tool >/dev/null || skip "no $tool to make packed inputs with"; done
cd "$SCRATCH" || exit 1
prepare() { "$LOCKSTEP" prepare --quiet "$@"; }
# ok NAME ARGS... : must succeed; summary in NAME.json
ok() { local name=$1; shift; prepare --json --out "$name" "$@" >"$name.json" 2>err || bad "$*: $(cat err)"; }
# field FILE PATH : a value of a summary
field() { python3 -c 'import json,sys
v=json.load(open(sys.argv[1]))
for k in sys.argv[2].split("."): v=v[k]
print(v)' "$1" "$2"; }
is() { [ "$2" = "$3" ] || bad "$1 is $2, expected $3"; }
ids() { python3 -c 'import struct,sys
b=open(sys.argv[1],"rb").read(); print(*struct.unpack("<%dH"%(len(b)//2),b))' "$1"; }
# refused CODE WORDS ARGS... : also creates no folder
refused() {
  expect "$1" "$2" "$LOCKSTEP" prepare --quiet --tokenizer bytes --out never "${@:3}"
  [ "$(grep -c "^lockstep: " "$SCRATCH/err")" = 1 ] || bad "not one line of messages: ${*:3}"
  [ ! -e never ] || { bad "something was left in the output folder: ${*:3}: $(ls never)"; rm -rf never; }
}

# ---- results
printf 'Hi \303\251!' >one.txt
ok bytes --tokenizer bytes --val_fraction 0 --input one.txt
is "the stream of bytes" "$(ids bytes/train.bin)" "72 105 32 195 169 33 256"
[ ! -e bytes/val.bin ] || bad "--val_fraction 0 wrote val.bin"
is "vocab_size" "$(field bytes.json vocab_size)" 257
is "meta.json tokens" "$(field bytes/meta.json train.tokens)" 7
is "meta.json sha256" "$(field bytes/meta.json train.sha256)" "$(sha256sum <bytes/train.bin | cut -d' ' -f1)"

python3 - <<'PY'
import json, random
r = random.Random(3)
words = "the of and to in a is that for it was as with be by on not he his but at are this have from or had an they which".split()
def text(): return " ".join(r.choice(words) + r.choice(["", "", "", ",", ".", "\n", "'s", " 12"]) for _ in range(r.randrange(1, 400)))
docs = [text() for _ in range(3000)] + ["", "naïve 漢字 \U0001f600", "tab\there \"quoted\" \\ back"]
with open("docs.jsonl", "w") as f:
    for i, d in enumerate(docs):
        f.write(json.dumps({"id": i, "text": d, "meta": {"a": [1, None]}}, ensure_ascii=i % 2 == 0) + "\n")
        if i % 7 == 0: f.write("\n")
open("long.txt", "w").write("\n\n".join(docs) * 2)
PY
gzip -kf docs.jsonl long.txt; zstd -qkf docs.jsonl long.txt

for input in docs.jsonl long.txt; do
  n=${input%.*}
  ok "$n-1" --tokenizer train --vocab_size 600 --threads 1 --input "$input"
  for t in 2 5; do
    ok "$n-$t" --tokenizer train --vocab_size 600 --threads $t --input "$input"
    for f in train.bin val.bin tokenizer.json; do same "$n-1/$f" "$n-$t/$f"; done
  done
  for z in gz zst; do
    ok "$n-$z" --tokenizer "$n-1" --input "$input.$z"
    for f in train.bin val.bin tokenizer.json; do same "$n-1/$f" "$n-$z/$f"; done
  done
  ok "$n-stdin" --tokenizer train --vocab_size 600 --input - --format "$([ "$n" = docs ] && echo jsonl || echo txt)" <"$input.zst"
  for f in train.bin val.bin tokenizer.json; do same "$n-1/$f" "$n-stdin/$f"; done
done
is "documents for training" "$(field docs-1.json train.documents)" 2853
is "documents for validation" "$(field docs-1.json val.documents)" 150
is "tail split" "$(field long-1.json val_is_tail_of_stream)" True
python3 - <<'PY' || bad "the tail split is not the last 5 % of the stream"
import json
a, v = (json.load(open("long-1.json"))[k]["tokens"] for k in ("train", "val"))
assert v == int((a + v) * 0.05), (a, v)
PY
# 25 files of which the 20th, for validation, is much larger or much smaller than the others: split at a token, nothing is lost
for size in 90000 5; do
  mkdir "sizes-$size"
  for k in $(seq -w 25); do head -c "$([ "$k" = 20 ] && echo $size || echo 1000)" long.txt | iconv -c -f utf-8 -t utf-8 >"sizes-$size/$k.txt"; done
  ok "split-$size" --tokenizer bytes --input "sizes-$size"
  ok "all-$size" --tokenizer bytes --val_fraction 0 --input "sizes-$size"
  is "split of files" "$(field "split-$size.json" val_is_tail_of_stream)" True
  python3 - $size <<'PY' || bad "the split of files with very different sizes"
import array, sys
size = sys.argv[1]
ids = lambda name: array.array("H", open(name, "rb").read()).tolist()
whole, train, val = ids(f"all-{size}/train.bin"), ids(f"split-{size}/train.bin"), ids(f"split-{size}/val.bin")
assert len(val) == int(len(whole) * 0.05), (len(val), len(whole))
assert sorted(train + val) == sorted(whole)
PY
done
grep -q 'val .* 5 % of the tokens, split at a token' <("$LOCKSTEP" prepare --quiet --tokenizer bytes --input sizes-5 --out words) || bad "no message about the split"
rm -r words
ok whole --tokenizer docs-1 --val_fraction 0 --input docs.jsonl
python3 -c 'import json,struct
b=open("whole/train.bin","rb").read(); ids=struct.unpack("<%dH"%(len(b)//2),b); eot=json.load(open("whole.json"))["vocab_size"]-1
assert ids.count(eot)==3003 and ids[-1]==eot, (ids.count(eot), ids[-1])' || bad "not one end-of-text per document"

mkdir -p tree/sub; cp docs.jsonl tree/b.jsonl; cp one.txt tree/sub/a.txt; echo skip >tree/readme.rst; echo no >tree/.hidden.txt
ok tree --tokenizer bytes --val_fraction 0 --input tree
is "documents of a folder" "$(field tree.json train.documents)" 3004
ok lim --tokenizer bytes --val_input docs.jsonl one.txt --limit_docs 10 --limit_val_docs 20 --input docs.jsonl
is "--limit_docs" "$(field lim.json train.documents)" 10
is "--limit_val_docs" "$(field lim.json val.documents)" 20
ok key --tokenizer bytes --val_fraction 0 --text_key body --input <(printf '{"body":"x","text":"y"}\n') --format jsonl
is "--text_key" "$(ids key/train.bin)" "120 256"
ok lim --tokenizer bytes --val_fraction 0 --input one.txt
[ ! -e lim/val.bin ] || bad "the val.bin of an earlier run was left"

# ---- bytes that are not UTF-8
printf 'good \377\376 bad \342\202' >latin.txt
printf '{"text":"a"}\n{"text":"b\377"}\n' >latin.jsonl
printf '{"text":"a"}\n{"text":"x\\ud800y"}\n' >lone.jsonl
refused 2 'text_key is only for JSON lines' --input one.txt --text_key body
refused 3 'latin.txt: byte 5 (0xff)' --input latin.txt
refused 3 'latin.jsonl: line 2, byte 11 (0xff)' --input latin.jsonl
refused 3 'lone.jsonl: line 2' --input lone.jsonl
ok keep --tokenizer bytes --val_fraction 0 --invalid_utf8 keep --input latin.txt
python3 -c 'import struct
b=open("keep/train.bin","rb").read(); assert bytes(struct.unpack("<%dH"%(len(b)//2),b)[:-1])==open("latin.txt","rb").read()' || bad "--invalid_utf8 keep changed bytes"
ok repl --tokenizer bytes --val_fraction 0 --invalid_utf8 replace --input latin.txt latin.jsonl lone.jsonl
python3 -c 'import struct
b=open("repl/train.bin","rb").read(); i=struct.unpack("<%dH"%(len(b)//2),b); docs=bytes(x if x<256 else 0 for x in i).decode().split("\0")
want=[open("latin.txt","rb").read().decode(errors="replace"),"a","b\ufffd","a","x\ufffdy",""]; assert docs==want,(docs,want)' || bad "--invalid_utf8 replace"

# ---- refusals: exit 3 for data, 2 for usage
head -c 1000 docs.jsonl.gz >cut.jsonl.gz; head -c 1000 long.txt.zst >cut.txt.zst
refused 3 'cut.jsonl.gz: the gzip stream is truncated' --input cut.jsonl.gz
refused 3 'cut.txt.zst: the zstd stream is truncated' --input cut.txt.zst
cp one.txt fake.txt.gz; refused 3 'fake.txt.gz: not a gzip file' --input fake.txt.gz
printf '{"text":"a"}\n\n{"body":"b"}\n' >nokey.jsonl; refused 3 'nokey.jsonl: line 3 has no key "text"' --input nokey.jsonl
printf '{"text":"a"}\n{"text":}\n' >bad.jsonl; refused 3 'bad.jsonl: line 2 is not a JSON object: byte 9' --input bad.jsonl
printf '{"text":5}\n' >five.jsonl; refused 3 'five.jsonl: line 1: the value of "text" is not a string' --input five.jsonl
: >empty.txt; printf '\n\n' >empty.jsonl; printf '{"text":""}\n' >void.jsonl
for f in empty.txt empty.jsonl void.jsonl; do refused 3 "$f contains no text" --input $f; done
refused 3 'standard input contains no text' --input - --format txt </dev/null
refused 3 'empty.txt contains no text' --input one.txt --val_input empty.txt
refused 3 'nothing-here.txt: no such file' --input nothing-here.txt
mkdir hollow; refused 3 'no .txt, .md, .rst or .jsonl file' --input hollow
touch data.csv; refused 2 'data.csv: unknown format: the name does not end in' --input data.csv
printf 'two\n\none\r\ntwo\nthree' >lines.txt # --lines: documents without line ends
ok lines --tokenizer bytes --val_fraction 0 --lines --dedup --input lines.txt
python3 -c 'assert open("lines/train.bin", "rb").read().decode("utf-16le").replace(chr(256), "|") == "two|one|three|"' || bad "--lines: $(od -c lines/train.bin)"
ok lines3 --tokenizer bytes --val_fraction 0 --format lines --limit_docs 2 --input lines.txt
[ "$(wc -c <lines3/train.bin)" = 16 ] || bad "--lines --limit_docs 2"
printf '{"text": "a"}\n' >lines.jsonl; refused 2 'lines of JSON are documents already; leave --lines out' --lines --input lines.jsonl
refused 2 'the format of standard input (-) is unknown' --input - </dev/null
refused 2 "the input is missing"
refused 2 'val_fraction 1.5' --input one.txt --val_fraction 1.5
refused 2 'cannot be combined' --input one.txt --val_input one.txt --val_fraction 0.1
refused 2 'need --tokenizer train' --input one.txt --vocab_size 500
refused 2 'need --tokenizer gpt2' --input one.txt --vocab_dir .
refused 2 'no-such-place' --input one.txt --tokenizer no-such-place
refused 2 'vocab_size 70000' --input one.txt --tokenizer train --vocab_size 70000
refused 2 'did you mean\|nearest\|--limit_docs' --input one.txt --limit-dcos 3
python3 - <<'PY'
import json
t = json.load(open("bytes/tokenizer.json"))
v = t["model"]["vocab"]
t["added_tokens"] += [{"id": len(v) + i, "content": f"<x{i}>", "special": True} for i in range(65400)]
json.dump(t, open("big.json", "w"))
t["added_tokens"] = []
del t["model"]["vocab"]["<|endoftext|>"]
json.dump(t, open("noeot.json", "w"))
PY
refused 2 'does not fit the 16-bit token files' --input one.txt --tokenizer big.json
refused 2 'no <|endoftext|>' --input one.txt --tokenizer noeot.json
# the first bad line in the order of the corpus is the one reported, however many threads there are
{ cat docs.jsonl; echo '{"nope":1}'; cat docs.jsonl; echo '{"broken'; } >late.jsonl
line=$(($(wc -l <docs.jsonl) + 1))
for t in 1 4; do refused 3 "late.jsonl: line $line has no key" --input late.jsonl --threads $t; done

# an output folder that cannot be written, and an earlier result that stays complete
if [ "$(id -u)" != 0 ]; then
  mkdir locked; chmod 500 locked
  expect 3 'cannot' "$LOCKSTEP" prepare --quiet --tokenizer bytes --input one.txt --out locked/x
fi
echo file >inway; expect 3 'inway' "$LOCKSTEP" prepare --quiet --tokenizer bytes --input one.txt --out inway
# a full disk, simulated by a limit on the size of files
limited() { (trap '' XFSZ; ulimit -f 64; exec "$LOCKSTEP" prepare --quiet --tokenizer bytes --input long.txt --out crowded); }
expect 3 'cannot write .*crowded' limited
[ ! -e crowded ] || bad "something was left on a full disk: $(ls crowded)"
cp bytes/train.bin before.bin
expect 3 'latin' "$LOCKSTEP" prepare --quiet --tokenizer bytes --input one.txt latin.txt --out bytes
same before.bin bytes/train.bin
is "files after a failure" "$(ls bytes | tr '\n' ' ')" "meta.json tokenizer.json train.bin "

# ---- GPT-2's vocabulary: cache, download (from a file URL), and the message when there is neither
export LOCKSTEP_CACHE=$SCRATCH/cache
mkdir served; echo wrong >served/vocab.bpe; echo '{}' >served/encoder.json
g() { LOCKSTEP_VOCAB_URL=$1 "$LOCKSTEP" prepare --quiet --input one.txt --val_fraction 0 --out gpt2; }
expect 3 "$LOCKSTEP_CACHE/gpt2" g "file://$SCRATCH/nothing"
grep -q 'put vocab.bpe and encoder.json' "$SCRATCH/err" || bad "the message does not name the files and their folder"
expect 3 'SHA-256' g "file://$SCRATCH/served"
[ ! -e cache/gpt2/vocab.bpe ] || bad "a wrong download was kept"
# with the right files: tests/oracle/tokenizer.sh

# ---- a vocabulary in GPT-2's two files, and the tokenizer.json that is made from it
unset LOCKSTEP_CACHE
small=$LS_SOURCE/tests/data/bpe
ok dir --vocab_dir "$small" --val_fraction 0 --input "$small/text.txt"
is "ids of the small vocabulary" "$(($(wc -c <dir/train.bin) / 2))" 6240
ok again --tokenizer dir/tokenizer.json --val_fraction 0 --input "$small/text.txt"
same dir/train.bin again/train.bin
mkdir half; cp "$small/vocab.bpe" half/
expect 3 'encoder.json' "$LOCKSTEP" prepare --quiet --vocab_dir half --input one.txt --out half-out

# ---- stopped while it works: no file is left
mkfifo pipe
"$LOCKSTEP" prepare --quiet --tokenizer bytes --input pipe --format txt --out stopped 2>err &
pid=$!
{ head -c 3000000 long.txt; sleep 1; kill -TERM $pid; head -c 3000000 long.txt; } >pipe 2>/dev/null
wait $pid; is "exit code after SIGTERM" $? 143
[ ! -e stopped ] || bad "something was left after SIGTERM: $(ls stopped)"
done_tests
