#!/usr/bin/env bash
# A run that is stopped twice and goes on under another layout each time ends with the weights of a run that was never stopped.
# shellcheck source=../lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

heading "1. Data, short enough for epochs of a few steps"
write_text text.txt $((sentences / 10))
show "$LOCKSTEP" prepare --input text.txt --out data --tokenizer train --vocab_size "$vocabulary"

# A learning rate that does not depend on the length of the run: each part below is a run of one more epoch.
options=(--data data "${model[@]}" --lr "$lr" --lr_schedule constant --warmup_steps 4 --max_val_steps 0)

heading "2. Without a stop: 3 epochs on one worker"
show "$LOCKSTEP" train "${options[@]}" --epochs 3 --checkpoint_path whole

heading "3. In three parts: ZeRO-3 on 2 workers, a pipeline of 2 stages, then ddp on 4 workers"
show "$LOCKSTEP" train "${options[@]}" --epochs 1 --checkpoint_path parts -n 2 --strategy zero3
show "$LOCKSTEP" train "${options[@]}" --epochs 2 --checkpoint_path parts --resume -n 2 --pp 2 --schedule 1f1b
show "$LOCKSTEP" train "${options[@]}" --epochs 3 --checkpoint_path parts --resume -n 4 --strategy ddp

heading "4. Losses and checkpoints compared"
steps=$(metric whole last step)
for k in 1 $((steps / 2)) "$steps"; do
    echo "step $k: loss $(metric whole "$k" loss) without a stop, $(metric parts "$k" loss) in parts"
done
grep -q "resumed from parts/epoch-1" log.txt || fail "the second part did not resume"
grep -q "resumed from parts/epoch-2" log.txt || fail "the third part did not resume"
[[ $(metric parts last step) == "$steps" ]] || fail "the parts ended at step $(metric parts last step), not $steps"
for k in 1 2 3; do same_weights "whole/epoch-$k" "parts/epoch-$k" || fail "weights or optimizer state differ after epoch $k"; done
echo "the same weights and optimizer state after every epoch, bit for bit"
echo "ok"
