#!/usr/bin/env bash
# DIST_DEBUG=1: every worker prints which collective before and after the steps of an epoch it is in, on stdout and in rank_logs/. The weights do not change.
. "$(dirname "$0")/../support/lib.sh"
cd "$SCRATCH" || exit 1
mkdir -p d && tokens d/train.bin 3000 && tokens d/val.bin 500 2
run() { # NAME FLAGS...
  local name=$1; shift
  timeout 200 "$LOCKSTEP" train --data d --model tiny --num_layers 2 --seq_length 16 --micro_batch_size_per_gpu 1 --threads 1 --epochs 2 \
    --max_train_steps 4 --checkpoint_path "$name" "$@" >"$name.out" 2>"$name.err" || bad "$name: $(tail -3 "$name.err")"
}
run plain -n 2
[ ! -e plain/rank_logs ] || bad "rank_logs without DIST_DEBUG"
grep -q COLL_ plain.out && bad "lines without DIST_DEBUG"
DIST_DEBUG=0 run off
[ ! -e off/rank_logs ] || bad "DIST_DEBUG=0 is off"
DIST_DEBUG=1 run two -n 2
same plain/epoch-2/model.safetensors two/epoch-2/model.safetensors
DIST_DEBUG=1 run one
cp -r one once
DIST_DEBUG=1 run one --resume --epochs 3
python3 - <<'PY' || bad "the lines"
import re
per = ["start", "loop_start", "train_loop_end", "train_loss_tokens_sum", "train_steps_max", "mem_max", "pre_validation", "val_loss_tokens_sum",
       "pre_checkpoint", "end"]
reduce = {"train_loss_tokens_sum": 2, "train_steps_max": 1, "mem_max": 1, "val_loss_tokens_sum": 2}
def expected(r, epochs):
    def pair(seq, tag, n):
        op = "all_reduce" if n else "barrier"
        more = f" dtype=float64 shape=({n},)" if n else ""
        return [f"[Rank {r}] COLL_ENTER seq={seq} op={op} tag={tag}{more}", f"[Rank {r}] COLL_EXIT  seq={seq} op={op} tag={tag}"]
    tags = [("post_deepspeed_init", 0), ("pre_training_loop", 0)]
    tags += [(f"epoch_{e}_{w}", reduce.get(w, 0)) for e in epochs for w in per]
    lines = [l for i, (t, n) in enumerate(tags) for l in pair(i + 1, t, n)]
    return lines[:2] + ["DATA"] + lines[2:] + [f"[Rank {r}] SHUTDOWN_ENTER", f"[Rank {r}] SHUTDOWN_EXIT"]
for run, n in ("two", 2), ("once", 1):
    out = open("two.out").read() if run == "two" else None # the stdout of the first `one` is overwritten
    for r in range(n):
        lines = open(f"{run}/rank_logs/rank{r}.log").read().split("\n")
        assert lines.pop() == ""
        want = expected(r, (1, 2))
        assert re.fullmatch(rf"\[Rank {r}\] DATA_INFO train_dataloader_len={3000 // 16 // n} val_dataloader_len=\d+", lines[2]), lines[2]
        want[2] = lines[2]
        assert lines == want, [(a, b) for a, b in zip(lines, want) if a != b][:3] or (len(lines), len(want))
        if out is not None:
            assert [l for l in out.split("\n") if l in set(want)] == want, "stdout has other lines"
once, both = (open(f"{d}/rank_logs/rank0.log").read() for d in ("once", "one"))
assert both.startswith(once) and "tag=epoch_3_end" in both, "a resumed run appends"
PY
done_tests
