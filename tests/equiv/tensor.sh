#!/usr/bin/env bash
# Tensor parallelism: close to one worker, with every other kind of parallelism; the same bytes as tensor parallelism alone with every strategy, in a
# pipeline and after a resume. Checkpoints contain the whole model, so that a run can continue on one worker and back.
. "$(dirname "$0")/../support/lib.sh"
mkdir -p "$SCRATCH/d" && tokens "$SCRATCH/d/train.bin" 20000 && tokens "$SCRATCH/d/val.bin" 2000 2
args=(train --data "$SCRATCH/d" --model tiny --num_layers 2 --seq_length 32 --micro_batch_size_per_gpu 1 --global_batch_size 4 --dropout 0.1 --epochs 1
      --max_steps 24 --save_every 6 --lr 1e-3 --threads 1)
run() { # NAME OPTIONS
  local name=$1; shift
  timeout 120 "$LOCKSTEP" "${args[@]}" --checkpoint_path "$SCRATCH/$name" "$@" >>"$SCRATCH/$name.log" 2>&1 || bad "$name: $(tail -3 "$SCRATCH/$name.log")"
}
equal() { for f in model optimizer; do same "$SCRATCH/$1/$3/$f.safetensors" "$SCRATCH/$2/$3/$f.safetensors"; done; }
from() { rm -rf "$SCRATCH/${3:?}" && mkdir "$SCRATCH/$3" && cp -r "$SCRATCH/$1/$2" "$SCRATCH/$3/"; } # RUN CHECKPOINT NEW

# close A B [FIRST]: losses of every step from FIRST on within 1e-5, norms within 1e-4, weights within 1e-3 of the largest
close() {
  python3 - "$SCRATCH/$1" "$SCRATCH/$2" "${3:-1}" <<'PY' || bad "$1 and $2 are not close"
import array, json, struct, sys
a, b, first = sys.argv[1], sys.argv[2], int(sys.argv[3])
def steps(run):
    rows = [json.loads(l) for l in open(f"{run}/metrics.jsonl")]
    return {r["step"]: (r["loss"], r["grad_norm"]) for r in rows if r["step"] >= first}
def tensors(path):
    raw = open(path, "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    for name, t in json.loads(raw[8:8 + n]).items():
        if name != "__metadata__":
            yield name, t["shape"], array.array("f", raw[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]])
x, y = steps(a), steps(b)
assert x.keys() == y.keys() and max(x) == 24, (x.keys(), y.keys())
for s in x:
    assert abs(x[s][0] - y[s][0]) <= 1e-5 * abs(x[s][0]), (s, "loss", x[s][0], y[s][0])
    assert abs(x[s][1] - y[s][1]) <= 1e-4 * abs(x[s][1]), (s, "norm", x[s][1], y[s][1])
for p, q in zip(tensors(f"{a}/epoch-1/model.safetensors"), tensors(f"{b}/epoch-1/model.safetensors"), strict=True):
    assert p[:2] == q[:2], (p[:2], q[:2])
    assert max(abs(u - v) for u, v in zip(p[2], q[2], strict=True)) <= 1e-3 * max(map(abs, p[2])) + 1e-5, p[0]
u, v = (json.load(open(f"{r}/training_metrics.json"))["epochs"][-1]["val_loss_avg_global"] for r in (a, b))
assert abs(u - v) <= 1e-5 * u, ("validation", u, v)
PY
}

run one
run tp2 -n 2 --tp 2
run tp4 -n 4 --tp 4
run rows -n 4 --tp 4 --sequence_parallel
for name in tp2 tp4 rows; do close one $name; done
for how in "ddp 4 1" "zero1 4 1" "zero2 4 1" "zero3 4 1" "single 4 2 --schedule gpipe" "zero2 8 2 --recompute"; do
  read -r strategy n pp more <<<"$how"
  rm -rf "$SCRATCH/hybrid" "$SCRATCH/hybrid.log"
  run hybrid -n "$n" --tp 2 --pp "$pp" --strategy "$strategy" $more
  for at in step-12 epoch-1; do equal tp2 hybrid $at; done
  [ "$(grep -c '"local_rank"' "$SCRATCH/hybrid/launcher_metadata.json")" = "$n" ] || bad "$how: launcher_metadata.json does not list $n workers"
  grep -q '"started_by": "-n"' "$SCRATCH/hybrid/launcher_metadata.json" || bad "$how: started_by"
done

# the same bytes after a resume with another layout and the same tp; and through one worker to another tp
from tp2 step-6 again && run again -n 4 --tp 2 --strategy zero3 --resume && equal tp2 again epoch-1
from tp2 step-6 alone && run alone --resume && close one alone 7
from alone step-12 wider && run wider -n 4 --tp 4 --sequence_parallel --resume && close one wider 13
for name in again alone wider; do grep -q "resumed from" "$SCRATCH/$name.log" || bad "$name did not resume"; done

expect 2 "4 heads over tp 3" "$LOCKSTEP" "${args[@]}" --checkpoint_path "$SCRATCH/no" -n 3 --tp 3
expect 2 "needs a multiple of 2 workers, but this run has 3; use 2 or 4 workers" "$LOCKSTEP" "${args[@]}" --checkpoint_path "$SCRATCH/no" -n 3 --tp 2
expect 2 "remainder 1" "$LOCKSTEP" "${args[@]}" --checkpoint_path "$SCRATCH/no" -n 2 --tp 2 --sequence_parallel --seq_length 31
[ -e "$SCRATCH/no" ] && bad "a refused run left a folder"
done_tests
