#!/usr/bin/env bash
# --nccl_proof: refused where NCCL cannot be in use; a run whose workers communicate otherwise leaves no trace of it. (What is collected over
# NCCL: unit/nccl_proof, and bench/gpu_session.sh on a GPU.)
. "$(dirname "$0")/../lib.sh"
LS_BUILD=${LS_BUILD:-$(dirname "$LOCKSTEP")}
for v in ${!NCCL_@}; do unset "$v"; done
mkdir -p "$SCRATCH/d" && tokens "$SCRATCH/d/train.bin" 2000
train=("$LOCKSTEP" train --data "$SCRATCH/d" --model tiny --seq_length 16 --micro_batch_size_per_gpu 1 --max_steps 1)

expect 2 "cannot use NCCL" "${train[@]}" --nccl_proof log --checkpoint_path "$SCRATCH/cpu"
expect 2 "cannot use NCCL" "${train[@]}" -n 2 --nccl_proof full --checkpoint_path "$SCRATCH/cpu"
expect 2 "nccl_proof" "${train[@]}" --nccl_proof some --checkpoint_path "$SCRATCH/cpu"
expect 0 "" "${train[@]}" --nccl_proof off --checkpoint_path "$SCRATCH/cpu"
[ ! -e "$SCRATCH/cpu/nccl" ] || bad "a folder nccl of a run on the CPU"

if [ -e "$LS_BUILD/emu/lockstep_cuda.so" ]; then
  export LS_PLUGIN_DIR=$LS_BUILD/emu
  expect 2 "cannot use NCCL" "${train[@]}" -n 2 --device cuda --comm local --nccl_proof log --checkpoint_path "$SCRATCH/gpu"
  expect 2 "cannot use NCCL" "${train[@]}" --device cuda --nccl_proof full --checkpoint_path "$SCRATCH/gpu"
  [ ! -e "$SCRATCH/gpu" ] || bad "a refused run left a folder"
  for mode in log full; do # there is no NCCL here: through the host's memory
    expect 0 "through the host's memory" "${train[@]}" -n 2 --device cuda --nccl_proof $mode --checkpoint_path "$SCRATCH/staged_$mode"
    [ ! -e "$SCRATCH/staged_$mode/nccl" ] || bad "a folder nccl without NCCL"
    python3 - "$SCRATCH/staged_$mode" <<'PY' || bad "metrics of a run without NCCL"
import json, sys
m, l = (json.load(open(f"{sys.argv[1]}/{f}.json")) for f in ("training_metrics", "launcher_metadata"))
assert "nccl" not in m["lockstep"] and l["nccl_env"] == {}, (m["lockstep"].get("nccl"), l["nccl_env"])
PY
  done
  expect 2 "lockstep_nccl.so does not exist" "${train[@]}" -n 2 --device cuda --comm nccl --checkpoint_path "$SCRATCH/none"
  [ ! -e "$SCRATCH/none" ] || bad "a run that could not start left a folder: $(find "$SCRATCH/none")"
fi
done_tests
