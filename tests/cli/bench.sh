#!/usr/bin/env bash
# bench: scaling over workers, strategies, comparison of two settings, collectives and matrix products on a tiny model. Files in the format
# of the ZeRO scaling study (docs/REFERENCES.md) give its numbers; runs that are not comparable are refused; Ctrl-C keeps finished runs and --resume continues.
# ls-test: serial
. "$(dirname "$0")/../support/lib.sh"
cd "$SCRATCH" || exit 1
mkdir -p d && tokens d/train.bin 6000 && tokens d/val.bin 500 2
bench() { timeout 300 "$LOCKSTEP" bench "$@"; }
train=(--data d --model tiny --num_layers 2 --seq_length 16 --micro_batch_size_per_gpu 1)

# --- scaling ---
bench scaling -n 1,2,4 --repeat 2 --steps 6 --warmup 2 --out s --dry_run -- "${train[@]}" >dry 2>err || bad "dry run: $(cat err)"
[ "$(grep -c "^DRY RUN: .* train .*--checkpoint_path s/" dry)" = 6 ] || bad "dry run prints $(cat dry)"
[ ! -e s ] || bad "a dry run creates files"
bench scaling -n 1,2,4 --repeat 2 --steps 6 --warmup 2 --out s -- "${train[@]}" >out 2>err || bad "scaling: $(cat err)"
grep -q "^\[6/6\] " err || bad "no progress: $(cat err)"
grep -q "Time of a step in %" out || bad "no waterfall: $(cat out)"
python3 - <<'PY' || bad "scaling_report.json"
import json, pathlib
r = json.load(open("s/scaling_report.json"))
assert r["status"] == "ok" and list(r) == ["status", "protocol", "runs"], list(r)
p = r["protocol"]
assert list(p)[:4] == ["instance_type", "seq_len", "dataset_mode", "training_config"], list(p)
assert p["warmup_steps_excluded"] == 2 and p["scaling"] == "strong" and p["repeat"] == 2, p
assert list(r["runs"]) == ["1", "2", "4"], list(r["runs"])
for n, v in r["runs"].items():
    assert list(v)[:7] == ["metrics_paths", "mean_tokens_per_sec_global", "stdev_tokens_per_sec_global", "mean_epoch_wall_time_sec",
                           "stdev_epoch_wall_time_sec", "speedup_vs_1gpu", "scaling_efficiency"], list(v)
    assert len(v["metrics_paths"]) == 2
    tokens = []
    for path in v["metrics_paths"]:
        m = json.load(open(path))
        assert m["training_config"]["global_batch_size"] == 4 and m["training_config"]["grad_accum_steps"] == 4 // int(n)
        steps = [json.loads(l) for l in open(pathlib.Path(path).parent / "metrics.jsonl")][2:]
        tokens.append(sum(s["tokens"] for s in steps) / sum(s["step_time_sec"] for s in steps))
        assert (pathlib.Path(path).parent / "train.log").stat().st_size and not list(pathlib.Path(path).parent.glob("epoch-*"))
    for a, b in zip(tokens, v["tokens_per_sec_repeats"]): assert abs(a / b - 1) < 1e-9, (a, b)
    assert abs((tokens[0] * tokens[1]) ** 0.5 / v["tokens_per_sec"] - 1) < 1e-9
    if n != "1":
        f, x = v["waterfall"], v["over_one_worker"]
        assert abs(x["ratio"] / v["speedup_vs_mean"] - 1) < 1e-12 and x["pairs"] == 2 and x["test"] == "paired" and x["p_holm"] >= x["p"], x
        assert abs(sum(f.values()) - 1) < 1e-9 and f["useful"] == v["efficiency_vs_mean"], f
        assert {"compute_slowdown", "exposed_communication", "pipeline_bubble", "stragglers", "input", "other"} <= set(f), f
