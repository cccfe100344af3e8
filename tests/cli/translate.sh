#!/usr/bin/env bash
# The translation task: scores of files, prepared pairs, training, translations, and what is refused.
. "$(dirname "$0")/../support/lib.sh"
cd "$SCRATCH" || exit 1

# ---- eval --task bleu ----
printf 'The cat sat on the mat.\nEin Haus steht dort\nкошка сидит на коврике\n' >hyp.txt
printf 'The cat is on the mat.\r\nEin altes Haus steht dort drüben\r\nкошка сидит на стуле' >ref.txt
expect 2 '--checkpoint has no meaning with --task bleu' "$LOCKSTEP" eval --task bleu --hyp hyp.txt --ref ref.txt --checkpoint x
expect 0 '^bleu 39.8062$' "$LOCKSTEP" eval --task bleu --hyp hyp.txt --ref ref.txt
expect 0 '^chrf 59.3632$' "$LOCKSTEP" eval --task bleu --hyp hyp.txt --ref ref.txt
# several references: values of sacrebleu 2.6.0
printf 'A cat sat here\nHaus, ein Haus steht\nкошка спит на коврике\n' >ref2.txt
expect 0 '^bleu 46.6303$' "$LOCKSTEP" eval --task bleu --hyp hyp.txt --ref ref.txt --ref ref2.txt
expect 0 '^chrf 67.2286$' "$LOCKSTEP" eval --task bleu --hyp hyp.txt --ref ref2.txt --ref ref.txt
grep -q '^bleu signature nrefs:2|' "$SCRATCH/out" || bad "the number of references: $(cat "$SCRATCH/out")"
head -n 2 ref2.txt >ref2.short
expect 3 'ref2.short ends after line 2, but hyp.txt goes on' "$LOCKSTEP" eval --task bleu --hyp hyp.txt --ref ref.txt --ref ref2.short
gzip -k ref.txt
expect 0 '"bleu_signature": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:' \
  "$LOCKSTEP" eval --task bleu --hyp - --ref ref.txt.gz --json <hyp.txt
printf '\xef\xbb\xbf' | cat - hyp.txt >mark.txt # a byte order mark is part of the first word, as for sacrebleu
expect 0 '^bleu 3[0-8]\.' "$LOCKSTEP" eval --task bleu --hyp mark.txt --ref ref.txt
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
p=(prepare --task translate --quiet --vocab_size 300 --val_fraction 0.1)
expect 0 'train .* 54 pairs' "$LOCKSTEP" "${p[@]}" --input train.tsv --src_lang de --tgt_lang en --out tsv
expect 0 '<eos_de> and <eos_en>' "$LOCKSTEP" "${p[@]}" --input train.de train.en --test_input train.tsv --limit_test 3 --out text
python3 - <<'PY'
import json
with open("train.jsonl", "w") as f:
    for line in open("train.tsv"):
        src, tgt = line.rstrip("\n").split("\t")
        f.write(json.dumps({"src": src, "tgt": tgt}) + "\n")
PY
expect 0 'val .* 6 pairs' "$LOCKSTEP" "${p[@]}" --input train.jsonl --src_lang de --tgt_lang en --out json
for f in train.bin train.mask val.bin val.mask val.jsonl tokenizer.json; do
  same tsv/$f text/$f
  same tsv/$f json/$f
