#!/usr/bin/env bash
# The first hour: a folder of texts to a sample without options to learn; a run that is killed continues with --resume RUN alone.
. "$(dirname "${BASH_SOURCE[0]}")/../support/lib.sh"
cd "$SCRATCH" || exit 1
mkdir "my texts"
for f in 1 2 3; do
  for i in $(seq 120); do echo "The $((i * f % 7))th king of place $((i * 31 % 11)) went to town $f and began to sing: let us count to $i."; done >"my texts/part$f.txt"
done

# text to sample: one command, then the one that it prints
"$LOCKSTEP" train "my texts" --max_steps 30 --threads 1 >out 2>err || bad "train: $(tail -n 3 err)"
run=$(sed -n 's/^run folder: //p' err)
[ -f "$run/options.json" ] && [ -f "$run/data/train.bin" ] || bad "the run folder '$run' is incomplete"
case $run in runs/20??-??-??-my-texts) ;; *) bad "run folder '$run'" ;; esac
grep -q "chosen for .* training tokens and 30 steps" err || bad "the choice is not printed"
grep -q -- "--lr .*0.004" err || bad "the learning rate is not printed"
grep -qE "^step 0 +validation loss" out err || bad "no validation before step 1"
for words in "^ *loss, .*steps [0-9]* to [0-9]*$" "^validation loss [0-9.]*, perplexity" "^a sample" "^next:" "train --resume $run"; do
  grep -q -- "$words" out || bad "'$words' is not at the end of the run"
done
vocab=$(python3 -c "import json; print(json.load(open('$run/epoch-1/config.json'))['vocab_size'])")
[ "$vocab" = "$(python3 -c "import json; print(json.load(open('$run/data/meta.json'))['vocab_size'])")" ] || bad "vocabulary $vocab is not that of the data"
sh -c "$(sed -n '/^next:/{n;p;}' out)" >sample 2>err || bad "the printed command fails: $(cat err)"
grep -q "^Once upon a time" sample || bad "no text: $(cat sample)"
expect 0 "perplexity" "$LOCKSTEP" eval --checkpoint "$run" --data "$run/data"
for words in "$run" "$run/epoch-1"; do # the run knows its data
  "$LOCKSTEP" eval "$words" --json >known.json 2>/dev/null
  grep -q "\"data\": \"$PWD/$run.*/data/val.bin\"" known.json || bad "eval $words: $(cat known.json)"
done

# what a resume cannot change or needs
expect 2 "has another model" "$LOCKSTEP" train --resume "$run" --model gpt2 --max_steps 40
expect 2 "--resume needs the folder of a run" "$LOCKSTEP" train --resume
expect 2 "add --to gguf" "$LOCKSTEP" export --checkpoint "$run" --out x.gguf
expect 0 "save_every" "$LOCKSTEP" train --data "$run/data" --max_steps 20 --save_steps 0 --print_config

# the same data again: another folder; the options of the user win; nothing is measured, so the runs are equal
"$LOCKSTEP" train "$run/data" --max_steps 30 --threads 2 --keep_last 3 >out2 2>err2 || bad "train again: $(tail -n 3 err2)"
again=$(sed -n 's/^run folder: //p' err2)
[ "$again" != "$run" ] || bad "two runs share $run"
same "$run/epoch-1/model.safetensors" "$again/epoch-1/model.safetensors"
expect 0 "chosen (--num_layers)" "$LOCKSTEP" train "$run/data" --max_steps 30 --print_config
expect 0 "n_embd .* 96 .*command line" "$LOCKSTEP" train "$run/data" --max_steps 30 --embedding_size 96 --print_config
[ "$(ls runs | wc -l)" = 2 ] || bad "--print_config has created a run folder"

