#!/usr/bin/env bash
# plan_gpu.sh - checks `lockstep plan` on this GPU: measures it, predicts four runs, runs them, and compares.
# ls-bench: by name
#
#   perf/plan_gpu.sh [-b BOUND] [-s SECONDS] [-p PRESET] OUT_DIR
#
#   -b  maximum difference in percent [10]
#   -s  seconds of each run, after its start [6]; each of three measurements takes about 1.5 times as long
#   -p  preset to compare, too [by the name of the GPU; none: -]
#
# Cases, one worker, bf16, dropout 0, --no_deterministic (DETERMINISTIC=1: without it):
#   b64  gpt2 64 x 1024      b16  gpt2 16 x 512      4x4  gpt2 4 x 4 x 512      xl  gpt2-xl 8 x 1024
#
# Every case is predicted by a cluster file that `plan --measure --device cuda` writes here, by the rates of that file alone (of the first
# case's: what a preset of this GPU would have), and by the preset. Then it runs for its time; steps after the first 2 s count. Prints
# one line per case: predictions, measurement, differences, and whether planned and allocated bytes are equal. Exit code 1 if a
# difference of file or preset is above the bound, bytes differ or a case fails.
# OUT_DIR: cluster files, logs, results.json. About 130 s on an H200.
#
# Environment: LOCKSTEP [build/lockstep]; DEVICE cuda, or emu: the emulated device with tiny sizes, to test this script without bounds.
set -u
here=$(cd "$(dirname "$0")/.." && pwd)
export LOCKSTEP=${LOCKSTEP:-$here/build/lockstep} DEVICE=${DEVICE:-cuda} DETERMINISTIC=${DETERMINISTIC:-}
bound=10 seconds=6 preset=""
while getopts b:s:p: o; do
  case $o in
    b) bound=$OPTARG ;; s) seconds=$OPTARG ;; p) preset=$OPTARG ;;
    *) sed -n 2,20p "$0"; exit 2 ;;
  esac
done
shift $((OPTIND - 1))
out=${1:?"OUT_DIR is missing"}
mkdir -p "$out" || exit 2
if [ "$DEVICE" = emu ]; then
  export LS_PLUGIN_DIR=${LS_PLUGIN_DIR:-$(dirname "$LOCKSTEP")/emu} LS_GEMM_TUNE=0
fi
exec python3 - "$out" "$bound" "$seconds" "$preset" <<'P'
import json, os, re, shutil, subprocess, sys, time

out, bound, seconds, preset = sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
lockstep, emu = os.environ["LOCKSTEP"], os.environ["DEVICE"] == "emu"
loose = [] if os.environ["DETERMINISTIC"] else ["--no_deterministic"]
begin = time.time()
#        case    model      T  micro  accumulation
CASES = [("b64", "gpt2", 1024, 64, 1), ("b16", "gpt2", 512, 16, 1), ("4x4", "gpt2", 512, 4, 4), ("xl", "gpt2-xl", 1024, 8, 1)]
if emu:
    CASES = [("b2", "tiny", 16, 2, 1), ("1x2", "tiny", 16, 1, 2)]


def run(name, args, limit):
    """stdout of a command; its whole output goes to OUT_DIR/NAME.log"""
    p = subprocess.run([lockstep, *map(str, args)], capture_output=True, text=True, timeout=limit)
    with open(f"{out}/{name}.log", "w") as f:
        f.write(p.stdout + p.stderr)
    if p.returncode:
        sys.exit(f"{name}: exit code {p.returncode}: {p.stderr.strip().splitlines()[:1]}; see {out}/{name}.log")
    return p.stdout


