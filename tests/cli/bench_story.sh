#!/usr/bin/env bash
# The guide's sequence: bench scaling, bench strategies, bench ab into one folder, then a report of the folder. Every benchmark has its own
# section, table, chart and verdict; runs of different benchmarks are not compared, and that is no failure.
. "$(dirname "$0")/../support/lib.sh"
cd "$SCRATCH" || exit 1
mkdir -p d && tokens d/train.bin 4000 && tokens d/val.bin 500 2
train=(--data d --model tiny --num_layers 2 --seq_length 16)
bench() { timeout 200 "$LOCKSTEP" bench "$@" >out 2>err || bad "bench $1: $(tail -n 3 err)"; }

bench scaling -n 1,2 --repeat 2 --steps 4 --warmup 1 --out runs/s -- "${train[@]}" --micro_batch_size_per_gpu 1
grep -q "^Next: *lockstep report runs/s --out runs/s/report" err || bad "scaling names no next command: $(cat err)"
bench strategies -n 1,2 --layouts ddp,zero2,pp-1f1b --repeat 1 --steps 4 --warmup 1 --out runs/t -- "${train[@]}" --micro_batch_size_per_gpu 2
grep -q "^4 settings x 1 run = 4 runs" err || bad "strategies does not print what will be run: $(cat err)"
grep -q "^\[4/4\] " err || bad "strategies shows no progress: $(cat err)"
bench ab -n 2 --repeat 2 --steps 4 --warmup 1 --a "--bucket 1e5" --b "--bucket 6e6" --out runs/ab -- "${train[@]}"
timeout 200 "$LOCKSTEP" train "${train[@]}" --max_steps 3 --max_val_steps 0 --checkpoint_path runs/mine >out 2>&1 || bad "train: $(tail -n 3 out)"

expect 0 "Wrote report/report.html (4 sections, 13 runs" "$LOCKSTEP" report runs --no_png --out report
for words in "^Scaling: runs/s" "^Strategies: runs/t" "^A and B: runs/ab" "between A and B\|than A:" "^Runs outside of a benchmark"; do
  grep -q -- "$words" "$SCRATCH/out" || bad "'$words' is not printed: $(cat "$SCRATCH/out")"
done
python3 - <<'PY' || bad "the report of several benchmarks"
import json, pathlib, re
page = pathlib.Path("report")
html, md = (page / "report.html").read_text(), (page / "report.md").read_text()
sections = re.findall(r"<section id=\"s\d+\">\s*<h2>(.*?)</h2>(.*?)</section>", html, re.S)
assert [s[0] for s in sections] == ["Overview", "A and B: runs/ab", "Scaling: runs/s", "Strategies: runs/t", "Runs outside of a benchmark"], [s[0] for s in sections]
for name, body in sections[1:]:  # its own chart, table, verdict and page
    assert "<svg" in body and "<table" in body and 'class="lead"' in body, name
    link = re.search(r'href="([^"]*)"', body).group(1)
    assert (page / link).is_file(), link
assert "invalid_comparison" not in html
for link in re.findall(r"\]\(([^)]*)\)", md): assert (page / link).is_file(), link
all = json.load(open(page / "benchmarks.json"))
by = {b["folder"]: b for b in all["benchmarks"]}
assert {k: (b["status"], b["runs"], b["settings"]) for k, b in by.items()} == {
    "runs/ab": ("ok", 4, 2), "runs/s": ("ok", 4, 2), "runs/t": ("ok", 4, 4), "runs outside of a benchmark": ("ok", 1, 1)}, by
assert by["runs/s"]["result_file"] == "scaling_report.json" and by["runs outside of a benchmark"]["result_file"] is None
# the numbers of a section are those of its benchmark: the paired difference, and the warm-up of one step
ab = json.load(open("runs/ab/ab_report.json"))["difference"]
assert f"{100 * ab['change']:+.1f} %" in by["runs/ab"]["verdict"], (ab, by["runs/ab"])
own, there = (json.load(open(p))["runs"]["2"]["tokens_per_sec"] for p in ("runs/s/scaling_report.json", "report/s/scaling_report.json"))
assert own == there, (own, there)
PY

# all runs together, as asked; a benchmark whose own runs differ; one that was stopped has no result file
expect 1 "global_batch_size differs" "$LOCKSTEP" report runs --together --no_png --out together
cp -r runs/s/1gpu_single/run_1 runs/t/1cpu_single/run_2
sed -i 's/"seq_len": 16/"seq_len": 32/' runs/t/1cpu_single/run_2/training_metrics.json
rm runs/s/scaling_report.json
expect 1 "invalid comparison" "$LOCKSTEP" report runs --no_png --out again
grep -q "^Benchmark: runs/s" "$SCRATCH/out" || bad "no section for a benchmark without a result: $(cat "$SCRATCH/out")"
grep -q '"status": "invalid_comparison"' again/benchmarks.json || bad "again: $(cat again/benchmarks.json)"
done_tests
