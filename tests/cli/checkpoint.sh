#!/usr/bin/env bash
# Checkpoints of a run with the program: export, import, resume, damaged files, a full disk.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
lockstep=${LOCKSTEP:-$here/../../build/lockstep}
[ -x "$lockstep" ] || { echo "skipped: $lockstep is not built"; exit 77; }
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
cd "$work"

fail() { echo "FAILED: $*"; exit 1; }
# refuse CODE WORDS COMMAND...: the command must exit with CODE and print WORDS on stderr
refuse() {
    local code=$1 words=$2 rc=0
    shift 2
    "$@" >out.txt 2>err.txt || rc=$?
    [ "$rc" = "$code" ] || { cat err.txt; fail "exit code $rc instead of $code: $*"; }
    grep -q -- "$words" err.txt || { cat err.txt; fail "no '$words' in the message of: $*"; }
    echo "ok  refused ($code): $words"
}
train() { "$lockstep" train --data data --model small.json --seq_length 16 --micro_batch_size_per_gpu 2 --threads 1 "$@"; }

for i in $(seq 300); do echo "line $i of a text that is $((i * 7919 % 1000)) words long and no longer"; done >text.txt
"$lockstep" prepare --input text.txt --out data --tokenizer bytes >/dev/null 2>&1
cat >small.json <<'JSON'
{"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 16, "vocab_size": 257}
JSON

for variant in hf r1; do
    train --variant $variant --checkpoint_path run-$variant --max_steps 8 --save_every 2 --keep_last 2 >/dev/null 2>&1
    [ ! -e run-$variant/step-2 ] || fail "step-2 should have been pruned"
    "$lockstep" export --checkpoint run-$variant --out out-$variant >/dev/null
    [ "$(ls out-$variant | tr '\n' ' ')" = "config.json generation_config.json model.safetensors tokenizer.json " ] || fail "$(ls out-$variant)"
    "$lockstep" import --from out-$variant --out back-$variant >/dev/null
    cmp out-$variant/model.safetensors back-$variant/model.safetensors || fail "import changed the weights"
    cmp out-$variant/config.json back-$variant/config.json || fail "import changed the config"
    echo "ok  $variant: exported and imported, byte for byte"
done
refuse 2 "exists; choose another folder" "$lockstep" export --checkpoint run-hf --out out-hf
"$lockstep" export --checkpoint run-hf --out out-hf --force >/dev/null
mkdir data-out && echo keep >data-out/notes.txt
refuse 2 "data-out also has notes.txt" "$lockstep" export --checkpoint run-hf --out data-out --force
refuse 2 "also has notes.txt" "$lockstep" import --from out-hf --out data-out --force
[ "$(cat data-out/notes.txt)" = keep ] || fail "--force deleted a file of the user"
refuse 2 "is not a folder" "$lockstep" export --checkpoint run-hf --out text.txt --force
refuse 2 "--out run-hf contains the source run-hf/epoch-1" "$lockstep" export --checkpoint run-hf --out run-hf --force
refuse 2 "contains the source" "$lockstep" import --from run-hf/epoch-1 --out ./run-hf/. --force
refuse 2 "--out run-hf/../out-hf is the source" "$lockstep" import --from out-hf --out run-hf/../out-hf --force
refuse 2 "is inside the source" "$lockstep" export --checkpoint run-hf/epoch-1 --out run-hf/epoch-1/a/b
ln -s run-hf/epoch-1 link
refuse 2 "is inside the source" "$lockstep" import --from run-hf/epoch-1 --out link/new
[ -e run-hf/epoch-1/model.safetensors ] && [ ! -e run-hf/epoch-1/a ] || fail "a refused command changed its source"
refuse 2 "run-hf/epoch-1 is a checkpoint, not a run folder; use --checkpoint_path run-hf --resume$" train --checkpoint_path run-hf/epoch-1 --max_steps 9 --resume
refuse 2 "epoch-1/ is a checkpoint, not a run folder; use --checkpoint_path \. --resume, or --init_from" sh -c "cd run-hf && '$lockstep' train --data ../data --model ../small.json --seq_length 16 --checkpoint_path epoch-1/"
refuse 2 "needs --checkpoint" "$lockstep" export --out x
cp -r out-hf too-deep && sed -i 's/"n_layer": *2/"n_layer": 600000/' too-deep/config.json
refuse 2 "describes .* parameters .*, but the weights beside it are" "$lockstep" generate --checkpoint too-deep --prompt a
refuse 2 "but the weights beside it are" "$lockstep" import --from too-deep --out x
rc=0; timeout -s TERM --preserve-status 2 "$lockstep" generate --checkpoint out-hf --prompt a --no_stop --max_new_tokens 100000000 >/dev/null 2>err.txt || rc=$?
[ $rc = 143 ] && grep -q "stopped by SIGTERM" err.txt || fail "generate after SIGTERM: exit code $rc, $(cat err.txt)"
refuse 3 "--checkpoint none: no such folder" "$lockstep" export --checkpoint none --out x
refuse 2 "GELU.*; use --variant hf" "$lockstep" import --from out-hf --out x --variant r1
[ ! -e x ] || fail "a refused command left x"

# damage in the newest checkpoint stops --resume and names the older one
train --checkpoint_path run --max_steps 6 --save_every 2 >/dev/null 2>&1
rm -r run/epoch-*
newest=$(ls -d run/step-* | sort -V | tail -1)
older=$(ls -d run/step-* | sort -V | tail -2 | head -1)
[ "$newest" != "$older" ] || fail "one checkpoint only: $newest"
printf 'X' | dd of="$newest/optimizer.safetensors" bs=1 seek=9000 conv=notrunc 2>/dev/null
refuse 3 "$newest/optimizer.safetensors is damaged" train --checkpoint_path run --max_steps 8 --resume
grep -q "the newest complete checkpoint is $older" err.txt || { cat err.txt; fail "the older checkpoint is not named"; }
rm -r "$newest"
train --checkpoint_path run --max_steps 8 --resume >out.txt 2>&1 || { cat out.txt; fail "could not resume from $older"; }
grep -q "resumed from $older" out.txt || { cat out.txt; fail "did not resume from $older"; }
echo "ok  resumed from $older once the damaged one was removed"

# a new run in a folder with checkpoints of an earlier run: those are moved, and --resume continues the later run
train --checkpoint_path twice --max_steps 6 --save_every 2 >/dev/null 2>&1
cp -r twice first
train --checkpoint_path twice --max_steps 4 --save_every 3 --seed 2 >out.txt 2>&1 || { cat out.txt; fail "a fresh run in an old folder"; }
grep -q "twice: moved the checkpoints of an earlier run (up to step 6) to twice/earlier-1; use --resume" out.txt || { cat out.txt; fail "the move is not reported"; }
for k in step-2 step-4 epoch-1; do
    diff -r first/$k twice/earlier-1/$k >/dev/null || fail "$k of the earlier run is not what it was"
done
rm -r twice/epoch-1 # as if it had been killed after step 3
train --checkpoint_path twice --max_steps 6 --seed 2 --resume >out.txt 2>&1 || { cat out.txt; fail "the later run does not continue"; }
grep -q "resumed from twice/step-3" out.txt || { cat out.txt; fail "not the checkpoint of the later run"; }
[ ! -e twice/earlier-2 ] || fail "a resumed run moved checkpoints"
train --checkpoint_path twice --max_steps 2 --init_from twice/earlier-1 >out.txt 2>&1 || { cat out.txt; fail "weights from earlier-1"; }
[ -d twice/earlier-2/step-3 ] || fail "no second folder: $(ls twice)"
train --checkpoint_path twice -n 2 --strategy ddp --max_steps 2 --init_from twice >out.txt 2>&1 || { cat out.txt; fail "weights from the folder itself"; }
echo "ok  checkpoints of an earlier run are kept in another folder"

# a full disk
cp -r run full
rm -r full/epoch-* full/RUN_COMPLETE.txt
steps_of() { find "$1" -mindepth 1 -maxdepth 1 -name '*step-*' | wc -l; }
before=$(steps_of full)
refuse 3 "cannot write full/.*safetensors" bash -c "trap '' XFSZ; ulimit -f 20; exec '$lockstep' train --data data --model small.json \
    --seq_length 16 --micro_batch_size_per_gpu 2 --threads 1 --checkpoint_path full --max_steps 20 --save_every 2 --resume"
[ -z "$(find full -maxdepth 1 -name '.tmp-*')" ] || fail "a temporary folder was left"
[ "$(steps_of full)" = "$before" ] || fail "checkpoints appeared or vanished"