done
expect 0 'train .* 54 pairs' "$LOCKSTEP" "${p[@]}" train.de train.en --out words
same text/train.bin words/train.bin
expect 2 'not both ways' "$LOCKSTEP" "${p[@]}" train.de train.en --input train.tsv --out words
[ "$(wc -l <text/test.jsonl)" = 3 ] || bad "test.jsonl has $(wc -l <text/test.jsonl) lines"
head -n 1 text/test.jsonl | grep -q '^{"de": "das wort1 ist gross", "en": "the word1 is large"}$' || bad "$(head -n 1 text/test.jsonl)"
# another corpus with the tokenizer of the first; text instead of pairs in the same folder removes the masks
expect 0 'vocab' "$LOCKSTEP" "${p[@]:0:3}" --input train.tsv --tokenizer tsv/tokenizer.json --src_lang de --tgt_lang en --out again
expect 2 'translates de to en' "$LOCKSTEP" "${p[@]:0:3}" --input train.tsv --tokenizer tsv/tokenizer.json --out again
expect 0 'train' "$LOCKSTEP" prepare --quiet --input "$LS_SOURCE/tests/data/bpe/text.txt" --tokenizer bytes --out again
[ "$(echo again/*)" = 'again/meta.json again/tokenizer.json again/train.bin again/val.bin' ] || bad "prepare leaves files of pairs: $(ls again)"
# and pairs instead of shards
expect 0 'train' "$LOCKSTEP" prepare --quiet --input "$LS_SOURCE/tests/data/bpe/text.txt" --tokenizer bytes --shard_tokens 1024 --out turn
[ -e turn/train_001.bin ] || bad "no shards: $(ls turn)"
printf '\n\n' | cat train.de - >gaps.de
printf '\n\n' | cat train.en - >gaps.en
expect 0 '^empty  *2 pairs  of train without text, dropped$' "$LOCKSTEP" "${p[@]}" --input gaps.de gaps.en --test_input gaps.de gaps.en --out turn
grep -q '^empty  *2 pairs  of test without text, kept' "$SCRATCH/out" || bad "$(cat "$SCRATCH/out")"
same tsv/train.bin turn/train.bin
[ "$(wc -l <turn/test.jsonl)" = 62 ] || bad "sentences of the test set: $(wc -l <turn/test.jsonl)"
[ ! -e turn/train_000.bin ] || bad "prepare leaves shards beside pairs: $(ls turn)"
expect 2 'needs its translation after it' "$LOCKSTEP" "${p[@]}" --input train.de --out x
expect 2 '--limit_test needs --test_input' "$LOCKSTEP" "${p[@]}" --input train.tsv --limit_test 3 --out x
expect 2 '259 (bytes and special tokens) to 65536' "$LOCKSTEP" prepare --task translate --input train.tsv --out x --vocab_size 258
echo 'no tab' >bad.tsv
expect 3 'bad.tsv: line 1 has no tab' "$LOCKSTEP" "${p[@]}" --input train.tsv --test_input bad.tsv --out x
[ ! -e x ] || bad "a refused corpus leaves a folder"

# the folder is replaced as a whole: killed at any point it is the old one or the new one, and other files stay
mkdir own; echo '{"text": "mine"}' >own/val.jsonl
expect 3 'val.jsonl exists, but .* did not write it' "$LOCKSTEP" "${p[@]}" --input train.tsv --out own
[ "$(cat own/val.jsonl)" = '{"text": "mine"}' ] && [ ! -e own.partial ] || bad "a file of the user was replaced"
echo mine >text/notes
"$LOCKSTEP" "${p[@]}" --input train.de train.en --val_fraction 0 --out new >/dev/null 2>&1; echo mine >new/notes
cp -r text place; cp -r text old
"$LOCKSTEP" "${p[@]}" --input train.de train.en --val_fraction 0 --out place >/dev/null 2>&1
sed -i 's/--out place/--out new/' place/meta.json
diff -r new place >diff.txt || bad "the folder after a second run: $(head -c 300 diff.txt)" # without val.*, test.jsonl
rm text/notes
if command -v strace >/dev/null && strace -o /dev/null true 2>/dev/null; then
  for at in fsync:2 rename,renameat:1 rename,renameat:4 link,linkat:1 renameat2:1 unlink,unlinkat:1 unlink,unlinkat:3; do
    rm -rf place place.partial; cp -r old place
    strace -f -qq -o /dev/null -e "inject=${at%:*}:signal=KILL:when=${at#*:}" "$LOCKSTEP" "${p[@]}" --input train.de train.en --val_fraction 0 \
      --out place >/dev/null 2>&1 &
    wait $! 2>/dev/null
    sed -i 's/--out place/--out new/' place/meta.json
    diff -r old place >/dev/null || diff -r new place >/dev/null || bad "killed at $at: $(ls place)"
    expect 0 'val    none' "$LOCKSTEP" "${p[@]}" --input train.de train.en --val_fraction 0 --out place
    [ ! -e place.partial ] || bad "work of a killed run is left after $at"
  done
