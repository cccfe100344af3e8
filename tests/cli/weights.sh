#!/usr/bin/env bash
# --weights of generate and eval: loss and text in bf16 and int8, the same text for any number of threads, alone and in a batch, with and
# without drafts; what --stats and --json report; what is refused.
. "$(dirname "$0")/../support/lib.sh"
cd "$SCRATCH" || exit 1
for i in $(seq 300); do echo "line $i of $((i * 7919 % 100)) words and $((i % 10)) more"; done >text.txt
expect 0 "" "$LOCKSTEP" prepare text.txt --out data --tokenizer train --vocab_size 300 --quiet
cat >small.json <<'JSON'
{"model_type": "gpt2", "n_layer": 2, "n_head": 4, "n_embd": 80, "n_positions": 64}
JSON
expect 0 "" "$LOCKSTEP" train --device cpu --model small.json --vocab_size 300 --seq_length 64 --micro_batch_size_per_gpu 4 --learning_rate 3e-3 \
  --max_steps 120 --epochs 100 --data data --checkpoint_path run

# ---- the loss of a trained model: bf16 and int8 are close to fp32, and not equal to it ----
for w in fp32 bf16 int8; do
    "$LOCKSTEP" eval --device cpu --checkpoint run --data data --max_steps 3 --weights $w --json >loss.$w || bad "eval --weights $w failed"
    "$LOCKSTEP" eval --device cpu --checkpoint run --data data --max_steps 3 --weights $w --threads 1 --json >loss1.$w || bad "eval --weights $w failed"
    "$LOCKSTEP" eval --device cpu --checkpoint run --data data --max_steps 3 --weights $w --compute cpu-ref --json >ref.$w || bad "eval --weights $w failed"
done
"$LOCKSTEP" eval --device cpu --checkpoint run --data data --max_steps 3 --json >loss.default || bad "eval failed"
python3 - <<'PY' || bad "losses"
import json, math
x = {w: json.load(open(f"loss.{w}")) for w in ("fp32", "bf16", "int8", "default")}
loss = {w: v["loss"] for w, v in x.items()}
print(loss)
assert loss["default"] == loss["fp32"] < 3, "the model has learned: a loss of chance is log 300 = 5.7"
assert 0 < abs(loss["bf16"] - loss["fp32"]) < 0.002, loss
assert 0 < abs(loss["int8"] - loss["fp32"]) < 0.02, loss
for w in ("fp32", "bf16", "int8"):
    assert x[w]["weights"] == w
    assert json.load(open(f"loss1.{w}"))["loss"] == loss[w], "one thread"
    assert abs(json.load(open(f"ref.{w}"))["loss"] - loss[w]) < 1e-4, "the reference backend"
assert x["default"]["weights"] == "fp32"
n = [x[w]["weight_bytes"] for w in ("fp32", "bf16", "int8")]
assert n[0] == 4 * (2 * 12 * 80 * 80 + 300 * 80), n
assert n[1] < 0.58 * n[0] and n[2] < 0.45 * n[0], n # N is rounded up to 16; K of 80 up to 96 (bf16) and 128 (int8)
PY
expect 0 '^weights int8$' "$LOCKSTEP" eval --device cpu --checkpoint run --data data --weights int8
"$LOCKSTEP" eval --device cpu --checkpoint run --data data | grep -q weights && bad "eval without --weights prints them"

# ---- the same ids for any number of threads, alone and in a batch, with and without drafts ----
printf 'line 1 of\nline 17 of 3\nwords and\nmore\nfew\nline 5\nof\nwords\nline 9 of\nand\nline 33\n' >prompts.txt # 11: more than LS_FEW_ROWS
gen=(generate run --device cpu --max_new_tokens 90 --seed 3)
ids() { python3 -c 'import json, sys; [print(x["ids"]) for x in json.load(open(sys.argv[1]))["samples"]]' "$1"; }
for w in bf16 int8; do
    : >alone
    while IFS= read -r line; do
        "$LOCKSTEP" "${gen[@]}" --weights $w --threads 1 --prompt "$line" --json >one.json || bad "generate failed"
        ids one.json >>alone
    done <prompts.txt
    for batch in 2 11; do
        "$LOCKSTEP" "${gen[@]}" --weights $w --threads 3 --prompts prompts.txt --batch $batch --json >many.jsonl || bad "--prompts failed"
        python3 -c 'import json; [print(json.loads(x)["ids"]) for x in open("many.jsonl")]' >./batch
        diff alone batch >diff.txt || bad "$w: alone and in a batch of $batch: $(cat diff.txt)"
    done
    "$LOCKSTEP" "${gen[@]}" --weights $w --threads 2 --prompt more --json >one.json || bad "generate failed"
    [ "$(ids one.json)" = "$(sed -n 4p alone)" ] || bad "$w: two threads"
