#!/usr/bin/env bash
# Pairs whose loss counts the target only: strategies (all of them with LS_TEST_ALL=1), pipelines and a resumed run give the weights of one worker; tensor parallelism
# and the emulated GPU give its losses within bounds.
. "$(dirname "$0")/../support/lib.sh"
cd "$SCRATCH" || exit 1
python3 "$LS_SOURCE/examples/06_translate/make_pairs.py" . 30 20 5
"$LOCKSTEP" prepare --task translate --quiet --input train.tsv --val_input val.tsv --vocab_size 500 --out data >/dev/null || bad "prepare"
size=(--data data --model tiny --num_layers 2 --num_heads 4 --embedding_size 32 --max_position_embeddings 40 --seq_length 24 --threads 1
  --micro_batch_size_per_gpu 2 --global_batch_size 8 --epochs 2 --lr 3e-3)
t() { # NAME OPTIONS...
  local name=$1
  shift
  "$LOCKSTEP" train "${size[@]}" --checkpoint_path "$name" "$@" >"$name.out" 2>&1 || bad "$name: $(tail -n 3 "$name.out")"
}
t one
grep -q "30 pairs, the loss counts the targets" one.out || bad "no line about pairs: $(head -n 5 one.out)"
losses() { python3 -c "
import json, sys
print(*[(r['loss'], r['grad_norm']) for r in map(json.loads, open('$1/metrics.jsonl'))], sep='\n')" >"$1.losses"; }
losses one
strategies="ddp zero3"
[ -z "${LS_TEST_ALL:-}" ] || strategies="ddp zero1 zero2 zero3"
for s in $strategies; do
  t $s -n 2 --strategy $s
  losses $s
  same one.losses $s.losses
  same "one/epoch-2/model.safetensors" "$s/epoch-2/model.safetensors"
done
t pipe -n 2 --pp 2 --schedule 1f1b
same "one/epoch-2/model.safetensors" "pipe/epoch-2/model.safetensors"
# stopped in the middle of an epoch; the sums of the unfinished epoch are kept
t part --save_every 1
rm -rf part/epoch-2 part/step-5
t part --resume
grep -q "resumed from part/step-4" part.out || bad "not resumed in the second epoch: $(grep resumed part.out)"
grep -q '"targets": ' part/step-4/trainer_state.json || bad "a checkpoint does not have the targets of its epoch"
same "one/epoch-2/model.safetensors" "part/epoch-2/model.safetensors"
python3 - <<'PY' || bad "the losses of epochs differ after a resume"
import json
a, b = (json.load(open(f"{d}/training_metrics.json"))["epochs"] for d in ("one", "part"))
assert [(e["train_loss_avg_global"], e["val_loss_avg_global"]) for e in a] == [(e["train_loss_avg_global"], e["val_loss_avg_global"]) for e in b], (a, b)
rows = [json.loads(x) for x in open("one/metrics.jsonl")]
assert 0.5 * rows[-1]["loss"] < a[1]["train_loss_avg_global"] < 2 * rows[-1]["loss"], a # a mean over targets, not over all tokens
PY
near() { python3 -c "
import json
a, b = ([json.loads(x)['loss'] for x in open(f'{d}/metrics.jsonl')] for d in ('one', '$1'))
assert len(a) == len(b) and max(abs(x - y) / x for x, y in zip(a, b)) < $2, (a, b)" || bad "$1: losses differ"; }
t tp -n 2 --tp 2
near tp 1e-4
if [ -f "${LS_BUILD:-$LS_SOURCE/build}/emu/lockstep_cuda.so" ]; then
  export LS_PLUGIN_DIR=${LS_BUILD:-$LS_SOURCE/build}/emu LS_GEMM_TUNE=0 XDG_CACHE_HOME=$SCRATCH/cache
  size+=(--device cuda --precision fp32 --max_steps 2 --num_layers 1)
  t gpu
  LS_DEVICE=cpu "$LOCKSTEP" train "${size[@]}" --device cpu --checkpoint_path cpu >/dev/null 2>&1
  # translations, with keys and values that are copied between the rows of a beam
  for d in cpu cuda; do
    "$LOCKSTEP" eval --task translate --checkpoint one --data data --limit 2 --max_length 22 --beam 2 --device $d --precision fp32 --out $d.json \
      >$d.out 2>&1 || bad "eval on $d: $(tail -n 2 $d.out)"
  done
  same cpu.json cuda.json
  if [ -n "${LS_TEST_ALL:-}" ]; then
    t gpu2 -n 2
    same gpu/epoch-1/model.safetensors gpu2/epoch-1/model.safetensors
  fi
  python3 -c "
import json
a, b = ([json.loads(x)['loss'] for x in open(f'{d}/metrics.jsonl')] for d in ('cpu', 'gpu'))
assert len(a) == len(b) == 2 and max(abs(x - y) / x for x, y in zip(a, b)) < 1e-5, (a, b)" || bad "the emulated GPU has other losses"
fi
done_tests