PY
expect 0 "Verification passed." "$LOCKSTEP" report verify --dir s
expect 2 "exists; add --resume" bench scaling -n 1,2,4 --repeat 2 --steps 6 --warmup 2 --out s -- "${train[@]}"
expect 0 "\[2/6\] 2gpu_ddp run_1  exists" bench scaling -n 1,2,4 --repeat 2 --steps 6 --warmup 2 --out s --resume -- "${train[@]}"
expect 2 "another command" bench scaling -n 1,2,4 --repeat 2 --steps 7 --warmup 2 --out s --resume -- "${train[@]}"
expect 0 "\"scaling\": \"weak\"" bench scaling -n 1,2 --repeat 1 --steps 5 --warmup 1 --weak --out weak --json -- "${train[@]}"
grep -q '"status": "ok"' weak/scaling_report.json || bad "weak: $(head -c 300 weak/scaling_report.json)"

# --- stop and resume ---
"$LOCKSTEP" bench scaling -n 1,2 --repeat 2 --steps 60 --warmup 2 --out stop -- "${train[@]}" >out 2>err &
pid=$!
await $pid grep -q "^\[1/4\]" err || bad "the first of 4 runs did not end: $(cat err)"
kill -INT $pid
wait $pid
code=$?
[ $code = 143 ] || bad "stopped: exit code $code: $(cat err)"
grep -q "stopped by SIGINT.*runs are finished and kept in stop.*--resume" err || bad "stopped: $(cat err)"
[ -e stop/1gpu_single/run_1/RUN_COMPLETE.txt ] || bad "the finished run was removed"
expect 0 "run_1  exists" bench scaling -n 1,2 --repeat 2 --steps 60 --warmup 2 --out stop --resume -- "${train[@]}"

# --- strategies ---
bench strategies -n 1,2 --repeat 2 --steps 5 --warmup 1 --layouts ddp,zero3,pp-1f1b,ddp+pp2 --out t -- "${train[@]}" --global_batch_size 4 >out 2>err ||
  bad "strategies: $(cat err)"
grep -q "skipped: 2cpu_ddp+pp2: ddp needs at least two replicas" err || bad "a layout that does not fit is not reported: $(cat err)"
python3 - <<'PY' || bad "strategies_report.json"
import json
r = json.load(open("t/strategies_report.json"))
assert r["status"] == "ok" and sorted(s["setting"] for s in r["settings"]) == ["ddp", "pp (1f1b)", "single", "zero3"] and r["settings"][0]["workers"] == 1, r["settings"]
assert r["left_out"][0]["setting"] == "2cpu_ddp+pp2"
for s in r["settings"]:
    for k in ("communication_overhead", "tokens_per_sec", "training_time_sec", "cpu_utilisation", "peak_memory_bytes", "speedup", "scaling_efficiency"):
        assert s[k]["mean"] is not None and (s[k]["half95"] is not None or s["workers"] == 1), (s["setting"], k, s[k])
assert next(s for s in r["settings"] if s["setting"] == "pp (1f1b)")["pipeline_bubble"]["mean"] > 0
speeds = [s["tokens_per_sec"]["mean"] for s in r["settings"][1:]]
assert speeds == sorted(speeds, reverse=True), speeds
PY
# the same runs give the same ratio, interval and p in strategies, ab and report; only the correction may change the verdict
for s in ddp zero3; do bench ab --warmup 1 --json t/1cpu_single t/2cpu_$s >ab_$s 2>err || bad "ab of strategies: $(cat err)"; done
"$LOCKSTEP" report t --no_png --out t/report --json >reported 2>err || bad "report of strategies: $(cat err)"
python3 - <<'PY' || bad "strategies, ab and report differ"
import json
rows = json.load(open("reported"))["parts"][0]["settings"]
for name in "ddp", "zero3":
    d = json.load(open(f"ab_{name}"))["difference"]
    a, b = (next(s for s in x if s["setting"] == name)["over_one_worker"] for x in (json.load(open("t/strategies_report.json"))["settings"], rows))
    assert a == b and a["test"] == d["test"] == "paired" and a["pairs"] == d["pairs"] == 2, (a, b, d)
    for key, own in (("ratio", 1 + d["change"]), ("low95", 1 + d["low95"]), ("high95", 1 + d["high95"]), ("p", d["p"])):
        assert abs(a[key] - own) < 1e-9 * own, (key, a, d)
    assert a["p_holm"] >= a["p"] and (a["p_holm"] < 0.05 and a["p"] < 0.01) == (a["result"] != "no difference shown"), a
    page = open("t/report/report.md").read()
    assert f"| {name} × 2 | single × 1 | 2 | {a['ratio']:.3f} | {a['low95']:.3f} to {a['high95']:.3f} | {a['p']:.2g} |" in page, (a, page[:3000])
    assert "corrected by Holm for all pairs of settings, below 5 % (4 settings, 6 pairs)" in page