# --minutes: a trial sets the steps
"$LOCKSTEP" train "$run/data" --minutes 0.02 --checkpoint_path timed >out3 2>err3 || bad "train --minutes: $(tail -n 3 err3)"
grep -q "measured: [0-9]* tokens/s" err3 || bad "the speed is not printed"
grep -q '"max_steps": [1-9]' timed/options.json || bad "the steps are not recorded"
expect 0 "^--max_steps [0-9]* for 0.01 minutes" "$LOCKSTEP" train --data "$run/data" --model tiny --num_layers 1 --seq_length 16 --minutes 0.01 --print_config
expect 2 "cannot be combined" "$LOCKSTEP" train "$run/data" --minutes 1 --max_steps 3
# a trial that is killed is reported before a smaller model is tried
mkdir longer && tokens longer/train.bin 300000
"$LOCKSTEP" train --data longer --vocab_size 256 --minutes 1 --threads 1 --checkpoint_path trial >out 2>err5 &
pid=$!
await $pid eval 'child=$(ps -o pid= --ppid $pid) && kill -9 $child'
await $pid grep -q "killed by SIGKILL.*the next smaller model is tried" err5 || bad "no message about the trial: $(cat err5)"
kill -9 $pid
wait $pid 2>/dev/null
# steps that are slower than in the trial (which has no faults): their number is chosen again, once, and nothing is left of the first ones
rm -rf trial && : >plan
for i in 2 3 5 7 10 14 20 28 39 55 77 108 151 211 295 413; do printf 'kind=slow,step=%d,seconds=0.35;' $i >>plan; done
LOCKSTEP_FAULT=$(sed 's/;$//' plan) "$LOCKSTEP" train --data longer --vocab_size 256 --embedding_size 64 --seq_length 64 --minutes 0.15 --threads 1 \
  --checkpoint_path trial >out 2>err6 || bad "train with slow steps: $(tail -n 3 err6)"
first=$(sed -n 's/^  --max_steps  *\([0-9]*\) .*/\1/p' err6 | head -n 1)
# on a machine that is so busy that the trial was as slow as the faults, nothing is to be corrected
[ "$first" -lt 200 ] || [ "$(grep -c "^note: the first [0-9]* steps took .* s each, not .* chosen again" err6)" = 1 ] || bad "the steps are not chosen again: $(cat err6)"
steps=$(sed -n 's/.*"max_steps": \([0-9]*\).*/\1/p' trial/options.json)
[ "$(grep -c . trial/metrics.jsonl)" = "$steps" ] && grep -q -- "--max_steps  *$steps " err6 || bad "not $steps steps: $(cat err6)"
[ "$(grep -c '"event": "start"' trial/events.jsonl)" = 1 ] && grep -q "\"total_steps\": $steps," trial/events.jsonl || bad "events of the first steps are left"
[ ! -e trial/earlier-1 ] || bad "files of the first steps are left: $(ls trial)"
expect 3 "no such file or folder" "$LOCKSTEP" train nothing.txt
echo "Too short." >short.txt
expect 3 "more text" "$LOCKSTEP" train short.txt
expect 2 "cannot be combined" "$LOCKSTEP" train "my texts" --data "$run/data"
# what cannot be read or used (texts, data, models, weights, also a file of weights that ends too early): no folder is named or made
mkdir binary cut && touch binary/a.pdf && cp "my texts/part1.txt" one.txt
cp "$run/epoch-1/config.json" cut && head -c 2000 "$run/epoch-1/model.safetensors" >cut/model.safetensors
for words in "binary" "--data nodata" "--data $run/data --init_from gpt2-xl" "one.txt --init_from gpt2-xl" "--data $run/data --model tiny --vocab_size 99" \
  "--data $run/data --init_from cut" "--data $run/data --init_from cut -n 2"; do # shellcheck disable=SC2086
  HF_HUB_CACHE=$SCRATCH/hub "$LOCKSTEP" train $words --max_steps 2 --threads 1 >out 2>err && bad "train $words"
  grep -q "run folder\|runs/[-0-9]*one" out err && bad "train $words names a run folder that does not exist: $(cat out err)"
done
[ "$(ls runs | wc -l)" = 2 ] || bad "a refused command left a run folder"
expect 2 "--lines is for texts" "$LOCKSTEP" train "$run/data" --lines
printf 'One line.\n%.0s' {1..300} >lines.md
for i in {1..200}; do echo "Line $i of the text."; done >>lines.md
expect 0 "152 documents\|drop .*299 duplicates" "$LOCKSTEP" train lines.md --lines --dedup --limit_docs 500 --max_steps 1 --threads 1 --checkpoint_path lines

