#!/usr/bin/env bash
# --nccl_proof: an error if NCCL cannot be used; a run that communicates in another way writes no files of NCCL. In a folder that is used again, a
# refused start changes nothing, and a run does not use files of an earlier run. Every end of a run has a summary. (What is collected over NCCL is
# tested by train/nccl_proof, and by perf/gpu_session.sh on a GPU.)
. "$(dirname "$0")/../support/lib.sh"
LS_BUILD=${LS_BUILD:-$(dirname "$LOCKSTEP")}
for v in ${!NCCL_@}; do unset "$v"; done
mkdir -p "$SCRATCH/d" && tokens "$SCRATCH/d/train.bin" 2000
train=("$LOCKSTEP" train --data "$SCRATCH/d" --model tiny --num_layers 1 --num_heads 2 --embedding_size 32 --seq_length 16 --micro_batch_size_per_gpu 1 --max_steps 1)

expect 2 "does not use NCCL" "${train[@]}" --nccl_proof log --checkpoint_path "$SCRATCH/cpu"
expect 2 "does not use NCCL" "${train[@]}" -n 2 --nccl_proof full --checkpoint_path "$SCRATCH/cpu"
expect 2 "nccl_proof" "${train[@]}" --nccl_proof some --checkpoint_path "$SCRATCH/cpu"
expect 0 "" "${train[@]}" --nccl_proof off --checkpoint_path "$SCRATCH/cpu"
[ ! -e "$SCRATCH/cpu/nccl" ] || bad "a folder nccl of a run on the CPU"