PY

# --- ab: finds a setting with many times the work; counters explain the difference ---
bench ab -n 1 --repeat 4 --steps 30 --warmup 5 --by median --a "--vocab_size 256" --b "--vocab_size 40000" --out ab -- "${train[@]}" --threads 1 >out 2>err ||
  bad "ab: $(cat err)"
grep -q "^B compared with A: worse" out || bad "a vocabulary of 40000 is not slower than one of 256: $(cat out)"
grep -q "^What changed: " out || bad "ab does not report the reason: $(cat out)"
[ "$(sed -n 's/^\[[0-9]*\/8\] 1cpu_\([ab]\).*/\1/p' err | tr -d '\n')" = abbaabba ] || bad "not in turns: $(cat err)"
bench ab -n 2 --repeat 2 --steps 5 --warmup 1 --a "--bucket 1000" --b "" --out ab2 --json -- "${train[@]}" >out 2>err || bad "ab buckets: $(cat err)"
python3 - <<'PY' || bad "ab_report.json"
import json
r = json.load(open("ab2/ab_report.json"))
m = r["mechanism"]
assert r["status"] == "ok" and r["verdict"] in ("better", "worse", "no difference shown") and r["same_losses"] is True, r
assert m["collective_calls_per_step"]["a"] > m["collective_calls_per_step"]["b"] > 0
assert m["bytes_moved_per_step"]["a"] == m["bytes_moved_per_step"]["b"]
assert json.load(open("ab2/ab_report.json")) == json.load(open("out"))
PY
expect 0 "B compared with A.*, paired test" bench ab --warmup 1 ab2/2cpu_a ab2/2cpu_b # in turns, by ab2/ab_report.json
cp -r ab2/2cpu_b moved
sed -i 's/"timestamp_utc": "[^"]*"/"timestamp_utc": "2026-01-28T01:23:44Z"/' moved/run_*/training_metrics.json
expect 0 "B compared with A.*, unpaired (Welch) test" bench ab --warmup 1 ab2/2cpu_a moved
# precisions that --a or --b names are what is compared, also by the report of the folders; others are refused before a run
bench ab -n 1 --repeat 2 --steps 3 --warmup 1 --a "--precision fp32" --b "--precision bf16" --out ab5 -- --device cpu "${train[@]}" >out 2>err || bad "ab of precisions: $(cat err)"
grep -q "^Precisions are compared: A fp32, B bf16_mixed.$" out || bad "ab of precisions: $(cat out)"
if "$LOCKSTEP" doctor --json | grep -q "no bf16 instructions"; then
    grep -q "^Settings that differ: .*emulated (A: not set; B: bf16)" out || bad "bf16 is emulated, and ab does not list it: $(cat out)"
fi
expect 0 "^Precisions are compared: A fp32, B bf16_mixed.$" bench ab --warmup 1 ab5/1cpu_a ab5/1cpu_b
expect 0 "\(between A and B\|^B is \).* %, p = [0-9].*, 2 pairs)" "$LOCKSTEP" report ab5 --out ab5/report --no_png
python3 -c 'import json, sys; r = [json.load(open(f"{d}/ab_report.json")) for d in ("ab2", "ab5")]; sys.exit([(x["status"], x["compared"]) for x in r] != [("ok", []), ("ok", ["precision"])])' ||
  bad "compared in ab_report.json"
