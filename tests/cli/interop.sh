#!/usr/bin/env bash
# generate (stop texts, files of prompts, texts beyond the context) and the files of other programs: vocab.json + merges.txt, shards,
# 16 bits, llm.c, the Hugging Face cache. tests/oracle/export.sh compares with transformers and with the reader of GGUF files.
. "$(dirname "$0")/../support/lib.sh"
cd "$SCRATCH" || exit 1
export HF_HUB_CACHE=$SCRATCH/hub
for i in $(seq 400); do echo "line $i of $((i * 7919 % 1000)) words and a few more"; done >text.txt
expect 0 "" "$LOCKSTEP" prepare text.txt --out data --tokenizer train --vocab_size 300 --quiet
cat >small.json <<'JSON'
{"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 32}
JSON
train=(train --model small.json --vocab_size 300 --seq_length 32 --micro_batch_size_per_gpu 4 --threads 1 --max_steps 6)
expect 0 "" "$LOCKSTEP" "${train[@]}" --data data --checkpoint_path run
gen=(generate run --threads 1 --max_new_tokens 80)

# one prompt and a file of prompts give the same ids, also beyond the 32 positions of the model and after a prompt that is longer than that
long=$(head -c 300 text.txt | tr '\n' ' ')
printf 'line 1 of\n\n%s\nfew' "$long" >prompts.txt
for how in --greedy "--seed 5"; do
    "$LOCKSTEP" "${gen[@]}" $how --prompts prompts.txt --batch 3 --json >many.jsonl || bad "--prompts failed"
    while IFS= read -r line || [ -n "$line" ]; do
        "$LOCKSTEP" "${gen[@]}" $how --prompt "$line" --json 2>note.txt || bad "generate failed"
    done <prompts.txt >one.json
    python3 - <<'PY' || bad "$how: one prompt and a file of prompts differ"
import json
many = [json.loads(l) for l in open("many.jsonl")]
text, at, one = open("one.json").read(), 0, []
while at < len(text):
    x, at = json.JSONDecoder().raw_decode(text, at)
    one += x["samples"]
    at += 1
assert len(many) == len(one) == 4, (len(many), len(one))
for a, b in zip(many, one):
    for key in ("prompt", "text", "ids", "finish_reason", "prompt_tokens"):
        assert a[key] == b[key], (key, a[key], b[key])
assert {len(a["ids"]) for a in many if a["finish_reason"] == "length"} <= {80}
assert max(a["prompt_tokens"] for a in many) > 32
PY
done
"$LOCKSTEP" "${gen[@]}" --seed 5 --prompts prompts.txt --batch 2 --num_samples 3 --json >many.jsonl || bad "--num_samples failed"
"$LOCKSTEP" "${gen[@]}" --seed 7 --prompt few --json >one.json || bad "generate failed"
python3 - <<'PY' || bad "--num_samples with --prompts"
import json
many = [json.loads(l) for l in open("many.jsonl")]
assert [x["sample"] for x in many] == [0, 1, 2] * 4 and [x["prompt"] for x in many[9:]] == ["few"] * 3
assert len({x["text"] for x in many}) > 6
assert many[11]["ids"] == json.load(open("one.json"))["samples"][0]["ids"], "sample 2 has the seed of --seed 7"
PY
# the statistics count all ids of all prompts as such, not only those that the shortest one of the batch has, too
"$LOCKSTEP" "${gen[@]}" --greedy --prompts prompts.txt --json --stats >many.jsonl 2>stats.txt || bad "--stats failed"
n=$(python3 -c 'import json; print(sum(json.loads(l)["prompt_tokens"] for l in open("many.jsonl")))')
grep -q "^4 prompts in batches of 4, $n prompt tokens in " stats.txt || bad "--stats: $n prompt tokens: $(cat stats.txt)"
expect 0 "note: the prompt has [0-9]* tokens and the model 32 positions; it reads the newest" "$LOCKSTEP" "${gen[@]}" --prompt "$long"

# a byte 0 of a text does not end it, in any form of output
python3 - <<'PY'
open("zeros.txt", "wb").write(b"a\0b " * 400)
open("two.txt", "w").write("a\nb\n")
PY
expect 0 "" "$LOCKSTEP" prepare zeros.txt --out zeros --tokenizer bytes --quiet
expect 0 "" "$LOCKSTEP" train --data zeros --model small.json --seq_length 32 --micro_batch_size_per_gpu 4 --threads 1 --max_steps 30 --lr 3e-2 --checkpoint_path zero
python3 - "$LOCKSTEP" <<'PY' || bad "a text with a byte 0"
import json, subprocess, sys
def run(*more):
    return subprocess.run([sys.argv[1], "generate", "zero", "--threads", "1", "--greedy", "--no_stop", "--max_new_tokens", "12", *more],
                          check=True, capture_output=True).stdout
text = run("--prompt", "a")
assert text.count(b"\0") >= 2 and len(text) >= 12, text
lines = [json.loads(l) for l in run("--prompts", "two.txt", "--json").splitlines()]
sample = json.loads(run("--prompt", "a", "--json"))["samples"][0]
assert bytes(sample["ids"]) == sample["text"].encode() == lines[0]["text"].encode(), (sample, lines[0])
assert text.rstrip(b"\n") == b"a" + bytes(sample["ids"]).rstrip(b"\n"), (text, sample)
assert run("--prompts", "two.txt") == b"".join(b"%s--- %d ---\n%s%s\n" % (b"\n" if i else b"", i + 1, l["prompt"].encode(), l["text"].encode()) for i, l in enumerate(lines))
PY

# the same text up to a stop text, whose beginning is not printed; the statistics have a line of their own
"$LOCKSTEP" "${gen[@]}" "line 12 of" --greedy --no_stop --stats >whole.txt 2>&1 || bad "generate failed"
grep -q '^[0-9]* prompt tokens in .* tokens/s; stopped at --max_new_tokens$' whole.txt || bad "--stats: $(cat whole.txt)"
python3 - "$LOCKSTEP" "${gen[@]}" <<'PY' || bad "--stop"
import json, subprocess, sys
def run(*more):
    p = subprocess.run([*sys.argv[1:], "line 12 of", "--greedy", "--no_stop", *more], capture_output=True, text=True)
    assert p.returncode == 0, p.stderr
    return p.stdout
whole = run()
body = whole[len("line 12 of"):-1]
stops = [body[20:23], body[31:33]]
end = min(body.index(s) for s in stops)
assert run("--stop", stops[0], "--stop", stops[1], "--stop", "not in it") == whole[:len("line 12 of") + end] + "\n"
x = json.loads(run("--stop", stops[0], "--stop=" + stops[1], "--json"))["samples"][0]
assert x["text"] == body[:end] and x["finish_reason"] == "stop" and x["stop"] == "stop text", x
open("p.txt", "w").write("line 12 of\n")
many = subprocess.run([*sys.argv[1:], "--prompts", "p.txt", "--greedy", "--no_stop", "--json", "--stop", stops[0], "--stop", stops[1]],
                      capture_output=True, text=True)
y = json.loads(many.stdout)
assert y["text"] == x["text"] and y["ids"] == x["ids"] and y["finish_reason"] == "stop", (x, y)
PY
# bytes that are not UTF-8, as a model of bytes makes them: U+FFFD, streamed as in the whole text, for one prompt and for several
"$LOCKSTEP" prepare text.txt --out bytes --tokenizer bytes --quiet >/dev/null
"$LOCKSTEP" train --model small.json --vocab_size 257 --data bytes --seq_length 32 --micro_batch_size_per_gpu 4 --threads 1 --max_steps 1 --checkpoint_path byte >/dev/null 2>&1
python3 - "$LOCKSTEP" generate byte --threads 1 --max_new_tokens 300 --temperature 9 --top_k 0 --seed 3 --no_stop <<'PY' || bad "text that is not UTF-8"
import json, subprocess, sys
def run(*more): return subprocess.run([*sys.argv[1:], *more], capture_output=True, check=True).stdout.decode()  # fails on other bytes
x = json.loads(run("line", "--json"))["samples"][0]
want = bytes(i for i in x["ids"] if i < 256).decode(errors="replace")
assert "\ufffd" in want and x["text"].replace("<|endoftext|>", "") == want, x
assert run("line") == "line" + x["text"] + "\n"
open("l.txt", "w").write("line\n")
assert json.loads(run("--prompts", "l.txt", "--json"))["text"] == x["text"]
assert run("--prompts", "l.txt") == "--- 1 ---\nline" + x["text"] + "\n"
PY
expect 2 "the text is empty" "$LOCKSTEP" "${gen[@]}" --stop ""
expect 2 "cannot be combined" "$LOCKSTEP" "${gen[@]}" x --prompts prompts.txt
expect 2 "generate takes a checkpoint and a prompt" "$LOCKSTEP" "${gen[@]}" two words
expect 2 "no meaning without --prompts" "$LOCKSTEP" "${gen[@]}" --batch 2
printf 'ab\nThe r\0un on\n' >nul.txt # not cut at the NUL byte
for from in --prompts --prompt_file; do expect 3 "$from nul.txt: line 2: byte 6 is NUL, but prompts are text in UTF-8; remove it" "$LOCKSTEP" "${gen[@]}" $from nul.txt; done
: >empty.txt
expect 3 "the file is empty" "$LOCKSTEP" "${gen[@]}" --prompts empty.txt

# vocab.json + merges.txt instead of tokenizer.json: the same text, and import and train keep them
expect 0 "" "$LOCKSTEP" export --checkpoint run --out hf
cp -r hf old
python3 -c '
import json
m = json.load(open("hf/tokenizer.json"))["model"]
json.dump(m["vocab"], open("old/vocab.json", "w"))
open("old/merges.txt", "w").write("#version: 0.2\n" + "".join((x if isinstance(x, str) else " ".join(x)) + "\n" for x in m["merges"]))'
rm old/tokenizer.json
text_of() { "$LOCKSTEP" generate "$1" "line 12 of" --greedy --max_new_tokens 30 --threads 1; }
text_of hf >want.txt
text_of old | cmp - want.txt || bad "vocab.json + merges.txt give another text"
expect 0 "" "$LOCKSTEP" import --from old --out imported
text_of imported | cmp - want.txt || bad "import lost the tokenizer"
[ -e imported/merges.txt ] && [ -e imported/vocab.json ] || bad "$(ls imported)"
expect 0 "" "$LOCKSTEP" prepare text.txt --out data-old --tokenizer old --quiet
cmp data/train.bin data-old/train.bin || bad "prepare --tokenizer with vocab.json gives other tokens"
mkdir bare && cp data/train.bin bare/t.bin
expect 0 "" "$LOCKSTEP" train --train_data_path bare/t.bin --init_from old --seq_length 32 --max_steps 1 --threads 1 --checkpoint_path tuned
text_of tuned >/dev/null || bad "a run from such a folder cannot generate"

"$LOCKSTEP" prepare text.txt --out fewer --tokenizer train --vocab_size 270 --quiet >/dev/null
expect 0 "^30 ids of the model are never used: it has 300, the tokenizer of the data 270" "$LOCKSTEP" train --data fewer --init_from run --seq_length 32 --print_config
expect 3 "training data train_small.bin does not exist; make it with .lockstep prepare TEXT --out DIR. and .cp DIR/train.bin train_small.bin" \
    "$LOCKSTEP" train --train_data_path train_small.bin

# the Hugging Face cache
expect 3 "--init_from gpt2: no such folder, and no model of this name in the Hugging Face cache $HF_HUB_CACHE; download config.json" \
    "$LOCKSTEP" "${train[@]}" --data data --init_from gpt2 --checkpoint_path x
mkdir -p hub/models--gpt2/snapshots hub/models--gpt2/refs && cp -r old hub/models--gpt2/snapshots/abc && printf abc >hub/models--gpt2/refs/main
text_of openai-community/gpt2 | cmp - want.txt || bad "the model of the cache"
expect 0 "weights from hub/models--gpt2/snapshots/abc\|weights from .*/snapshots/abc" "$LOCKSTEP" train --data data --init_from gpt2 --seq_length 32 --max_steps 1 --threads 1 --checkpoint_path cached

# shards and 16 bits
expect 0 "" "$LOCKSTEP" export --checkpoint run --out shards --shard_size 9KB
[ -e shards/model-00001-of-00005.safetensors ] || bad "$(ls shards)"
expect 0 "" "$LOCKSTEP" import --from shards --out whole
cmp whole/model.safetensors run/epoch-1/model.safetensors || bad "shards have other weights"
expect 0 "" "$LOCKSTEP" export --checkpoint run --out shards --max-shard-size 20KiB --dtype bf16 --force
text_of shards >/dev/null || bad "a bf16 folder cannot be read"
expect 2 "must be a size such as" "$LOCKSTEP" export --checkpoint run --out y --shard_size 9XB
expect 2 "has no meaning with --to gguf" "$LOCKSTEP" export --checkpoint run --out y --to gguf --shard_size 9KB

# llm.c: model files as its description has them, and token files
expect 0 "" "$LOCKSTEP" export --checkpoint run --out m.bin --to llmc
expect 0 "" "$LOCKSTEP" export --checkpoint run --out m16.bin --to llmc --dtype bf16
expect 2 "llm.c reads fp32 and bf16" "$LOCKSTEP" export --checkpoint run --out y --to llmc --dtype fp16
expect 2 "m.bin exists; choose another file" "$LOCKSTEP" export --checkpoint run --out m.bin --to llmc
expect 0 "" "$LOCKSTEP" import m.bin from-llmc
cmp from-llmc/model.safetensors run/epoch-1/model.safetensors || bad "import of an llm.c file changed the weights"
mkdir lone other && cp m.bin lone && echo '{}' >other/tokenizer.json
expect 3 "lone/m.bin has neither tokenizer.json" "$LOCKSTEP" generate lone/m.bin x
expect 0 "exported run/epoch-1 to llmc/m.bin" "$LOCKSTEP" export run llmc/m.bin --to llmc
cmp llmc/tokenizer.json run/epoch-1/tokenizer.json || bad "export --to llmc writes another tokenizer"
expect 2 "other/tokenizer.json exists and differs" "$LOCKSTEP" export run other/m.bin --to llmc
[ ! -e other/m.bin ] || bad "a refused export left its file"
expect 0 "^perplexity" "$LOCKSTEP" eval llmc/m.bin --data data --threads 1
expect 2 "llmc/m.bin is not of a run folder, whose data are known; add --data" "$LOCKSTEP" eval llmc/m.bin
expect 3 "nosuch: no such" "$LOCKSTEP" eval nosuch
# data of another tokenizer, also of one with as many ids; the same one in another form is accepted
mkdir form && cp data/val.bin form && cp old/vocab.json old/merges.txt form
expect 0 "" "$LOCKSTEP" prepare text.txt --out bytes --tokenizer bytes --quiet
rev text.txt >txet.txt && expect 0 "" "$LOCKSTEP" prepare txet.txt --out rev --tokenizer train --vocab_size 300 --quiet
expect 2 "bytes/val.bin is from another tokenizer (257 ids) than run/epoch-1 (300 ids); .*--tokenizer run/epoch-1/tokenizer.json" "$LOCKSTEP" eval run --data bytes
expect 2 "rev/val.bin is from another tokenizer" "$LOCKSTEP" eval run --data rev/val.bin
grep -q perplexity "$SCRATCH/out" && bad "a perplexity on data of another tokenizer"
expect 0 "^perplexity" "$LOCKSTEP" eval run --data form --threads 1
grep -q note "$SCRATCH/err" && bad "eval with the tokenizer in another form: $(cat "$SCRATCH/err")"
expect 0 "note: lone/m.bin has no tokenizer; .* below 300 is checked" "$LOCKSTEP" eval lone/m.bin --data data --threads 1
touch m.gguf; expect 3 "GGUF files are written, not read" "$LOCKSTEP" generate m.gguf x
expect 2 "unexpected argument 'c': export takes a checkpoint and an output" "$LOCKSTEP" export run b c
text_of llmc/m.bin | cmp - want.txt || bad "generate from an llm.c file"
expect 0 "" "$LOCKSTEP" prepare text.txt --out data-llmc --tokenizer data --llmc --quiet
expect 0 "" "$LOCKSTEP" "${train[@]}" --data data-llmc --checkpoint_path run-llmc
cmp run-llmc/epoch-1/model.safetensors run/epoch-1/model.safetensors || bad "token files of llm.c train another model"
python3 - <<'PY' || bad "files of llm.c"
import array, json, struct
def safetensors(path):
    b = open(path, "rb").read()
    n, = struct.unpack("<Q", b[:8])
    head = json.loads(b[8:8 + n])
    return {k: (v["shape"], b[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]) for k, v in head.items() if k != "__metadata__"}
def bf16(x):  # nearest, ties to even
    u, = struct.unpack("<I", struct.pack("<f", x))
    return (u + 0x7FFF + (u >> 16 & 1)) >> 16
want = safetensors("run/epoch-1/model.safetensors")
C, L, V, P, Vp = 16, 2, 300, 32, 384
for path, version in (("m.bin", 3), ("m16.bin", 5)):
    b = open(path, "rb").read()
    head = struct.unpack("<256i", b[:1024])
    assert head[:8] == (20240326, version, P, V, L, 2, C, Vp) and not any(head[8:]), head[:8]
    at = 1024
    def take(name, rows, columns):
        global at
        shape, data = want["transformer." + name]
        x = array.array("f", data)
        if len(shape) == 2 and name.startswith("h."):  # (in, out) here, (out, in) there
            assert shape == [columns, rows], (name, shape)
            x = [x[i * rows + o] for o in range(rows) for i in range(columns)]
        x = list(x) + [0.0] * (rows * columns - len(x))  # the padded vocabulary
        raw = struct.pack(f"<{len(x)}f", *x) if version == 3 else struct.pack(f"<{len(x)}H", *map(bf16, x))
        assert b[at:at + len(raw)] == raw, (path, name)
        at += len(raw)
    take("wte.weight", Vp, C)
    take("wpe.weight", P, C)
    for name, rows, columns in (("ln_1.weight", 1, C), ("ln_1.bias", 1, C), ("attn.c_attn.weight", 3 * C, C), ("attn.c_attn.bias", 1, 3 * C),
                                ("attn.c_proj.weight", C, C), ("attn.c_proj.bias", 1, C), ("ln_2.weight", 1, C), ("ln_2.bias", 1, C),
                                ("mlp.c_fc.weight", 4 * C, C), ("mlp.c_fc.bias", 1, 4 * C), ("mlp.c_proj.weight", C, 4 * C), ("mlp.c_proj.bias", 1, C)):
        for layer in range(L):
            take(f"h.{layer}.{name}", rows, columns)
    take("ln_f.weight", 1, C)
    take("ln_f.bias", 1, C)
    assert at == len(b), (at, len(b))
for part in ("train", "val"):
    plain, file = open(f"data/{part}.bin", "rb").read(), open(f"data-llmc/{part}.bin", "rb").read()
    assert struct.unpack("<256i", file[:1024]) == (20240520, 1, len(plain) // 2) + (0,) * 253 and file[1024:] == plain
file = bytearray(open("data-llmc/train.bin", "rb").read())
open("cut.bin", "wb").write(file[:-2])
file[4] = 2
open("version.bin", "wb").write(file)
PY
expect 3 "but the header has" "$LOCKSTEP" eval --checkpoint run --data cut.bin
expect 2 "version 2 of the token files of llm.c" "$LOCKSTEP" eval --checkpoint run --data version.bin
expect 3 "is a model file of llm.c, not a token file" "$LOCKSTEP" eval --checkpoint run --data m.bin
done_tests