fi

# ---- train --task translate ----
size=(--model tiny --num_layers 2 --num_heads 4 --embedding_size 32 --max_position_embeddings 48 --dropout 0 --threads 1)
expect 0 "Epoch 1 on Rank 1: {'bleu': " "$LOCKSTEP" train --task translate --dataset text --world_size 2 --batch_size 8 --n_epochs 2 \
  --learning_rate 5e-3 --model_max_length 40 "${size[@]}" --checkpoint_path dp
grep -q 'without epoch 0' "$SCRATCH/out" || bad "no averages: $(tail -n 3 "$SCRATCH/out")"
python3 - dp/workdir <<'PY' || bad "the files of workdir"
import json, os, sys
d = sys.argv[1]
files = {"config.json", "tokenizer.json"} | {f"rank{r}_{k}_epoch{e}.json" for r in (0, 1) for e in (0, 1) for k in ("results", "gen")}
assert set(os.listdir(d)) == files, os.listdir(d)
for e in (0, 1):
    text = open(f"{d}/rank1_results_epoch{e}.json").read()
    results = json.loads(text)
    assert "\n" not in text and list(results) == ["validation_loss", "bleu", "training_time", "tokens_per_sec", "chrf"], text
    text = open(f"{d}/rank0_gen_epoch{e}.json").read()
    gen = json.loads(text)
    assert text == json.dumps(gen, indent=4) and len(gen) == 3, text
    assert [list(x) for x in gen] == [["example", "gen"]] * 3 and list(gen[0]["example"]) == ["de", "en"], gen
metrics = json.load(open("dp/training_metrics.json"))
assert metrics["epochs"][1]["val_loss_avg_global"] == results["validation_loss"]
assert abs(metrics["epochs"][1]["tokens_per_sec_global"] - 2 * results["tokens_per_sec"]) < 1e-6 * results["tokens_per_sec"]
assert metrics["training_config"]["dataset_subset_sizes"]["train"] == 54
assert json.load(open("dp/epoch-2/config.json"))["eos_token_id"] == 1
PY
# a complete run that is resumed changes no file; results that are missing are computed again
again=("$LOCKSTEP" train --task translate --dataset text --world_size 2 --batch_size 8 --n_epochs 2 --learning_rate 5e-3 --model_max_length 40
  "${size[@]}" --checkpoint_path dp --resume)
files() { find dp -type f -printf '%p %i %T@\n' | sort; }
files >before.txt
expect 0 'nothing is left to do' "${again[@]}"
grep -q '^translations and results exist: dp/workdir$' "$SCRATCH/out" || bad "$(cat "$SCRATCH/out")"
files >after.txt; same before.txt after.txt
cp dp/workdir/rank1_gen_epoch1.json gen1.json; rm dp/workdir/rank1_gen_epoch1.json
expect 0 "Epoch 1 on Rank 1: {'bleu': " "${again[@]}"
same gen1.json dp/workdir/rank1_gen_epoch1.json
files >after.txt
diff <(grep -v '_epoch1.json' before.txt) <(grep -v '_epoch1.json' after.txt) >diff.txt || bad "a resumed run changed $(cat diff.txt)"
# more epochs: only the new ones are translated
sed -i 's/"chrf": .*}/"chrf": 1}/' dp/workdir/rank1_results_epoch0.json; cp dp/workdir/rank1_results_epoch0.json kept.json
expect 0 'Epoch 2 on Rank 1' "${again[@]}" --n_epochs 3
! grep -q 'Epoch 0 on' "$SCRATCH/out" || bad "epoch 0 was translated again"
same kept.json dp/workdir/rank1_results_epoch0.json
# a new run with fewer workers and epochs, and one of another kind, into the same folder: no file of the earlier ones stays
expect 0 "results of another run: moved to dp/workdir/earlier-1" "$LOCKSTEP" train --task translate --data text --world_size 1 --batch_size 8 --n_epochs 1 \
  --model_max_length 40 "${size[@]}" --checkpoint_path one --workdir dp/workdir