cp -r ab5 ab6 && rm ab6/ab_report.json
expect 1 'not comparable: .* precision is "bf16_mixed", but .* has "fp32"' bench ab --warmup 1 ab6/1cpu_a ab6/1cpu_b
expect 1 "invalid comparison" bench ab --warmup 1 ab6/1cpu_a ab6/1cpu_b
# so is what the options make different
ab7=(bench ab -n 1 --repeat 1 --steps 3 --warmup 1 --out ab7 --a "")
expect 2 "A would have --num_layers 2 and B 1, so they are not comparable; give both the same --num_layers" "${ab7[@]}" --b "--num_layers 1 --precision bf16" -- --device cpu "${train[@]}"
expect 2 "A would have --seq_length 16 and B 8" "${ab7[@]}" --b "--seq_length 8" -- --device cpu "${train[@]}"
expect 2 "A would have --global_batch_size 1 and B 2" "${ab7[@]}" --b "--grad_accum_steps 2" -- --device cpu "${train[@]}"
expect 2 "A would train on train and B on val" "${ab7[@]}" --b "--train_data_path d/val.bin" -- --device cpu "${train[@]:2}" --train_data_path d/train.bin
[ ! -e ab7 ] || bad "there are runs of a comparison that is refused"
echo '{"bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": 1}' >bf16.json
expect 2 "A would train in fp32 and B in bf16, so they are not comparable; to compare precisions, add --precision" \
  bench ab -n 1 --a "" --b "--deepspeed_config bf16.json" --out ab8 -- --device cpu "${train[@]}"
[ ! -e ab8 ] || bad "there are runs of a comparison that is refused"

# --- ceilings ---
bench comm -n 2 --min 1K --max 64K --rounds 2 --json >out 2>err || bad "comm: $(cat err)"
python3 - <<'PY' || bad "comm: $(head -c 300 out)"
import json
r = json.load(open("out"))
kinds = {x["collective"] for x in r["rows"]}
assert kinds == {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "send", "barrier"}, kinds
for x in r["rows"]:
    assert x["wrong"] == 0 and x["time_sec"] > 0
    factor = {"all_reduce": 1.0, "reduce_scatter": 0.5, "all_gather": 0.5, "barrier": 0}.get(x["collective"], 1.0)
    assert abs(x["busbw_bytes_per_sec"] - factor * x["algbw_bytes_per_sec"]) <= 1e-6 * x["algbw_bytes_per_sec"], x
PY
expect 0 "send " bench comm -n 3 --max 4K --rounds 2
expect 0 "sendrecv " bench comm -n 3 --max 4K --rounds 2 --collectives sendrecv
expect 2 "add --device cuda" bench comm -n 2 --comm nccl --max 1K
expect 2 "were started with local" bench comm -n 2 --comm mpi --max 1K
expect 2 "on the CPU, sums are always deterministic" bench comm -n 2 --deterministic --max 1K
expect 0 "all products of a step" bench gemm --batch 1 --seq 8 --width 64 --layers 1 --vocab 100 --chunk 8 --turns 2
"$LOCKSTEP" bench gemm --batch 3 --seq 7 --width 16 --layers 1 --vocab 70 --chunk 8 --turns 1 --threads 1 --json >chunks.json || bad "bench gemm --chunk 8"
python3 - <<'PY' || bad "the last rows of the classifier are not those that are left"
import json
rows = {}
for r in json.load(open("chunks.json"))["rows"]:
    if r["product"].startswith("logits"):
        rows.setdefault(r["product"], []).append((r["k"] if r["product"] == "logits dw" else r["m"], r["calls"]))
assert rows == {w: [(8, 2), (5, 1)] for w in ("logits", "logits dx", "logits dw")}, rows
PY
# a busy machine is noted (loops of this test keep it so meanwhile); between the limits, the load may have changed
small_gemm=(bench gemm --batch 1 --seq 8 --width 64 --layers 1 --vocab 100 --turns 1)
case $(python3 -c 'import os; x = os.getloadavg()[0] / len(os.sched_getaffinity(0)); print("busy" if x > 0.7 else "idle" if x < 0.3 else "")') in
  busy)
    loops=()
    for _ in $(seq $(($(nproc) + 1))); do
      (while :; do :; done) &
      loops+=($!)
    done
    expect 0 "^note: the machine is busy (load [0-9.]* on [0-9]* cores*); expect lower speeds; --cpu_time --threads 1 counts" "${small_gemm[@]}"
    kill "${loops[@]}"
    ;;
  idle) "$LOCKSTEP" "${small_gemm[@]}" 2>&1 | grep "^note" && bad "an idle machine is busy" ;;