done
"$LOCKSTEP" "${gen[@]}" --weights bf16 --speculate 5 --prompt more --json >one.json || bad "generate failed"
"$LOCKSTEP" "${gen[@]}" --weights bf16 --speculate 0 --prompt more --json >plain.json || bad "generate failed"
[ "$(ids one.json)" = "$(ids plain.json)" ] || bad "drafts change the ids of bf16"
python3 - <<'PY' || bad "--json of generate"
import json
x = json.load(open("one.json"))
assert x["weights"] == "bf16" and x["weight_bytes"] > 0, x
s = x["samples"][0]
assert s["drafted"] >= s["accepted"] > 0 and s["prompt_tokens_per_sec"] > 0 and s["new_tokens_per_sec"] >= s["tokens_per_sec"] > 0, s
PY

# ---- statistics ----
expect 0 '^[0-9]* prompt tokens* in [0-9.]* s ([0-9.]* tokens/s), 90 new in [0-9.]* s ([0-9.]* tokens/s): in all [0-9.]* tokens/s; stopped at' \
  "$LOCKSTEP" "${gen[@]}" --no_stop --weights int8 --prompt more --stats
expect 0 '^weights: int8, 0.[0-9] MB$' "$LOCKSTEP" "${gen[@]}" --weights int8 --prompt more --stats
expect 0 '^weights: bf16, 0.[0-9] MB; drafts: int8, 0.[0-9] MB$' "$LOCKSTEP" "${gen[@]}" --weights bf16 --speculate 2 --prompt more --stats
expect 0 '^11 prompts in batches of 8, [0-9]* prompt tokens in .* new tokens in .*: in all [0-9.]* tokens/s$' \
  "$LOCKSTEP" "${gen[@]}" --weights int8 --prompts prompts.txt --stats

# ---- the precision of products: fp32 for auto, so that a text does not depend on the batch; bf16 if it is asked for ----
for p in fp32 bf16 auto; do
    "$LOCKSTEP" "${gen[@]}" --precision $p --prompt more --stats --json >$p.json 2>$p.err || bad "generate --precision $p failed"
    "$LOCKSTEP" "${gen[@]}" --precision $p --prompts prompts.txt --stats --json >$p.jsonl 2>$p.many || bad "--prompts --precision $p failed"
done
[ "$(grep -h '"precision"' fp32.json bf16.json auto.json | tr -d ' \n')" = '"precision":"fp32","precision":"bf16","precision":"fp32",' ] || bad "precision: $(cat auto.json)"
cmp fp32.jsonl auto.jsonl || bad "--prompts --precision auto is not fp32"
cmp -s fp32.jsonl bf16.jsonl && bad "--prompts --precision bf16 is fp32"
for f in err many; do
    for p in bf16 fp32; do
        grep -q "^precision: $p$" $p.$f || bad "--stats has no precision: $(cat $p.$f)"
    done
    grep -q '^precision: fp32$' auto.$f || bad "--stats has no precision: $(cat auto.$f)"
done

# ---- help: what auto is, and where int8 runs ----
words() { "$LOCKSTEP" "$@" --help | tr -s ' \n' ' '; }
for command in eval "generate --task translate"; do # shellcheck disable=SC2086
    words $command | grep -q -e "number format; auto: bf16 on a GPU or a CPU with bf16 instructions, else fp32;" || bad "$command --help: auto"
done
for command in eval generate; do words $command | grep -q -e "or in int8 (with --device cuda; auto is the CPU then)" || bad "$command --help: int8"; done

# ---- refused ----
expect 2 "--weights" "$LOCKSTEP" "${gen[@]}" --weights int4
for command in generate "generate --task translate" eval; do
    read -ra words <<<"$command"
    expect 2 "unknown option --bf16; did you mean --precision bf16 or --weights bf16?" "$LOCKSTEP" "${words[@]}" --checkpoint run --bf16
    expect 2 "unknown option --fp8: only train and verify compute in fp8; use --precision bf16" "$LOCKSTEP" "${words[@]}" --checkpoint run --fp8