[ "$(cd dp/workdir && echo *)" = 'config.json earlier-1 rank0_gen_epoch0.json rank0_results_epoch0.json tokenizer.json' ] || bad "two runs in one folder: $(ls dp/workdir)"
[ "$(ls dp/workdir/earlier-1 | wc -l)" = 12 ] || bad "files that were moved: $(ls dp/workdir/earlier-1)"
# a blend of pairs: the test pairs of the folders that have some
expect 0 'Epoch 0: Validation Loss' "$LOCKSTEP" train --task translate --data text:1,turn:2 --model_parallel_mode pipeline_parallel --batch_size 8 --n_epochs 1 \
  --max_steps 4 --model_max_length 40 "${size[@]}" --checkpoint_path blend --workdir dp/workdir
[ "$(cd dp/workdir && echo *)" = 'config.json earlier-1 earlier-2 eval_results_epoch0.json gen_epoch0.json tokenizer.json' ] || bad "$(ls dp/workdir)"
[ "$(grep -c '"gen"' dp/workdir/gen_epoch0.json)" = 65 ] || bad "the test pairs of a blend: $(grep -c '"gen"' dp/workdir/gen_epoch0.json)"
expect 2 'again has no train.mask' "$LOCKSTEP" train --task translate --data text:1,again:1 "${size[@]}"
mv dp/workdir/earlier-1/rank* dp/workdir # for the checks below
# pipelines without validation have no number in common with training_metrics.json
"$LOCKSTEP" "${p[@]}" --input train.de train.en --val_fraction 0 --test_input train.tsv --limit_test 3 --out alone >/dev/null
for lr in 1e-3 5e-3; do
  expect 0 'translations and results' "$LOCKSTEP" train --task translate --data alone --model_parallel_mode pipeline_parallel --batch_size 8 --n_epochs 1 \
    --max_steps 2 --learning_rate $lr --model_max_length 40 "${size[@]}" --checkpoint_path noval-$lr --workdir noval
done
[ -e noval/earlier-1/gen_epoch0.json ] || bad "the results of another pipeline were kept: $(ls noval)"
noval_files() { find noval -type f -printf '%p %i %T@\n' | sort; }
noval_files >before.txt
expect 0 'translations and results exist' "$LOCKSTEP" train --task translate --data alone --model_parallel_mode pipeline_parallel --batch_size 8 --n_epochs 1 \
  --max_steps 2 --learning_rate 5e-3 --model_max_length 40 "${size[@]}" --checkpoint_path noval-5e-3 --workdir noval --resume
noval_files >after.txt; same before.txt after.txt
# without pairs to translate: trained, and BLEU is not computed
expect 0 '^val    none; --val_input FILE gives them, or --test_input; without both, train computes no BLEU$' \
  "$LOCKSTEP" "${p[@]}" --input train.de train.en --val_fraction 0 --out nothing
head -n 4 train.tsv >four.tsv
expect 0 '^val    none: too few pairs for --val_fraction' "$LOCKSTEP" "${p[@]}" --input four.tsv --out four
plain=("$LOCKSTEP" train --task translate --data nothing --max_steps 1 --seq_length 40 "${size[@]}")
expect 0 '^BLEU is not computed: nothing has no pairs to translate (.*--test_input or --val_input)$' "${plain[@]}" --checkpoint_path nobleu
[ -e nobleu/epoch-1 ] && [ ! -e nobleu/workdir ] || bad "a run without pairs to translate: $(ls nobleu)"
expect 2 'leave --workdir out' "${plain[@]}" --checkpoint_path never --workdir w
expect 3 'nothing has neither test.jsonl nor val.jsonl; .* with --test_input or --val_input' "$LOCKSTEP" eval --task translate --checkpoint dp --data nothing
# sources that leave no room for a target: refused if it is so for all pairs, else counted; no loss without a token
python3 - <<'PY'
import json
with open("long.tsv", "w") as long, open("some.tsv", "w") as some, open("breaks.jsonl", "w") as breaks:
    for i in range(20):
        long.write(f"wort{i} " * 12 + f"\tword {i}\n")
        some.write(f"wort{i} " * (12 if i < 5 else 1) + f"\tword {i}\n")
        breaks.write(json.dumps({"translation": {"de": f"w{i % 3}", "en": "a\nb"}}) + "\n")
