#!/usr/bin/env bash
# Fine-tunes a Hugging Face GPT-2 folder on a new text and writes one back. MODEL=FOLDER takes a folder of yours (config.json,
# model.safetensors, tokenizer.json); without it, a small one is trained and exported first.
# PYTHON=python3 (with torch and transformers) also opens the result with transformers.
# shellcheck source=../lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
tuning=$((steps / 2)) tuning_lr=${TUNING_LR:-1e-3}

heading "1. A Hugging Face folder"
if [[ ${MODEL:-} ]]; then
    base=$(cd "$root" && realpath "$MODEL")
else
    { write_text /dev/stdout "$sentences" 1 land; write_text /dev/stdout $((sentences / 20)) 2 sea; } >base.txt
    show "$LOCKSTEP" prepare --input base.txt --out base-data --tokenizer train --vocab_size "$vocabulary"
    show "$LOCKSTEP" train --data base-data "${model[@]}" --lr "$lr" --max_steps "$steps" --checkpoint_path base-run
    show "$LOCKSTEP" export --checkpoint base-run --out base
    base=$WORK/base
fi
ls "$base"

heading "2. The new text, with the tokenizer of that folder"
write_text text.txt $((sentences / 2)) 3 sea
show "$LOCKSTEP" prepare --input text.txt --out data --tokenizer "$base"

heading "3. Fine-tuning: the weights come from the folder, at a lower learning rate"
length=$(python3 -c 'import json, sys; print(min(128, json.load(open(sys.argv[1]))["n_positions"]))' "$base/config.json")
options=(--data data --model "$base" --seq_length "$length" --dropout 0 --micro_batch_size_per_gpu 1 --global_batch_size 8
    --max_steps "$tuning" --threads "$threads")
show "$LOCKSTEP" train "${options[@]}" --init_from "$base" --lr "$tuning_lr" --checkpoint_path tuned

heading "4. The same steps from random weights, for comparison"
show "$LOCKSTEP" train "${options[@]}" --lr "$tuning_lr" --checkpoint_path scratch

heading "5. Loss on text that was not used for training"
loss() {
    "$LOCKSTEP" eval --checkpoint "$1" --data data --seq_length "$length" --threads "$threads" --json 2>>log.txt |
     python3 -c 'import json, sys; print("%.4f" % json.load(sys.stdin)["loss"])'
}
before=$(loss "$base") after=$(loss tuned) scratch=$(loss scratch)
echo "before $before, fine-tuned $after, from random weights $scratch"

heading "6. Back to a Hugging Face folder"
show "$LOCKSTEP" export --checkpoint tuned --out tuned-hf
ls tuned-hf
if [[ ${PYTHON:-} ]]; then
    HF_HUB_OFFLINE=1 "$PYTHON" -c '
from transformers import AutoModelForCausalLM
m = AutoModelForCausalLM.from_pretrained("tuned-hf")
print("transformers opens it:", type(m).__name__, sum(p.numel() for p in m.parameters()), "parameters")' 2>>log.txt
fi

less "$after" "$before" || fail "fine-tuning did not lower the loss"
less "$after" "$scratch" || fail "starting from the folder did not help"
[[ $(cd tuned-hf && ls) == $'config.json\ngeneration_config.json\nmodel.safetensors\ntokenizer.json' ]] || fail "unexpected files"
echo "ok"