esac
expect 0 "OpenBLAS" bench gemm --help
expect 2 "kernel 'nothing' is not available" bench gemm --kernels nothing
expect 2 "--kernels plain is for fp32, but --precision is bf16; leave --precision out" bench gemm --kernels plain --precision bf16
expect 2 "--kernels has plain twice; leave one out" bench gemm --kernels plain blas-own plain
expect 2 "LS_GEMM=abacus names no kernel: this CPU has .*plain.* for fp32 and .*-emulated.* for bf16; unset it" env LS_GEMM=abacus "$LOCKSTEP" bench gemm --device cpu
expect 2 "that kernel is for --precision bf16" env LS_GEMM=bfmmla-emulated "$LOCKSTEP" bench gemm --device cpu --precision fp32
small=(--seq 8 --width 16 --layers 1 --vocab 7 --turns 1 --threads 1)
expect 0 "plain (fp32) *best .* blas-own (fp32) *best " bash -c 'LS_GEMM=plain "$0" bench gemm --batch 1 "$@" | tr "\n" " "' "$LOCKSTEP" "${small[@]}"
expect 0 "plain (fp32) *best " env LS_GEMM=abacus "$LOCKSTEP" bench gemm --batch 1 "${small[@]}" --kernels plain
expect 0 "kernels to compare, whatever LS_GEMM names" bench gemm --help
for k in "" "--kernels plain"; do
  # shellcheck disable=SC2086
  expect 2 "is 1152921504606846976 rows: must be at most 2147483647" bench gemm "${small[@]}" --batch 1073741824 --seq 1073741824 $k
done
expect 2 "rows: must be at most 2147483647" bench gemm "${small[@]}" --batch 2147483647 --seq 2147483647
expect 2 "--width 536870912: must be at most 536870911" bench gemm "${small[@]}" --batch 1 --width 536870912
expect 5 "the matrices of qkv fwd need 22020095.9 TiB, but .* are available; use smaller sizes" bench gemm "${small[@]}" --batch 2147483647 --seq 1 --width 536870911
# the type of each kernel's operands; the unit of the peak, where it is known
bench gemm "${small[@]}" --batch 1 --precision bf16 >out 2>err || bad "gemm in bf16: $(cat err)"
grep -q '^GFLOP/s .* (bf16)   median .* (fp32)   median  blas-own (fp32)   median$' out || bad "gemm in bf16: $(cat out)"
grep -q "instruction's peak" out && ! grep -q "of the instruction's peak ([0-9.]* GFLOP/s)" out && bad "the peak has no unit: $(cat out)"
bench gemm "${small[@]}" --batch 1 --precision bf16 --json >out 2>err || bad "gemm in bf16: $(cat err)"
python3 - <<'PY' || bad "gemm in bf16: $(head -c 600 out)"
import json
for row in json.load(open("out"))["rows"]:
    assert [v["precision"] for v in row.values() if isinstance(v, dict)] == ["bf16", "fp32", "fp32"], row
PY
if [ -e "$LS_BUILD/emu/lockstep_cuda.so" ]; then # an emulated device
  export LS_PLUGIN_DIR=$LS_BUILD/emu
  expect 2 "rows: must be at most 2147483647" bench gemm --device cuda --batch 1073741824 --seq 1073741824
  expect 5 "cannot allocate .* for qkv fwd" bench gemm --device cuda --batch 2147483647 --seq 1 --width 536870911
  expect 0 "alone (fp16) .* step (fp16) " bench gemm --device cuda --precision fp16 --batch 1 --seq 8 --width 16 --layers 1 --vocab 70 --turns 2
  expect 0 "x the time of alone" bench gemm --device cuda --batch 1 --seq 16 --width 32 --layers 1 --vocab 100 --turns 2
  expect 0 '"device": "cuda: ' bench gemm --device cuda --precision fp16 --batch 1 --seq 8 --width 16 --layers 1 --vocab 70 --turns 2 --json
  expect 2 "are only for the CPU" bench gemm --device cuda --threads 2

  # collectives on device memory: the columns of nccl-tests
  bench comm -n 2 --device cuda --min 64 --max 4K --factor 8 --rounds 2 >out 2>err || bad "comm on a device: $(cat err)"
  python3 - <<'PY' || bad "comm on a device: $(head -c 400 out)"