def write_ids(path, n):
    """n random ids below 50176 (tiny: 256), as train reads them"""
    b = bytearray(os.urandom(2 * n))
    b[1::2] = bytes(n) if emu else b[1::2].translate(bytes(i * 196 // 256 for i in range(256)))
    with open(path, "wb") as f:
        f.write(b)


def measure(model, T, micros):
    """a cluster file for these shapes"""
    path = f"{out}/cluster-{model}-{T}.json"
    run(f"measure-{model}-{T}", ["plan", "--measure", "--device", "cuda", "--precision", "bf16", "--dropout", 0, "--model", model, "--seq_length", T,
                                 "--micro", *micros, "--measure_workers", 1, "--seconds", 1.5 * seconds, *loose, "--out", path], 60 + 10 * seconds)
    return path


def predict(name, cluster, model, T, B, M):
    text = run(name, ["plan", "--cluster", cluster, "--workers", 1, "--model", model, "--seq_length", T, "--global_batch", B * M, "--dropout", 0,
                      "--precision", "bf16", *loose, "--all", "--json"], 60)
    return next(l for l in json.loads(text)["layouts"] if l["micro_batch"] == B)


def steps_of(path):
    rows = []
    if os.path.exists(path):
        for line in open(path):
            try:
                rows.append(json.loads(line))
            except ValueError:
                break  # a line that is being written
    return rows


def train(case, model, T, B, M):
    """(tokens/s, bytes allocated, steps): runs until its time is over, and is then killed, so that it writes no checkpoint"""
    folder, log = f"{out}/run-{case}", f"{out}/run-{case}.log"
    shutil.rmtree(folder, ignore_errors=True)
    with open(log, "w") as f:
        p = subprocess.Popen([lockstep, "train", "--train_data_path", f"{out}/train.bin", "--model", model, "--seq_length", str(T),
                              "--micro_batch_size_per_gpu", str(B), "--grad_accum_steps", str(M), "--device", "cuda", "--precision", "bf16",
                              "--dropout", "0", "--epochs", "1", "--verbose", "--checkpoint_path", folder, *loose], stdout=f, stderr=subprocess.STDOUT)
    metrics, until = f"{folder}/metrics.jsonl", None
    limit = time.time() + 90 + seconds
    try:
        while p.poll() is None and time.time() < limit and (not until or time.time() < until):
            time.sleep(0.05)
            if not until and len(steps_of(metrics)) >= (1 if emu else 5):  # libraries have chosen, passes are recorded
                until = time.time() + 2 + seconds
    finally:
        if p.poll() is None:
            p.kill()
        p.wait()
    rows = steps_of(metrics)
    first = rows[0]["time_unix_ms"] if rows else 0
    counted = [r for r in rows[1:] if emu or r["time_unix_ms"] > first + 2000]
    allocated = re.search(r"one allocation of (\d+) bytes", open(log).read())
    if len(counted) < 3 - 2 * emu or not allocated:
        sys.exit(f"{case}: {len(counted)} steps that count; see {log}")
    shutil.rmtree(folder, ignore_errors=True)
    if emu:
        return counted[0]["tokens"] / counted[0]["step_time_sec"], int(allocated.group(1)), len(counted)
    span = (counted[-1]["time_unix_ms"] - counted[0]["time_unix_ms"]) / 1e3  # with all that lies between steps
    return sum(r["tokens"] for r in counted[1:]) / span, int(allocated.group(1)), len(counted) - 1


write_ids(f"{out}/train.bin", 20_000 if emu else 24_000_000)
clusters = {}
for model, T in dict.fromkeys((c[1], c[2]) for c in CASES):
    clusters[model, T] = measure(model, T, sorted({c[3] for c in CASES if (c[1], c[2]) == (model, T)}))
first = json.load(open(clusters[CASES[0][1], CASES[0][2]]))
source, rates = first["source"], f"{out}/rates.json"
rate = first["rates"]["bf16"]
with open(rates, "w") as f:
    json.dump({k: v for k, v in first.items() if k not in ("units", "passes", "collectives")}, f, indent=1)
if not preset:
    preset = next((p for p in ("v100", "a100", "h100", "h200", "b200") if p.upper() in source), "-")
print(source, f"\nproducts {rate['matmul_flops'] / 1e12:.4g} TFLOP/s, attention {rate['attention_flops'] / 1e12:.4g}, memory {first['memory_bandwidth'] / 1e12:.4g} TB/s, "
      f"a unit {1e6 * first['unit_overhead']:.3g} us, between steps {1e3 * first['step_overhead']:.3g} ms"
      f"\npreset: {preset}; measured in {time.time() - begin:.0f} s\n", flush=True)
print(f"{'case':5} {'model':8} {'micro':>5} {'accum':>5} {'T':>5} {'by file':>10} {'by rates':>10} {'by preset':>10} {'measured':>10} tokens/s {'file':>8} {'rates':>8} {'preset':>8}  steps  memory")
bad, results = 0, []
for case, model, T, B, M in CASES:
    by_file = predict(f"predict-{case}", clusters[model, T], model, T, B, M)
    by_rates = predict(f"rates-{case}", rates, model, T, B, M)
    by_preset = predict(f"preset-{case}", preset, model, T, B, M) if preset != "-" else None
    rate, allocated, n = train(case, model, T, B, M)
    off = 100 * (by_file["tokens_per_sec"] / rate - 1)
    off_rates = 100 * (by_rates["tokens_per_sec"] / rate - 1)
    off_preset = 100 * (by_preset["tokens_per_sec"] / rate - 1) if by_preset else None
    equal = by_file["memory"]["planned"] == allocated
    wrong = abs(off) > bound or (off_preset is not None and abs(off_preset) > bound) or not equal
    bad += wrong and not emu
    results.append(dict(case=case, model=model, micro_batch=B, grad_accum=M, seq_length=T, predicted=by_file["tokens_per_sec"],
                        predicted_by_rates=by_rates["tokens_per_sec"], predicted_by_preset=by_preset and by_preset["tokens_per_sec"], measured=rate, steps=n, memory_planned=by_file["memory"]["planned"],
                        memory_allocated=allocated))
    memory = "equal" if equal else f"planned {by_file['memory']['planned']}, allocated {allocated}"
    show = lambda v, form: format(v, form) if v is not None else "-"
    print(f"{case:5} {model:8} {B:5} {M:5} {T:5} {by_file['tokens_per_sec']:10.0f} {by_rates['tokens_per_sec']:10.0f} {show(by_preset and by_preset['tokens_per_sec'], '.0f'):>10} {rate:10.0f}"
          f"          {off:+7.1f}% {off_rates:+7.1f}% {show(off_preset, '+.1f'):>7}%  {n:5}  {memory}"
          f"{'   <-- out of bounds' if wrong and not emu else ''}", flush=True)
json.dump({"source": source, "preset": preset, "bound_percent": bound, "cases": results}, open(f"{out}/results.json", "w"), indent=1)
os.remove(f"{out}/train.bin")
print(f"\n{len(results)} cases, {bad} out of bounds ({bound:g} %, memory equal); {time.time() - begin:.0f} s")
sys.exit(1 if bad else 0)
P