if [ -e "$LS_BUILD/emu/lockstep_cuda.so" ]; then
  export LS_PLUGIN_DIR=$LS_BUILD/emu
  expect 2 "does not use NCCL" "${train[@]}" -n 2 --device cuda --comm local --nccl_proof log --checkpoint_path "$SCRATCH/gpu"
  expect 2 "does not use NCCL" "${train[@]}" --device cuda --nccl_proof full --checkpoint_path "$SCRATCH/gpu"
  [ ! -e "$SCRATCH/gpu" ] || bad "a refused run left a folder"
  for mode in log full; do # NCCL is not available: through host memory
    expect 0 "through host memory" "${train[@]}" -n 2 --device cuda --nccl_proof $mode --checkpoint_path "$SCRATCH/staged_$mode"
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
# --- over the fake NCCL, which writes no log ---
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
  expect 0 "" "$LOCKSTEP" report "$run" --out "$SCRATCH/page" --no_png
  grep -q "topo.txt: links between GPUs: NV18 x 1" "$SCRATCH/page/report.md" || bad "report: $(grep -A9 "between GPUs" "$SCRATCH/page/report.md")"
  # files of a finished run, in a folder that is used again
  over=("${train[@]}" -n 2 --device cuda --comm nccl --checkpoint_path "$run")
  echo "old: NCCL INFO NCCL version 2.1.0+cuda9.0" >"$run/nccl/nccl_rank_old_1.log"
  echo "<old/>" >"$run/nccl_topo.xml"
  echo "old" >"$run/ibstat.txt"
  listing() { (cd "$run" && find . -type f -exec sha256sum {} + | sort -k 2); }
  listing >"$SCRATCH/before"
  expect 2 "ranks 0 and 1 share" timeout 60 "${over[@]}" --device cuda:1
  expect 3 "nowhere" timeout 60 "${over[@]}" --data "$SCRATCH/nowhere"
  expect 2 "a step needs 16384 sequences" timeout 60 "${over[@]}" --global_batch_size 16384 --nccl_proof full # refused after NCCL was opened
  listing | cmp -s "$SCRATCH/before" - || bad "a refused start changed a finished run: $(listing | diff "$SCRATCH/before" - | head -5)"
  mv "$SCRATCH/bin/nvidia-smi" "$SCRATCH/nvidia-smi"
  printf '#!/bin/sh\nexit 6\n' >"$SCRATCH/bin/nvidia-smi"
  cp "$SCRATCH/bin/nvidia-smi" "$SCRATCH/bin/ibstat"
  chmod +x "$SCRATCH/bin/"*
  expect 0 "" timeout 120 "${over[@]}" --resume --max_steps 2
  [ -e "$run/nccl/nccl_rank_old_1.log" ] && [ -e "$run/nccl/session-1/topo.txt" ] && [ ! -e "$run/earlier-1" ] || bad "--resume: $(listing)"
  for f in topo.txt ibstat.txt nccl_topo.xml; do [ ! -e "$run/$f" ] || bad "--resume: an old $f, when its tool failed"; done
  mv "$SCRATCH/nvidia-smi" "$SCRATCH/bin/nvidia-smi"
  expect 0 "" timeout 120 "${over[@]}"
  [ -e "$run/earlier-1/nccl/nccl_rank_old_1.log" ] && [ -e "$run/earlier-1/nccl/summary.json" ] && [ -e "$run/earlier-1/epoch-1" ] &&
    [ -e "$run/nccl/summary.json" ] && [ ! -e "$run/nccl/nccl_rank_old_1.log" ] || bad "a new run: $(listing)"
  expect 0 "" "${train[@]}" --checkpoint_path "$run" # on the CPU
  [ ! -e "$run/nccl" ] && [ ! -e "$run/topo.txt" ] && [ -e "$run/earlier-2/nccl/summary.json" ] && [ -e "$run/earlier-2/topo.txt" ] ||
    bad "files of NCCL in the folder of a run on the CPU: $(listing)"

  # rank 0 writes the summary, however a started run ends
  summed() { grep -q "ended before it was complete" "$SCRATCH/$1/nccl/summary.json" || bad "$1: no summary: $(find "$SCRATCH/$1" -maxdepth 2)"; }
  long=("$LOCKSTEP" train --data "$SCRATCH/d" --model tiny --seq_length 16 --micro_batch_size_per_gpu 1 --epochs 1000 --num_layers 1 --num_heads 2 -n 2
        --device cuda --comm nccl --comm_timeout 5)
  "${long[@]}" --checkpoint_path "$SCRATCH/term" >"$SCRATCH/term.log" 2>&1 &
  pid=$!
  await $pid grep -q "^step " "$SCRATCH/term.log" || bad "no step: $(tail -n 2 "$SCRATCH/term.log")"
  kill -TERM $pid
  wait $pid
  code=$?
  [ $code = 143 ] || bad "SIGTERM: exit code $code: $(tail -n 2 "$SCRATCH/term.log")"
  summed term
  FAKE_NCCL_FAIL=1:60 expect 4 "rank 1" timeout -k 5 60 "${long[@]}" --checkpoint_path "$SCRATCH/fault"
  summed fault
  expect 1 "" timeout -k 5 60 "${long[@]}" --lr 1e3 --clip 0 --warmup_steps 0 --checkpoint_path "$SCRATCH/nan"
  summed nan
  # a tool that hangs is ended with the run, however the run ends
  mkdir -p "$SCRATCH/hangs" && printf '#!/bin/sh\necho $$ >>"%s"\nexec sleep 4321\n' "$SCRATCH/hangs/pids" >"$SCRATCH/hangs/nvidia-smi" && chmod +x "$SCRATCH/hangs/nvidia-smi"
  PATH=$SCRATCH/hangs:$PATH timeout -k 5 60 "${long[@]}" --reference_output --checkpoint_path "$SCRATCH/hung" >"$SCRATCH/hung.out" 2>&1 &
  pid=$!
  await $pid [ -s "$SCRATCH/hangs/pids" ] || bad "the tool was not started: $(tail -n 2 "$SCRATCH/hung.out")"
  kill -9 "$(sed -n 's/.*Startup: pid=\([0-9]*\) rank=0 .*/\1/p' "$SCRATCH/hung.out")"
  wait $pid
  sleep 0.3
  while read -r tool; do
    grep -qs 4321 "/proc/$tool/cmdline" && bad "a tool outlived its run" && kill -9 "$tool"
  done <"$SCRATCH/hangs/pids"
  NCCL_DEBUG=WARN expect 0 "" timeout 120 "${train[@]}" -n 2 --device cuda --comm nccl --checkpoint_path "$run"
  grep -q '"NCCL_DEBUG": "WARN"' "$run/launcher_metadata.json" && ! grep -q NCCL_DEBUG_FILE "$run/launcher_metadata.json" || bad "what the user set was changed"
  expect 0 "# Avg bus bandwidth" timeout 120 "$LOCKSTEP" bench comm -n 2 --device cuda --comm nccl --max 4K --rounds 1
  grep -q ", nccl " "$SCRATCH/out" && grep -q "sums: NCCL's own" "$SCRATCH/out" || bad "bench comm over NCCL: $(head -3 "$SCRATCH/out")"
  expect 0 "in the order of --deterministic" timeout 120 "$LOCKSTEP" bench comm -n 2 --device cuda --comm nccl --deterministic --max 4K --rounds 1
fi
done_tests
