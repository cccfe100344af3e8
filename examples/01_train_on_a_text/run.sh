#!/usr/bin/env bash
# Trains a small GPT-2 on a text, measures it, and lets it write. TEXT=book.txt uses a text of your own.
# shellcheck source=../lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

heading "1. A text"
if [[ ${TEXT:-} ]]; then cp "$TEXT" text.txt; else write_text text.txt "$sentences"; fi
head -c 200 text.txt
echo " ..."

heading "2. Text to token files, with a tokenizer trained on it"
show "$LOCKSTEP" prepare --input text.txt --out data --tokenizer train --vocab_size "$vocabulary"
ls data

heading "3. Training"
show "$LOCKSTEP" train --data data "${model[@]}" --lr "$lr" --max_steps "$steps" --checkpoint_path run
first=$(metric run 1 loss)
last=$(metric run last loss)
printf 'loss of step 1: %.3f, of step %d: %.3f\n' "$first" "$steps" "$last"

heading "4. Loss on text that was not used for training"
"$LOCKSTEP" eval --checkpoint run --data data --threads "$threads" --json 2>>log.txt >eval.json
cat eval.json

heading "5. What it writes"
"$LOCKSTEP" generate --checkpoint run --prompt "The tall" --max_new_tokens 40 --seed 1 --threads "$threads" 2>>log.txt | tee sample.txt
echo

less "$last" "$(awk -v x="$first" 'BEGIN { print 0.6 * x }')" || fail "the loss fell from $first to $last only"
less "$(python3 -c 'import json; print(json.load(open("eval.json"))["loss"])')" "$first" || fail "nothing was learnt for other text"
[[ $(wc -w <sample.txt) -gt 5 ]] || fail "it wrote no text"
echo "ok"