done
expect 2 "--speculate and --weights int8 cannot be combined" "$LOCKSTEP" "${gen[@]}" --weights int8 --speculate 2
expect 2 "--weights has no meaning with --task bleu" "$LOCKSTEP" eval --task bleu --hyp text.txt --ref text.txt --weights int8
for w in bf16 int8; do # with auto, products with them are in fp32
    for command in generate eval; do
        args=("${gen[@]}" --prompt more) && [ $command = eval ] && args=(eval --device cpu --checkpoint run --data data)
        # eval with bf16 copies is in bf16 on a CPU with AMX
        [ "$command$w" = evalbf16 ] || expect 0 '"precision": "fp32"' "$LOCKSTEP" "${args[@]}" --weights $w --precision auto --json
        [ $w = bf16 ] && why="--weights bf16: with --precision bf16 it needs a CPU with AMX, but the kernel of this run is bfmmla-emulated; leave --weights out, or --precision (then products are computed in fp32)"
        [ $w = int8 ] && why="--weights int8: the CPU multiplies these weights as 8-bit integers, so --precision bf16 cannot be used; leave --precision out, or use a GPU (--device cuda)"
        LS_GEMM=bfmmla-emulated expect 2 "^lockstep: .*$why$" "$LOCKSTEP" "${args[@]}" --weights $w --precision bf16
    done
    LS_GEMM=bfmmla-emulated expect 2 "$why" "$LOCKSTEP" generate --task translate --device cpu --checkpoint run --weights $w --precision bf16 --prompt x
    LS_GEMM=bfmmla-emulated expect 2 "$why" "$LOCKSTEP" eval --task translate --device cpu --checkpoint run --data text.txt --weights $w --precision bf16
done

# ---- --precision bf16 with AMX: the products of bf16 copies, with the bits of products of the matrices ----
export LS_GEMM=amx-bf16-emulated
"$LOCKSTEP" "${gen[@]}" --precision bf16 --prompt more --json --stats >copies.json 2>copies.txt || bad "generate with copies failed"
"$LOCKSTEP" "${gen[@]}" --precision bf16 --weights fp32 --speculate 0 --prompt more --json --stats >matrices.json 2>matrices.txt || bad "generate without copies failed"
grep -q '^weights: bf16,' copies.txt && grep -q '^weights: fp32,' matrices.txt || bad "--stats: $(cat copies.txt matrices.txt)"
[ "$(grep -o '"text": .*' copies.json)" = "$(grep -o '"text": .*' matrices.json)" ] || bad "copies change the text: $(cat copies.json matrices.json)"
for w in bf16 fp32; do
    "$LOCKSTEP" eval --device cpu --checkpoint run --data data --precision bf16 --weights $w --json >eval-$w.json || bad "eval with --weights $w failed"
done
[ "$(grep -o '"loss": [^,]*' eval-bf16.json)" = "$(grep -o '"loss": [^,]*' eval-fp32.json)" ] || bad "copies change the loss: $(cat eval-bf16.json eval-fp32.json)"
auto=("$LOCKSTEP" eval --device cpu --checkpoint run --data data --precision auto --weights bf16 --json)
if env -u LS_GEMM "$LOCKSTEP" doctor --json | grep -q "no bf16 instructions"; then # auto is fp32 there, for which this kernel is not
    expect 2 "LS_GEMM=amx-bf16-emulated: .*; that kernel is for --precision bf16" "${auto[@]}"
else
    expect 0 '"precision": "bf16"' "${auto[@]}"
fi
grep -q '"precision": "bf16"' eval-bf16.json || bad "precision: $(cat eval-bf16.json)"
unset LS_GEMM

# ---- a weight that is infinite: the checkpoint is named, on a line of its own ----
expect 0 "" "$LOCKSTEP" export --checkpoint run --out hurt
python3 - <<'PY' || bad "no weight to damage"
import json, struct
with open("hurt/model.safetensors", "r+b") as f:
    n = struct.unpack("<Q", f.read(8))[0]
    tensor = json.loads(f.read(n))["transformer.ln_f.weight"]
    f.seek(8 + n + tensor["data_offsets"][0])
    f.write(struct.pack("<f", float("inf")))
PY
"$LOCKSTEP" generate --device cpu --checkpoint hurt --prompt more --weights int8 >both 2>&1
[ $? = 1 ] && [ "$(head -n 1 both)" = more ] && [ "$(wc -l <both)" = 2 ] &&
    tail -n 1 both | grep -q '^lockstep: numerical failure: hurt: .* the weights are damaged; use another checkpoint$' || bad "damaged weights: $(cat both)"
expect 1 '^lockstep: numerical failure: hurt: the loss is .*: the weights are damaged; use another checkpoint$' "$LOCKSTEP" eval --device cpu --checkpoint hurt --data data
done_tests