text = open("out").read()
assert "# GPUs communicate through host memory" in text and "#  Rank  1 on " in text, text
tables = text.split("# Avg bus bandwidth    : ")
assert len(tables) == 7 and all(float(t.split()[0]) > 0 for t in tables[1:]), len(tables)
sizes = {"all_reduce": (16, "sum", "-1"), "reduce_scatter": (8, "sum", "-1"), "all_gather": (8, "none", "-1"),
         "broadcast": (16, "none", "0"), "reduce": (16, "sum", "0"), "sendrecv": (16, "none", "-1")}
for name, t in zip(sizes, tables):
    assert f"# {name}\n" in t and "# Out of bounds values : 0 OK\n" in t, t
    head, = [l for l in t.splitlines() if "#wrong" in l]
    assert head.split() == "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong".split(), head
    rows = [l.split() for l in t.splitlines() if l.startswith("   ")]
    assert [r[0] for r in rows] == ["64", "512", "4096"] and all(len(r) == 13 for r in rows), rows
    count, redop, root = sizes[name]
    assert rows[0][1:5] == [str(count), "float", redop, root], rows[0]
    both = {"reduce_scatter": (True, True), "all_gather": (True, True), "sendrecv": (True, False)}.get(name, (False, True))
    for r in rows:
        for measured, side in zip(both, (r[5:9], r[9:13])):
            assert (float(side[0]) > 0 and side[3] == "0") if measured else side == ["N/A"] * 4, (name, r)
PY
  bench comm -n 3 --device cuda:0 --comm local --collectives all_gather,sendrecv,send --min 100 --max 100 --rounds 1 --json >out 2>err ||
    bad "comm --json on a device: $(cat err)"
  python3 - <<'PY' || bad "comm --json on a device: $(head -c 400 out)"
import json
r = json.load(open("out"))
assert r["device"] == "cuda" and r["backend"] == "local, staged" and r["library"] is None and len(r["devices"]) == 3, r
gather, around, send = r["rows"]
assert gather["bytes"] == 108 and gather["count"] == 9 and gather["in_place"]["wrong"] == 0 and gather["redop"] == "none"
assert gather["time_sec"] == gather["out_of_place"]["time_sec"] > 0
assert around["collective"] == "sendrecv" and around["in_place"] is None and around["out_of_place"]["busbw_bytes_per_sec"] > 0
assert send["collective"] == "send"
PY
  expect 2 "lockstep_nccl.so does not exist" bench comm -n 2 --device cuda --comm nccl --max 1K --rounds 1
  expect 2 "were started with local" bench comm -n 2 --device cuda --comm mpi --max 1K --rounds 1
  expect 2 "barrier cannot be measured with --device" bench comm -n 2 --device cuda --collectives barrier --max 1K --rounds 1
  expect 2 "CUDA device 7 does not exist" bench comm -n 2 --device cuda:7 --max 1K --rounds 1
  unset LS_PLUGIN_DIR
fi

# --- refusals ---
expect 2 "train options are missing; add them after --" bench scaling
expect 2 "^lockstep: bad usage: --gpus 1,x: must be" bench scaling --gpus 1,x
expect 2 "give -n to bench instead" bench scaling -- "${train[@]}" -n 2
expect 2 "is not a layout" bench scaling --layout zero9 -- "${train[@]}"
expect 2 "not a multiple of micro-batch size" bench scaling -n 1,2 --dry_run -- "${train[@]}" --global_batch_size 3
expect 2 "leaves no steps to measure of --steps" bench scaling --steps 3 --warmup 3 -- "${train[@]}"
expect 2 "did you mean scaling" bench scalin
expect 2 "needs --a" bench ab --a "" -- "${train[@]}"
expect 3 "no run" bench scaling d
expect 0 "usage: lockstep bench" bench --help
for b in scaling strategies ab comm gemm; do expect 0 "usage: lockstep bench $b" bench $b --help; done