PY
for f in long.tsv some.tsv breaks.jsonl; do
  "$LOCKSTEP" "${p[@]}" --input $f --src_lang de --tgt_lang en --val_fraction 0 --test_input text/test.jsonl --out ${f%.*} >/dev/null || bad "prepare $f"
done
r3=("$LOCKSTEP" train --task translate --world_size 1 --n_epochs 1 "${size[@]}")
expect 3 'long/train.bin: no pair has a target within 13 tokens' "${r3[@]}" --data long --batch_size 4 --model_max_length 12 --checkpoint_path never
[ ! -e never ] || bad "a refused run has a folder"
expect 0 'some/train.bin: 5 of 20 pairs have no target within 25 tokens' "${r3[@]}" --data some --batch_size 4 --model_max_length 24 --checkpoint_path few
expect 3 'none of the 20 sequences has a target within 3 tokens' "$LOCKSTEP" eval --checkpoint few --data some/train.bin --seq_length 2 --threads 1
! grep -q . "$SCRATCH/out" || bad "eval without a token prints $(cat "$SCRATCH/out")"
# the batch that was typed, not the translation study's accumulation; a resumed run keeps it
expect 0 'translations and results' "${r3[@]}" --data some --model_max_length 40 --micro_batch_size_per_gpu 1 --global_batch_size 6 --checkpoint_path six
grep -q '"grad_accum_steps": 6,' six/training_metrics.json || bad "the batch: $(grep batch six/training_metrics.json)"
expect 0 'nothing is left to do' "$LOCKSTEP" train --resume six
# a line break in a translation is a blank
expect 0 'translations and results' "${r3[@]}" --data breaks --batch_size 4 --n_epochs 20 --max_steps 60 --learning_rate 1e-2 --model_max_length 24 \
  --checkpoint_path breaks.run
[ "$(printf 'w0\nw1\n' | "$LOCKSTEP" generate --task translate --checkpoint breaks.run --threads 1 2>/dev/null)" = "a b
a b" ] || bad "a translation with a line break"
[ "$("$LOCKSTEP" generate --task translate breaks.run w0 --threads 1 2>/dev/null)" = "a b" ] || bad "generate --task translate RUN TEXT"
expect 0 '"gen": "a\\nb"' "$LOCKSTEP" generate --task translate --checkpoint breaks.run --prompt w0 --threads 1 --json
# a changed mask is refused
cp -r text changed; printf '\1' | dd of=changed/train.mask bs=1 seek=1 conv=notrunc status=none
expect 3 'changed/train.mask: its SHA-256' "$LOCKSTEP" train --task translate --data changed "${size[@]}" --checkpoint_path never
# validation sequences that fill no batch
expect 0 'validation uses 4 of 6 sequences: whole batches of 4' "$LOCKSTEP" train --task translate --data text --world_size 1 --batch_size 4 --max_steps 1 \
  --model_max_length 40 "${size[@]}" --checkpoint_path some
# the layout of a DeepSpeed JSON: two stages, or one model on two workers
for layout in '"pipeline": {"stages": 2}' '"tensor_parallel": {"autotp_size": 2}'; do
  echo "{\"train_micro_batch_size_per_gpu\": 4, \"gradient_accumulation_steps\": 2, $layout}" >ds.json
  rm -rf ds
  expect 0 'Tokens_per_sec' "$LOCKSTEP" train --task translate --data text -n 2 --deepspeed_config ds.json --epochs 1 --seq_length 40 "${size[@]}" \
    --checkpoint_path ds
  case $layout in
    *stages*) want="config.json eval_results_epoch0.json gen_epoch0.json tokenizer.json" ;;
    *) want="config.json rank0_gen_epoch0.json rank0_results_epoch0.json tokenizer.json" ;;
  esac
  [ "$(ls ds/workdir | tr '\n' ' ')" = "$want " ] || bad "$layout: $(ls ds/workdir)"
