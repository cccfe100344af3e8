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
# --- over the stand-in for NCCL, which writes no log ---
if [ -e "$LS_BUILD/emu_nccl/lockstep_nccl.so" ]; then
  export LS_PLUGIN_DIR=$LS_BUILD/emu_nccl LS_EMU_DEVICES=2
  mkdir -p "$SCRATCH/bin"
  printf '#!/bin/sh\n[ "$1" = topo ] || exit 6\nprintf "\\tGPU0\\tGPU1\\nGPU0\\t X \\tNV18\\nGPU1\\tNV18\\t X \\n"\n' >"$SCRATCH/bin/nvidia-smi"
  chmod +x "$SCRATCH/bin/nvidia-smi"
  export PATH=$SCRATCH/bin:$PATH
  run=$SCRATCH/over_nccl
  expect 0 "" timeout 120 "${train[@]}" -n 2 --device cuda --comm nccl --nccl_proof full --checkpoint_path "$run"
  python3 - "$run" <<'PY' || bad "evidence of a run over NCCL: $(find "$run" -maxdepth 2)"
import json, os, sys
run = sys.argv[1]
m, l, s = (json.load(open(f"{run}/{f}.json")) for f in ("training_metrics", "launcher_metadata", "nccl/summary"))
env = l["nccl_env"]
assert env["NCCL_DEBUG"] == "INFO" and env["NCCL_DEBUG_SUBSYS"] == "INIT,GRAPH,ENV,NET", env
assert env["NCCL_DEBUG_FILE"].endswith("/nccl/nccl_rank_%h_%p.log") and env["NCCL_TOPO_DUMP_FILE"].endswith("/nccl/topo_rank0.xml"), env
assert m["lockstep"]["nccl"]["transports"] is None and s["version"] is None and s["nvlink"] is None, s
assert any("no line of NCCL" in n for n in s["notes"]), s["notes"]
result = {t["command"].split()[1] if " " in t["command"] else t["command"]: t["result"] for t in s["tools"]}
assert result["topo"] == "ok" and "exit code 6" in result.values(), result
assert "NV18" in open(f"{run}/topo.txt").read() and not os.path.exists(f"{run}/nccl/topo_rank0.xml")
PY
  expect 0 "" "$LOCKSTEP" report "$run" --out "$SCRATCH/page" --no-png
  grep -q "topo.txt: links between GPUs: NV18 x 1" "$SCRATCH/page/report.md" || bad "report: $(grep -A9 "between GPUs" "$SCRATCH/page/report.md")"
  NCCL_DEBUG=WARN expect 0 "" timeout 120 "${train[@]}" -n 2 --device cuda --comm nccl --checkpoint_path "$run"
  grep -q '"NCCL_DEBUG": "WARN"' "$run/launcher_metadata.json" && ! grep -q NCCL_DEBUG_FILE "$run/launcher_metadata.json" || bad "what the user set was changed"
  expect 0 "# Avg bus bandwidth" timeout 120 "$LOCKSTEP" bench comm -n 2 --device cuda --comm nccl --max 4K --rounds 1
  grep -q ", nccl " "$SCRATCH/out" && grep -q "sums: NCCL's own" "$SCRATCH/out" || bad "bench comm over NCCL: $(head -3 "$SCRATCH/out")"
  expect 0 "in the order of --deterministic" timeout 120 "$LOCKSTEP" bench comm -n 2 --device cuda --comm nccl --deterministic --max 4K --rounds 1
fi
done_tests