# --- metrics files in the format of the ZeRO scaling study (docs/REFERENCES.md) ---
made=$SCRATCH/reference
python3 "$LS_SOURCE/tests/support/reference_runs.py" "$made"
# its baseline is PyTorch and the others are DeepSpeed's: a table with the difference of precision marked
expect 0 "mismatch_allowed: precision is fp16_torch_amp on one worker and fp16_deepspeed on several, so speed-ups include this difference" bench scaling "$made"/{1,2,4}gpu.json
grep -q "^zero1  *4  *1 .* 3.400 " "$SCRATCH/out" || bad "no table: $(cat "$SCRATCH/out")"
sed 's/"precision": "fp16_deepspeed"/"precision": "fp32"/' "$made/4gpu.json" >"$made/4fp32.json"
expect 0 "precision is fp16_torch_amp on one worker" "$LOCKSTEP" report "$made"/{1,2,4}gpu.json --no_png --out r1page
sed -i 's/"seq_len": 512/"seq_len": 256/' "$made/4fp32.json"
bench scaling --json "$made"/{1,2}gpu.json "$made/4fp32.json" >refused 2>/dev/null
bench scaling --json "$made"/{1,2,4}gpu.json >out 2>/dev/null
bench scaling --json --allow_mismatch "$made"/{1,2,4}gpu.json >allowed 2>/dev/null || bad "allowed mismatches fail"
bench scaling --json --allow_mismatch "$made/repeat" >repeat 2>/dev/null || bad "repeat"
python3 - "$made" <<'PY' || bad "numbers of files in the format of the scaling study"
import json, sys
out, allowed, repeat, refused, want = (json.load(open(f)) for f in ("out", "allowed", "repeat", "refused", sys.argv[1] + "/expected.json"))
differs = {"field": "precision", "baseline": "fp16_torch_amp", "mismatch": "fp16_deepspeed"}
assert out == allowed and out["mismatches"] == [differs] * 2, out
assert list(refused) == ["status", "mismatches"] and refused["status"] == "invalid_comparison", refused
assert allowed["status"] == repeat["status"] == "mismatch_allowed"
for n in "24":
    speedup = want["once"][n][1] / want["once"]["1"][1]
    assert [allowed["runs"][n][k] for k in ("speedup_vs_1gpu", "scaling_efficiency")] == [speedup, speedup / int(n)], n
for n, row in want["repeat"].items():
    for k, v in row.items(): assert abs(repeat["runs"][n][k] - v) <= 1e-12 * v, (n, k, repeat["runs"][n][k], v)
assert repeat["mismatches"] == [differs] * 6, repeat["mismatches"] # three runs each of 2 and 4 GPUs
PY
# run folders without steps: compared by whole epochs, with the weaker claim; profiled runs and unequal steps are refused
bench ab "$made"/study/{base,bucket} >out 2>err || bad "ab of folders of the scaling study: $(cat err)"
grep -q "^B compared with A: no difference shown: +19.66 % tokens/s in one pair, which has no interval" out || bad "one pair: $(cat out)"
grep -q "^Weaker claim: .*speeds are those of whole epochs" out && grep -q "sampled micro-batches have no update" out || bad "the claim: $(cat out)"
grep -q "^sampled micro-batches: p95, ms  *78.000  *64.000" out && grep -q "not recorded" out || bad "what the folders have: $(cat out)"
expect 3 "bucket_nsys80: it was profiled, so it is no benchmark" bench ab "$made"/study/{base,bucket_nsys80}
bench ab --json "$made"/study/{base,bucket} >json 2>err
python3 -c 'import json, sys; m = json.load(open("json"))["mechanism"]; sys.exit([k for k in m if "collective" in k or "bytes_moved" in k] or 0)' || bad "collectives that nobody recorded: $(cat json)"
expect 2 "base has no metrics.jsonl" bench ab --by median "$made"/study/{base,bucket}
expect 0 "No winner is shown" bench scaling "$made/study"
grep -q "not compared: .*/bucket_nsys80 was profiled" err && ! grep -q profiled "$SCRATCH/out" || bad "a profiled run in bench scaling: $(cat "$SCRATCH/out")"
python3 - "$made" <<'PY'
import json, pathlib, sys
made = pathlib.Path(sys.argv[1])
for side, rates in (("A", (100, 101, 99, 102)), ("B", (121, 119, 120, 122))):
    for k, rate in enumerate(rates, 1):
        r = json.load(open(made / "study/base/training_metrics.json"))
        r["git_commit"] = side * 40
        r["hardware"]["gpu_name"], r["host"]["hostname"] = ("V100", "h1") if side == "A" else ("A100", f"h{1 + k % 2}")
        r["summary"]["mean_tokens_per_sec_global"] = r["epochs"][0]["tokens_per_sec_global"] = rate
        (made / side / f"run_{k}").mkdir(parents=True, exist_ok=True)
        (made / side / f"run_{k}/training_metrics.json").write_text(json.dumps(r))