done
# layouts on pairs: all of them with LS_TEST_ALL=1
workers=1
[ -z "${LS_TEST_ALL:-}" ] || workers=1,2,4
expect 0 ' layouts identical' "$LOCKSTEP" verify -n $workers --task translate --steps 1 --jobs 2
# what train reports is what eval computes from the checkpoint
expect 0 '"bleu": ' "$LOCKSTEP" eval --task translate --checkpoint dp --data text --max_length 40 --threads 1 --json --out gen.json
python3 -c "
import json
a, b = json.load(open('$SCRATCH/out')), json.load(open('dp/workdir/rank0_results_epoch1.json'))
assert a['bleu'] == b['bleu'] and a['sentences'] == 3, (a, b)" || bad "eval and train compute another BLEU"
same gen.json dp/workdir/rank0_gen_epoch1.json
expect 0 '"sentences": 3' "$LOCKSTEP" eval --task translate dp --max_length 40 --threads 1 --json # the run knows its data
# what it computed with
grep -q '"weights": "fp32"' "$SCRATCH/out" && grep -q '"precision": "fp32"' "$SCRATCH/out" || bad "eval --json: $(cat "$SCRATCH/out")"
expect 0 '"weights": "int8"' "$LOCKSTEP" eval --task translate --checkpoint dp --data text --limit 1 --weights int8 --json
expect 0 '^weights int8$' "$LOCKSTEP" eval --task translate --checkpoint dp --data text --limit 1 --weights int8
LS_GEMM=bfmmla-emulated expect 0 '^precision bf16$' "$LOCKSTEP" eval --task translate --checkpoint dp --data text --limit 1 --precision bf16
# the loss of eval is that of the validation: over the targets of pairs
"$LOCKSTEP" eval --checkpoint dp --data text --seq_length 40 --threads 1 --json >loss.json 2>/dev/null
python3 -c "
import json
a, b = json.load(open('loss.json')), json.load(open('dp/workdir/rank0_results_epoch1.json'))
assert a['sequences'] == 6 and 0 < a['tokens'] < 6 * 40, a" || bad "eval: $(cat loss.json)"
expect 0 'Epoch 0: Validation Loss' "$LOCKSTEP" train --task translate --data text --model_parallel_mode pipeline_parallel --batch_size 8 --n_epochs 1 \
  --model_max_length 40 "${size[@]}" --checkpoint_path pipe --workdir w/d
[ -s w/d/eval_results_epoch0.json ] && [ -s w/d/gen_epoch0.json ] || bad "the files of a pipeline: $(ls w/d)"
expect 2 'has no train.mask' "$LOCKSTEP" train --task translate --data again "${size[@]}"
expect 2 'needs --data DIR' "$LOCKSTEP" train --task translate "${size[@]}"
expect 2 '--workdir needs --task translate' "$LOCKSTEP" train --data text --workdir w "${size[@]}"
"$LOCKSTEP" train --data again "${size[@]}" --seq_length 32 --max_steps 1 --checkpoint_path lm >/dev/null 2>&1
expect 2 'not one of a translation task' "$LOCKSTEP" eval --task translate --checkpoint lm --data text

# ---- bench r3 ----
r3=(bench r3 --n_epochs 3 --batch_size 8 --pipe_batch_size 16 --out r3)
expect 0 'DRY RUN: .* --schedule=gpipe' "$LOCKSTEP" "${r3[@]}" --dry_run -- --data text "${size[@]}" --seq_length 40
expect 0 '^2gpu_pipeline_parallel  *2  *16  *2 ' "$LOCKSTEP" "${r3[@]}" -- --data text "${size[@]}" --seq_length 40
for f in ddp_vs_rn ddp_vs_rn_throughput pp_vs_mp pp_vs_mp_throughput; do [ -s r3/submit_figures/$f.svg ] || bad "no chart $f"; done
python3 - <<'PY' || bad "r3_report.json"
import json, statistics
for s in json.load(open("r3/r3_report.json"))["settings"]:
    epochs = json.load(open(f"r3/{s['setting']}/run_1/training_metrics.json"))["epochs"][1:]
    times = [e["epoch_wall_time_sec"] for e in epochs]
    assert abs(s["training_time_mean_sec"] - statistics.mean(times)) < 1e-9 and s["measured_epochs"] == 2, s
    assert abs(s["training_time_std_sec"] - statistics.pstdev(times)) < 1e-6, s
