#!/usr/bin/env bash
# Trains a small GPT-2 to translate a language that a grammar makes, on 1 and on 2 workers, and scores it with BLEU.
# LARGE=1 reaches BLEU > 90. PAIRS=FILE.tsv takes pairs of your own (source TAB target).
# shellcheck source=../lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
if [[ ${LARGE:-0} == 1 ]]; then
    pairs=6000 batch=32 width=96 rate=3e-3 updates=300
else
    pairs=1200 batch=16 width=64 rate=8e-3 updates=60
fi
size=(--model tiny --num_layers 2 --num_heads 4 --embedding_size "$width" --max_position_embeddings 32 --seq_length 31 --dropout 0
    --micro_batch_size_per_gpu 8 --global_batch_size "$batch" --lr "$rate" --warmup_steps 20 --max_steps "$updates")

heading "1. Pairs of sentences"
if [[ ${PAIRS:-} ]]; then
    cp "$PAIRS" train.tsv
    parts=(--input train.tsv --val_fraction 0.1)
else
    python3 "$here/make_pairs.py" . "$pairs" 100 200
    parts=(--input train.tsv --val_input val.tsv --test_input test.tsv)
    if [[ ${LARGE:-0} != 1 ]]; then parts+=(--limit_test 20); fi
fi
head -n 3 train.tsv

heading "2. Pairs to token files, with a vocabulary of both languages"
show "$LOCKSTEP" prepare --task translate "${parts[@]}" --src_lang de --tgt_lang en --vocab_size 1000 --out data
tail -n 5 log.txt

heading "3. Training: the loss counts the tokens of the translation only"
show "$LOCKSTEP" train --task translate --data data "${size[@]}" --threads "$threads" --checkpoint_path one
show "$LOCKSTEP" train --task translate -n 2 --data data "${size[@]}" --threads 1 --checkpoint_path two
last=$(basename "$(find one -maxdepth 1 -name 'epoch-*' | sort -V | tail -n 1)")
same_weights "one/$last" "two/$last" || fail "1 and 2 workers give different weights"
echo "1 and 2 workers: the same weights, bit for bit"
first=$(metric one 1 loss)
end=$(metric one last loss)
printf 'loss of step 1: %.3f, of step %d: %.3f\n' "$first" "$updates" "$end"

heading "4. BLEU on sentences that were not used for training"
"$LOCKSTEP" eval --task translate --checkpoint one --data data --threads "$threads" --out translations.json 2>>log.txt | tee eval.txt
"$LOCKSTEP" eval --task translate --checkpoint one --data data --threads "$threads" --beam 4 2>>log.txt | sed -n 's/^bleu \([0-9]\)/bleu with --beam 4: \1/p'

heading "5. A translation"
sentence=$(head -n 1 test.tsv 2>/dev/null | cut -f 1) || sentence=
sentence=${sentence:-$(head -n 1 train.tsv | cut -f 1)}
echo "$sentence"
"$LOCKSTEP" generate --task translate --checkpoint one --threads "$threads" --prompt "$sentence" 2>>log.txt

less "$end" "$(awk -v x="$first" 'BEGIN { print 0.6 * x }')" || fail "the loss fell from $first to $end only"
bleu=$(sed -n 's/^bleu \([0-9.]*\)$/\1/p' eval.txt)
if [[ ${LARGE:-0} == 1 && ! ${PAIRS:-} ]]; then less 90 "$bleu" || fail "BLEU is $bleu, not above 90"; fi
echo "ok"
