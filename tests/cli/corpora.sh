#!/usr/bin/env bash
# Corpora of many files: inputs as words, skipped files, filters, duplicates, shards, blends, and token files that do not match meta.json.
. "$(dirname "${BASH_SOURCE[0]}")/../support/lib.sh"
[ -x "$LOCKSTEP" ] || skip "no program at $LOCKSTEP"
for tool in python3 gzip zstd; do command -v $tool >/dev/null || skip "no $tool to make packed inputs with"; done
cd "$SCRATCH" || exit 1
prepare() { "$LOCKSTEP" prepare --tokenizer bytes "$@"; }
ok() { local name=$1; shift; prepare --quiet --json --out "$name" "$@" >"$name.json" 2>err || bad "$*: $(cat err)"; }
field() { python3 -c 'import json,sys
v=json.load(open(sys.argv[1]))
for k in sys.argv[2].split("."): v=v[int(k) if k.isdigit() else k]
print(v)' "$1" "$2"; }
is() { [ "$2" = "$3" ] || bad "$1 is $2, expected $3"; }
# documents DIR : the documents of a folder with the byte tokenizer, one repr per line, training first
documents() { python3 - "$@" <<'PY'
import pathlib, struct, sys
d = pathlib.Path(sys.argv[1])
for part in ("train", "val"):
    b = b"".join(p.read_bytes() for p in sorted(d.glob(part + "*.bin")))
    ids = struct.unpack("<%dH" % (len(b) // 2), b)
    text = "".join(chr(i) for i in ids)
    for x in text.split(chr(256))[:-1]: print(part, x.encode("latin-1").decode())
PY
}

# ---- many files: words and folders, another key, packed files, other types
python3 - <<'PY'
import json, random
r = random.Random(7)
def text(n): return "".join(r.choice("abcdefg é漢") for _ in range(n))
docs = [text(r.randrange(0, 60)) for _ in range(900)]
docs += docs[100:150] + ["same"] * 5  # duplicates, in all files
import gzip, os
os.makedirs("tree/sub")
for k, name in enumerate(("tree/a.jsonl", "tree/b.jsonl.gz", "tree/sub/c.jsonl")):
    raw = "".join(json.dumps({"id": i, "body": d}, ensure_ascii=i % 2 > 0) + "\n" for i, d in enumerate(docs) if i % 3 == k)
    (gzip.open if name.endswith("gz") else open)(name, "wb").write(raw.encode())
order = [d for k in range(3) for i, d in enumerate(docs) if i % 3 == k]
json.dump(order, open("order.json", "w"))
PY
zstd -q --rm tree/sub/c.jsonl
touch tree/readme.rst tree/sub/table.csv
prepare tree --text_key body --val_fraction 0 --out words >/dev/null 2>err || bad "inputs as words: $(cat err)"
grep -q '^note: 2 files in folders skipped, of other types or a README: tree/readme.rst, tree/sub/table.csv$' err || bad "skipped files are not listed: $(cat err)"
ok options --text_key body --val_fraction 0 --input tree/a.jsonl tree/b.jsonl.gz tree/sub/c.jsonl.zst
same words/train.bin options/train.bin
ok folder tree --text_key body --val_fraction 0
is "skipped files in the summary" "$(field folder.json skipped_files.1)" tree/sub/table.csv
expect 2 'not both ways' prepare tree --input tree/a.jsonl --out never

# ---- filters: the documents of an independent implementation, in the same order and split
ok kept --text_key body --min_chars 5 --max_chars 40 --dedup --val_fraction 0.1 tree
python3 - >want <<'PY'
import json, math
seen, kept = set(), []
for d in json.load(open("order.json")):
    if 5 <= len(d) <= 40 and d not in seen: kept.append(d)
    if 5 <= len(d) <= 40: seen.add(d)
val = [math.floor((k + 1) * 0.1) > math.floor(k * 0.1) for k in range(len(kept))]
for part in (False, True):
    for d, v in zip(kept, val):
        if v == part: print("val" if v else "train", d)
PY
documents kept >got; same want got
python3 - <<'PY' || bad "the counts of dropped documents"
import json
d, n = json.load(open("kept.json"))["dropped"], json.load(open("order.json"))
short, long = sum(len(x) < 5 for x in n), sum(len(x) > 40 for x in n)
assert d["too_short"] == short and d["too_long"] == long, (d, short, long)
assert d["duplicates"] == len(n) - short - long - len(open("want").read().splitlines()), d
m = json.load(open("kept/meta.json"))["dropped"]
assert m == {"min_chars": 5, "max_chars": 40, "dedup": True, **d}, m
PY
expect 3 'no document of --input is left: .* shorter than --min_chars' prepare tree --text_key body --min_chars 1000 --out never
[ ! -e never ] && [ ! -e never.partial ] || bad "files were left by a refused command"
expect 2 'less than --min_chars' prepare tree --min_chars 10 --max_chars 9 --out never

# plain files of several blocks: dropped when their end is read, also next to shards, and compared with JSON lines
python3 - <<'PY'
import json, random
r = random.Random(1)
big = [" ".join(r.choice(("red", "green", "blue", "né")) for _ in range(n)) for n in (500000, 420000, 9)]
for k, name in enumerate(("p0", "p1", "p2")): open(name + ".txt", "w").write(big[k])
open("p3.txt", "w").write(big[0])
open("p4.jsonl", "w").write(json.dumps({"text": big[1]}) + "\n" + json.dumps({"text": "new"}) + "\n")
PY
ok plain --dedup --val_fraction 0 --shard_tokens 300000 p0.txt p1.txt p2.txt p3.txt p4.jsonl
is "duplicates of plain files" "$(field plain.json dropped.duplicates)" 2
ok plain1 --val_fraction 0 p0.txt p1.txt p2.txt
ok plain2 --val_fraction 0 --input - --format txt < <(printf new)
cat plain1/train.bin plain2/train.bin >joined; cat plain/train_*.bin | cmp -s - joined || bad "shards of documents without duplicates"
ok minmax --val_fraction 0 --min_chars 100 --max_chars 2000000 p0.txt p1.txt p2.txt
is "long plain files" "$(field minmax.json dropped.too_long) $(field minmax.json dropped.too_short)" "1 1"

# ---- shards
ok one p0.txt p1.txt
ok shards --shard_tokens 1000000 p0.txt p1.txt
is "the split of shards" "$(field shards.json val.tokens)" "$(field one.json val.tokens)"
cat shards/train_*.bin | cmp -s - one/train.bin || bad "shards are not the pieces of train.bin"
same one/val.bin shards/val.bin
is "tokens of a shard" "$(($(wc -c <shards/train_001.bin) / 2))" 1000000
is "checksum of a shard" "$(field shards/meta.json train.shards.2.sha256)" "$(sha256sum <shards/train_002.bin | cut -d' ' -f1)"
ok shards --val_fraction 0 p2.txt # the same folder without shards
is "files after another run" "$(ls shards | tr '\n' ' ')" "meta.json tokenizer.json train.bin "

# ---- training on shards and blends
ok a --val_fraction 0.02 --input tree/a.jsonl --text_key body
ok b --val_fraction 0.02 --shard_tokens 2048 --input tree/b.jsonl.gz --text_key body
ok b1 --val_fraction 0.02 --input tree/b.jsonl.gz --text_key body
t=(--model tiny --num_layers 1 --seq_length 32 --micro_batch_size_per_gpu 2 --grad_accum_steps 2 --max_steps 6 --threads 1)
train() { local out=$1; shift; "$LOCKSTEP" train "${t[@]}" --checkpoint_path "$out" "$@" >out 2>err || bad "train $*: $(tail -3 err)"; }
model() { cat "$1"/epoch-*/model.safetensors "$1"/epoch-*/optimizer.safetensors; }
train r-b --data b
train r-b1 --data b1
cmp -s <(model r-b) <(model r-b1) || bad "shards train another model than one file"
train r-ab --data a:0.7,b:0.3
train r-ab2 --data a:7,b1:3 -n 2 --grad_accum_steps 1
cmp -s <(model r-ab) <(model r-ab2) || bad "a blend gives other bits on two workers or with one file for shards"
is "name of a blend" "$(field r-ab/training_metrics.json training_config.dataset_name)" a+b
mkdir mix; echo '{"blend": [{"data": "../a", "weight": 0.7}, {"data": "../b", "weight": 0.3}]}' >mix/blend.json
train r-file --data mix/blend.json
cmp -s <(model r-ab) <(model r-file) || bad "a blend file gives another model than the option"
train r-half --data a:0.7,b:0.3 --max_steps 3 --lr_schedule constant
expect 2 'a blend of training data' "$LOCKSTEP" train "${t[@]}" --checkpoint_path r-half --resume --data a:0.6,b:0.4 --lr_schedule constant
train r-all --data a,b
expect 2 'give a weight to every source' "$LOCKSTEP" train "${t[@]}" --data a:0.5,b
expect 2 'weight -1: must be a positive number' "$LOCKSTEP" train "${t[@]}" --data a:-1,b:2
expect 3 'data nowhere: does not exist; create it with .lockstep prepare TEXT --out nowhere' "$LOCKSTEP" train "${t[@]}" --data a:1,nowhere:2
"$LOCKSTEP" prepare --quiet --tokenizer train --vocab_size 300 --text_key body tree --out other >/dev/null
expect 2 'different tokenizers' "$LOCKSTEP" train "${t[@]}" --data a:1,other:2
mv b/train_001.bin b/hidden; expect 3 'each once' "$LOCKSTEP" train "${t[@]}" --data b; mv b/hidden b/train_001.bin
last=$(ls b/train_*.bin | tail -1); mv "$last" hidden
expect 3 'meta.json has .* shards' "$LOCKSTEP" train "${t[@]}" --data b; mv hidden "$last"

# ---- token files that do not match meta.json
refused() { # WORDS [ARGS...]: the folder `bad`
  expect 3 "$1" "$LOCKSTEP" train "${t[@]}" --data bad --checkpoint_path r-bad "${@:2}"
  [ ! -e r-bad/RUN_COMPLETE.txt ] || bad "trained on refused data"
  rm -rf bad r-bad; cp -r good bad
}
ok good --val_fraction 0.5 --input tree/a.jsonl --text_key body
cp -r good bad
truncate -s "$(($(wc -c <good/train.bin) / 4 * 2))" bad/train.bin; refused 'bad/train.bin has .* bytes, but meta.json has .* tokens'
mv bad/train.bin x; mv bad/val.bin bad/train.bin; mv x bad/val.bin; refused 'bad/train.bin'
python3 - <<'PY'
import array, random
a = array.array("H", open("bad/train.bin", "rb").read()); random.Random(1).shuffle(a); open("bad/train.bin", "wb").write(a.tobytes())
PY
refused 'bad/train.bin: its SHA-256 is .* but meta.json has'
sed -i 's/"uint16"/"uint32"/' bad/meta.json; refused 'the token files have the type uint32; training reads uint16'
cp other/tokenizer.json bad/; refused 'bad/tokenizer.json is not the tokenizer that made the token files'
echo '{' >bad/meta.json; refused 'bad/meta.json'
sed -i 's/lockstep-tokens-1/lockstep-tokens-9/' bad/meta.json; refused 'has the format lockstep-tokens-9'
printf '\1' | dd of=bad/val.bin bs=1 seek=300 conv=notrunc status=none; refused 'bad/val.bin' -n 2
printf '\1' | dd of=bad/val.bin bs=1 seek=300 conv=notrunc status=none
expect 3 'bad/val.bin' "$LOCKSTEP" eval --checkpoint r-b --data bad
rm bad/meta.json bad/val.bin; train r-none --data bad # without meta.json, files are used as they are
expect 3 'has no meta.json' "$LOCKSTEP" train "${t[@]}" --data bad --verify_data
# a file above 16 MiB: samples find a shuffle, --verify_data one changed id
python3 - <<'PY'
import os
os.makedirs("big", exist_ok=True)
open("big.txt", "wb").write((b"0123456789abcdef" * 64 + b"\n") * 12000)
PY
ok large --val_fraction 0 big.txt
printf '\1' | dd of=large/train.bin bs=1 seek=8400000 conv=notrunc status=none
train r-sampled --data large
expect 3 'SHA-256' "$LOCKSTEP" train "${t[@]}" --data large --verify_data
dd if=/dev/zero of=large/train.bin bs=1M seek=3 count=4 conv=notrunc status=none
expect 3 'sampled hash' "$LOCKSTEP" train "${t[@]}" --data large
done_tests