PY
# one measured epoch has no deviation
"$LOCKSTEP" bench r3 --n_epochs 2 --batch_size 8 --pipe_batch_size 16 --out r3_short -- --data text "${size[@]}" --seq_length 40 >out 2>err || bad "bench r3 with 2 epochs: $(cat err)"
! grep -q '+-' out && [ "$(grep -c '_std_sec": null' r3_short/r3_report.json)" = 4 ] || bad "a deviation of one epoch: $(cat out r3_short/r3_report.json)"
# the page: the translation study's two comparisons, its training time, and BLEU
expect 0 'Data parallel: .* Pipelines: ' "$LOCKSTEP" report r3 --no_png --out page
grep -q '| 2gpu_pipeline_parallel/run_1 | pp2 gpipe | 2 | 3 | [0-9.]* ± ' page/report.md && [ "$(grep -c '^| [12]gpu_.* | [0-9.]* |$' page/report.md)" -ge 4 ] || bad "no BLEU: $(grep -A9 '## Translation' page/report.md)"
grep -q 'standard deviation over epochs' r3/submit_figures/pp_vs_mp.svg || bad "the chart does not state what its interval is"
# The translation study's own flags
expect 0 '--seq_length=40 --data=text ' "$LOCKSTEP" "${r3[@]}" --world_size 2 --dry_run -- --preset r3 --dataset text --model_max_length 40 "${size[@]}"
expect 0 '--seq_length=128 --data=text ' "$LOCKSTEP" "${r3[@]}" --dry_run -- --dataset text --model tiny
[ "$(grep -c 'DRY RUN' "$SCRATCH/out")" = 4 ] || bad "four runs: $(cat "$SCRATCH/out")"
expect 2 'contradict each other' "$LOCKSTEP" "${r3[@]}" -n 1 --world_size 2 --dry_run -- --dataset text
expect 2 '--batch_size is not allowed.*before --' "$LOCKSTEP" "${r3[@]}" --dry_run -- --dataset text --batch_size 4
expect 2 '--max_train_steps is not allowed.*unequal work' "$LOCKSTEP" "${r3[@]}" -- --data text --max_train_steps 3
expect 2 'does not divide by --n_chunk 3' "$LOCKSTEP" "${r3[@]}" --n_chunk 3 -- --data text "${size[@]}" --seq_length 40

# ---- generate --task translate ----
printf 'das wort1 ist gross\n\ndas wort2 ist gross\n' >in.txt
"$LOCKSTEP" generate --task translate --checkpoint dp --prompt_file in.txt --threads 1 >lines.txt 2>err.txt || bad "generate: $(cat err.txt)"
[ "$(wc -l <lines.txt)" = 3 ] || bad "three lines give $(wc -l <lines.txt)"
"$LOCKSTEP" generate --task translate --checkpoint dp --batch 1 --threads 1 <in.txt >alone.txt 2>/dev/null
same lines.txt alone.txt
expect 0 '"translations": ' "$LOCKSTEP" generate --task translate --checkpoint dp --prompt 'das wort1 ist gross' --beam 3 --json
expect 0 '"weights": "int8"' "$LOCKSTEP" generate --task translate --checkpoint dp --prompt 'das wort1' --weights int8 --json
expect 0 '^weights: int8, [0-9.]* MB$' "$LOCKSTEP" generate --task translate --checkpoint dp --prompt 'das wort1' --weights int8 --stats
grep -q '^precision: fp32; products with the weights: 8-bit integers$' "$SCRATCH/err" || bad "--stats: $(cat "$SCRATCH/err")"
expect 2 'cannot be combined' "$LOCKSTEP" generate --task translate --checkpoint dp --prompt x --prompt_file in.txt
expect 2 'the model has only 48 positions' "$LOCKSTEP" generate --task translate --checkpoint dp --prompt x --max_length 49
expect 2 '1 to 64' "$LOCKSTEP" generate --task translate --checkpoint dp --prompt x --beam 65

done_tests