r["epochs"][0]["optimizer_steps"] = 75
(made / "short").mkdir()
(made / "short/training_metrics.json").write_text(json.dumps(r))
PY
bench ab --json "$made"/{A,B} >json 2>err || bad "ab of repeats of the scaling study: $(cat err)"
python3 - <<'PY' || bad "ab of repeats of the scaling study: $(cat json)"
import json
r = json.load(open("json"))
assert r["verdict"] == "better" and r["difference"]["pairs"] == 4 and r["difference"]["test"] == "welch" and r["same_losses"] is None, r
assert r["protocol"]["tokens_per_sec_of"] == "whole epochs" and "several commits" in r["protocol"]["claim"], r["protocol"]
assert r["mechanism"]["sampled_p95_sec"]["a"] == 0.078, r["mechanism"]
d = r["different_settings"]
assert d["gpu"] == {"a": ["V100"], "b": ["A100"]} and d["host"]["a"] == ["h1"] and sorted(d["host"]["b"]) == ["h1", "h2"], d
assert sorted(d) == ["commit", "gpu", "host"], d
PY
bench ab "$made"/{A,B} >out 2>err || bad "ab of repeats of the scaling study: $(cat err)"
grep -q "unpaired (Welch) test, 4 runs of each, of whole epochs)" out && grep -q "were not made in turns" out && grep -q "gpu (A: V100; B: A100)" out && grep -q "different machines: the difference may come" out || bad "what differs: $(cat out)"
# runs with overlapping intervals: no order of numbers makes a difference of them; with timestamps that alternate they are pairs
python3 - "$made" <<'PY'
import json, pathlib, sys
made = pathlib.Path(sys.argv[1])
r = json.load(open(made / "study/base/training_metrics.json"))
for name, order in (("turns", ((0, 1), (3, 2), (4, 5))), ("later", ((0, 3), (1, 4), (2, 5)))):
    for side in 0, 1:
        for k, rate in enumerate(((30000, 20000, 40000), (30610, 20400, 40790))[side]):
            r["timestamp_utc"] = f"2026-01-28T01:0{order[k][side]}:00Z"
            r["summary"]["mean_tokens_per_sec_global"] = r["epochs"][0]["tokens_per_sec_global"] = rate
            (made / name / "AB"[side] / f"run_{k}").mkdir(parents=True, exist_ok=True)
            (made / name / "AB"[side] / f"run_{k}/training_metrics.json").write_text(json.dumps(r))
PY
expect 0 "^B compared with A: no difference shown: +2.00 .* unpaired (Welch) test, 3 runs of each" bench ab "$made"/later/{A,B}
expect 0 "^B compared with A: better: +2.00 .* paired test, 3 pairs" bench ab "$made"/turns/{A,B}
! grep -q "no part of a step\|mean step" out || bad "parts that are not known: $(cat out)"
expect 0 "^mismatch_allowed: the runs are not comparable" bench scaling --allow_mismatch "$made"/{1,2}gpu.json "$made/4fp32.json"
expect 1 "optimizer_steps is 75, but .* has 150" bench ab "$made"/study/base "$made/short"
expect 1 "optimizer_steps is 75, but .* has 150" bench scaling "$made"/study/base "$made/short"
done_tests
