#!/usr/bin/env bash
# A profile of the emulated device: its operations per unit, next to the rows of the host, on one clock.
. "$(dirname "$0")/../support/lib.sh"
build=${LS_BUILD:-$(dirname "$LOCKSTEP")}
[ -e "$build/emu/lockstep_cuda.so" ] || skip "no emulated device in $build/emu"
export LS_PLUGIN_DIR=$build/emu
[ ! -e "$build/fake_nvml.so" ] || export LS_NVML=$build/fake_nvml.so
tokens "$SCRATCH/ids.bin" 3000
echo '{"model_type":"gpt2","n_layer":2,"n_head":2,"n_embd":32,"n_positions":32,"vocab_size":256}' >"$SCRATCH/config.json"
timeout 500 "$LOCKSTEP" profile -- train --device cuda --model "$SCRATCH/config.json" --train_data_path "$SCRATCH/ids.bin" \
  --checkpoint_path "$SCRATCH/run" --seq_length 8 --micro_batch_size_per_gpu 2 --max_steps 3 --dropout 0 >"$SCRATCH/log" 2>&1 || bad "$(tail -3 "$SCRATCH/log")"
grep -q "profile: per-unit times from CUDA events" "$SCRATCH/log" || bad "the source of times is not reported: $(head -3 "$SCRATCH/log")"
python3 "$LS_SOURCE/tests/support/trace_check.py" "$SCRATCH/run/profiles/trace.json" 1 step phase unit kernel || bad "the trace is not valid"
python3 - "$SCRATCH/run/profiles" <<'P' || bad "the device's rows are wrong"
import json, sys
s = json.load(open(f"{sys.argv[1]}/profile_summary.json"))["lockstep"]
rows = {r["name"]: r for r in s["device_operations"]}
for name in "forward embed", "forward h.0", "forward h.1", "forward head", "backward h.0", "backward embed", "adamw_many":
    assert name in rows, (name, sorted(rows))
assert rows["forward h.0"]["calls"] == 3 and abs(sum(r["share"] for r in s["device_operations"]) - 1) < 1e-9, rows
events = [json.loads(x.rstrip(",\n")) for x in open(f"{sys.argv[1]}/trace.json") if x.startswith('{"name"')]
steps = [(e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") == "step"]
kernels = [e for e in events if e.get("cat") == "kernel"]
inside = sum(any(a <= k["ts"] <= b for a, b in steps) for k in kernels)
assert inside > 0.9 * len(kernels), f"{inside} of {len(kernels)} lie inside a step: the clocks differ"
P
done_tests