# a run that is killed continues with --resume RUN alone, bit for bit
LOCKSTEP_FAULT="kind=slow,step=12,seconds=60" "$LOCKSTEP" train "$run/data" --max_steps 30 --save_every 4 --threads 1 --checkpoint_path killed >out4 2>&1 & # on a fast machine, too
pid=$!
await $pid test -e killed/step-8 || bad "no checkpoint"
kill -9 $pid
wait $pid 2>/dev/null
expect 0 "resumed from killed/step-" "$LOCKSTEP" train --resume killed
same "$run/epoch-1/model.safetensors" killed/epoch-1/model.safetensors
same "$run/epoch-1/optimizer.safetensors" killed/epoch-1/optimizer.safetensors
[ "$(wc -l <killed/metrics.jsonl)" = 30 ] || bad "metrics.jsonl has $(wc -l <killed/metrics.jsonl) lines"
expect 0 "nothing is left to do" "$LOCKSTEP" train --checkpoint_path killed --resume
expect 0 "step 32/32" "$LOCKSTEP" train --resume killed --max_steps 32 -n 2
expect 2 "2 layers; this model has 3" "$LOCKSTEP" train --resume killed --max_steps 34 --num_layers 3
expect 2 "--seed 1337, but this run has 1" "$LOCKSTEP" train --resume=killed --max_steps 34 --seed 1
expect 2 "is a checkpoint, not a run folder" "$LOCKSTEP" train --resume killed/epoch-1
expect 3 "no such run folder" "$LOCKSTEP" train --resume nowhere
expect 3 "has no options.json" "$LOCKSTEP" train --resume "my texts"
expect 2 "different folders" "$LOCKSTEP" train --resume killed --checkpoint_path other


# a run with a DeepSpeed JSON
echo '{"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "AdamW", "params": {"lr": 0.002}}}' >ds.json
expect 0 "" "$LOCKSTEP" train --data "$run/data" --model tiny --num_layers 1 --num_heads 2 --embedding_size 32 --seq_length 16 --max_steps 1 \
  --lr_schedule constant --threads 1 --deepspeed_config ds.json --checkpoint_path one
expect 2 "1 micro-batch of 4, cannot be shared by 2 data-parallel workers; use a number that divides 1: 1$" \
  "$LOCKSTEP" train --resume one -n 2
cp ds.json ds-of-run.json && sed -i 's/0.002/0.5/' ds.json # the run has a copy of its JSON, which counts
expect 0 "resumed from one/epoch-1" "$LOCKSTEP" train --resume one --max_steps 2 --threads 1
same ds-of-run.json one/options.deepspeed.json
grep -q '"lr": 0.002,' one/metrics.jsonl && ! grep -q '"lr": 0.5' one/metrics.jsonl || bad "the changed JSON counts: $(cat one/metrics.jsonl)"

# eval reads sequences of the length of the training, not of the model's positions
"$LOCKSTEP" train --data "$run/data" --model tiny --num_layers 1 --seq_length 16 --max_steps 1 --threads 1 --checkpoint_path short >/dev/null 2>&1
"$LOCKSTEP" eval --checkpoint short --data "$run/data" --threads 1 --json >eval.json 2>/dev/null
python3 -c "import json; e = json.load(open('eval.json')); assert e['tokens'] == 16 * e['sequences'] > 0, e" || bad "eval: $(cat eval.json)"

# a moved run has its data; a new run in an old folder keeps its metrics
mv "$run" moved
expect 0 "step 31/31" "$LOCKSTEP" train --resume moved --max_steps 31
expect 0 "to moved/earlier-1" "$LOCKSTEP" train moved/data --max_steps 2 --checkpoint_path moved
[ "$(wc -l <moved/earlier-1/metrics.jsonl)" = 31 ] && [ "$(wc -l <moved/metrics.jsonl)" = 2 ] || bad "metrics of the earlier run"
done_tests
