#!/usr/bin/env bash
# report and profile summarize: runs of 1, 2 and 4 workers give a page, pass the verifier and give the table. Files in the format of the scaling study
# (docs/REFERENCES.md) give its numbers; runs that are not comparable are refused, broken folders are named; rsvg-convert and a browser are optional.
. "$(dirname "$0")/../support/lib.sh"
out=$SCRATCH/report

# a pipe without a writer is not waited for
mkfifo "$SCRATCH/pipe"
expect 3 'pipe: not a regular file' timeout 60 "$LOCKSTEP" report "$SCRATCH/pipe" --out "$out"

# --- our own runs ---
mkdir -p "$SCRATCH/d" && tokens "$SCRATCH/d/train.bin" 8000 && tokens "$SCRATCH/d/val.bin" 1000 2
for n in 1 2 4; do
  run=$SCRATCH/runs/${n}gpu_x/run_1
  mkdir -p "$run"
  timeout 200 "$LOCKSTEP" train --data "$SCRATCH/d" --model tiny --seq_length 32 --micro_batch_size_per_gpu 1 --global_batch_size 4 \
    --epochs 1 --max_steps 12 --lr 1e-3 --reference_output --checkpoint_path "$run" -n $n >"$run/train.log" 2>"$run/stderr.log" || bad "$n workers: $(tail -2 "$run/stderr.log")"
done
expect 0 "Verification passed." "$LOCKSTEP" report verify --dir "$SCRATCH/runs"
[ "$(grep -c "	ok	" "$SCRATCH/out")" = 3 ] || bad "verify: $(cat "$SCRATCH/out")"
expect 0 "| 4 |" "$LOCKSTEP" report table --gpu1 "$SCRATCH"/runs/1gpu_x/run_1/training_metrics.json \
  --gpu2 "$SCRATCH"/runs/2gpu_x/run_1/training_metrics.json --gpu4 "$SCRATCH"/runs/4gpu_x/run_1/training_metrics.json
"$LOCKSTEP" report "$SCRATCH/runs" --out "$SCRATCH/page" >"$SCRATCH/printed" 2>&1 || bad "report: $(cat "$SCRATCH/printed")"
python3 - "$SCRATCH/page" <<'PY' || bad "the report of our runs"
import html.parser, json, pathlib, re, sys, xml.dom.minidom
page = pathlib.Path(sys.argv[1])
text = (page / "report.html").read_text()

class Check(html.parser.HTMLParser):  # every element is closed, in order
    void, stack, titles = {"meta", "rect", "line", "path", "circle", "br"}, [], 0
    def handle_starttag(self, tag, attrs):
        if tag not in self.void: self.stack.append(tag)
        assert tag not in ("script", "link", "img", "iframe"), tag
        for k, v in attrs: assert k not in ("src",) and (k != "href" or v.startswith("#")), (k, v)
    def handle_startendtag(self, tag, attrs): pass
    def handle_endtag(self, tag):
        assert self.stack and self.stack[-1] == tag, (tag, self.stack[-4:], self.getpos())
        self.stack.pop()
check = Check()
check.feed(text)
assert not check.stack, check.stack
for words in ("Summary", "Throughput and scaling", "Where the time went", "Communication", "Loss", "Memory", "Provenance",
              "same loss at every step, bit for bit", "prefers-color-scheme:dark", "@media print"):
    assert words in text, words
assert "http" not in text
svgs = sorted(p.name for p in (page / "charts").glob("*.svg"))
assert {"loss.svg", "throughput.svg", "speedup.svg", "efficiency.svg", "waterfall.svg", "communication.svg"} <= set(svgs), svgs
for p in (page / "charts").glob("*.svg"): xml.dom.minidom.parse(str(p))
report = json.load(open(page / "scaling_report.json"))
assert report["status"] == "ok" and list(report["runs"]) == ["1", "2", "4"], report
for n, r in report["runs"].items():
    tm = json.load(open(r["metrics_paths"][0]))
    assert r["mean_tokens_per_sec_global"] == tm["summary"]["mean_tokens_per_sec_global"]
# the waterfall's rows add up
md = (page / "report.md").read_text()
rows = [l for l in md.split("Shares of a step's time")[1].split("\n\n")[1].splitlines() if l.startswith("| ddp")]
assert len(rows) == 2, rows
for row in rows:
    x = [float(c.replace(",", "")) for c in row.strip("| ").split("|")[1:]]
    assert x[-1] == 100.0 and abs(sum(x[:-1]) - 100) < 0.06 * len(x), row
PY

# --- the page has the numbers of bench: the steps after its warm-up; weak scaling is detected ---
grep -q "^Speeds are of the steps after the warm-up: the first 5 of each run are left out.$" "$SCRATCH/printed" || bad "which steps: $(cat "$SCRATCH/printed")"
"$LOCKSTEP" bench scaling "$SCRATCH/runs" --json >"$SCRATCH/bench.json" 2>/dev/null || bad "bench scaling of the runs"
timeout 200 "$LOCKSTEP" bench scaling --weak -n 1,2 --repeat 1 --steps 7 --warmup 3 --out "$SCRATCH/weak" -- --data "$SCRATCH/d" --model tiny \
  --seq_length 32 --micro_batch_size_per_gpu 1 >/dev/null 2>"$SCRATCH/err" || bad "bench scaling --weak: $(cat "$SCRATCH/err")"
expect 0 "the first 3 of each run are left out" "$LOCKSTEP" report "$SCRATCH/weak" --no_png --out "$SCRATCH/weak/report"
grep -q "Weak scaling: every worker has the batch of one" "$SCRATCH/weak/report/report.md" || bad "the page does not mention weak scaling"
python3 - "$SCRATCH" <<'PY' || bad "the numbers of the page and of bench differ"
import json, sys
for page, bench in (("page/scaling_report.json", "bench.json"), ("weak/report/scaling_report.json", "weak/scaling_report.json")):
    a, b = (json.load(open(f"{sys.argv[1]}/{p}")) for p in (page, bench))
    for key in ("scaling", "tokens_per_sec_of", "warmup_steps_excluded"): assert a["protocol"][key] == b["protocol"][key], (page, key)
    for n, r in b["runs"].items():
        for key in ("tokens_per_sec", "speedup_vs_mean", "waterfall"): assert a["runs"][n].get(key) == r.get(key), (page, n, key)
PY
mv "$SCRATCH/weak/scaling_report.json" "$SCRATCH/weak.json"
expect 1 "the batch per worker is constant; --weak compares" "$LOCKSTEP" report "$SCRATCH/weak" --no_png --out "$out"
expect 0 "the first 2 of each run are left out" "$LOCKSTEP" report "$SCRATCH/weak" --weak --warmup 2 --no_png --out "$out"
expect 0 "Speeds are of whole epochs" "$LOCKSTEP" report "$SCRATCH/weak" --weak --warmup 7 --no_png --out "$out"
expect 2 "warmup" "$LOCKSTEP" report "$SCRATCH/weak" --warmup -1
echo '{"protocol": {"warmup_steps_excluded": 1, "scaling": "weak"}}' >"$SCRATCH/weak/strategies_report.json"
expect 0 "the first of each run is left out" "$LOCKSTEP" report "$SCRATCH/weak" --no_png --out "$out"

# --- refusals and broken folders ---
mkdir -p "$SCRATCH/broken/cut" "$SCRATCH/broken/foreign" "$SCRATCH/nothing"
head -c 300 "$SCRATCH/runs/1gpu_x/run_1/training_metrics.json" >"$SCRATCH/broken/cut/training_metrics.json"
echo '{"schema_version": "2.0", "hardware": {"world_size": "two"}}' >"$SCRATCH/broken/foreign/training_metrics.json"
expect 0 "cut/training_metrics.json: line" "$LOCKSTEP" report "$SCRATCH/broken" "$SCRATCH/runs" --no_png --out "$out"
grep -q "foreign/training_metrics.json: key hardware.world_size: a number was expected, not text" "$SCRATCH/err" || bad "the key is not named: $(cat "$SCRATCH/err")"
grep -q "^ddp *4 " "$SCRATCH/out" || bad "the others are not reported: $(cat "$SCRATCH/out")"
expect 3 "no run" "$LOCKSTEP" report "$SCRATCH/nothing" --out "$out"
expect 3 "not-there does not exist" "$LOCKSTEP" report "$SCRATCH/not-there" --out "$out"
: >"$SCRATCH/empty.json"
expect 3 "no .*run found in /dev/null" "$LOCKSTEP" report /dev/null --no_png --out "$SCRATCH/none"
expect 3 "no readable run found" "$LOCKSTEP" report "$SCRATCH/broken" "$SCRATCH/empty.json" --no_png --out "$SCRATCH/none"
grep -q "note: $SCRATCH/empty.json: line" "$SCRATCH/err" || bad "the file is not named: $(cat "$SCRATCH/err")"
[ ! -e "$SCRATCH/none" ] || bad "a report without runs"
expect 0 "note: $SCRATCH/empty.json: line" "$LOCKSTEP" report "$SCRATCH/empty.json" "$SCRATCH/runs/1gpu_x" --no_png --out "$out"
cp "$SCRATCH/runs/1gpu_x/run_1/training_metrics.json" "$SCRATCH/one.metrics"
"$LOCKSTEP" report "$SCRATCH/one.metrics" --no_png --out "$out" >/dev/null 2>&1 && grep -q "\"$SCRATCH/one.metrics\"" "$out/scaling_report.json" || bad "metrics_paths of a file under another name"
expect 2 "at least one run folder" "$LOCKSTEP" report
expect 2 "gpu1" "$LOCKSTEP" report table --gpu1 x
expect 3 "summary.mean_tokens_per_sec_global" "$LOCKSTEP" report table --gpu1 "$SCRATCH/broken/foreign/training_metrics.json" --gpu2 x --gpu4 x
expect 1 "No run_" "$LOCKSTEP" report verify --dir "$SCRATCH/nothing"
rm "$SCRATCH/runs/1gpu_x/run_1/train.log"
expect 1 "Verification failed: 1 run(s) invalid." "$LOCKSTEP" report verify --dir "$SCRATCH/runs"
sed 's/"seq_len": 32/"seq_len": 64/' "$SCRATCH/runs/2gpu_x/run_1/training_metrics.json" >"$SCRATCH/other.json"
expect 1 "invalid comparison" "$LOCKSTEP" report "$SCRATCH/runs" "$SCRATCH/other.json" --no_png --out "$out"
grep -q "other: seq_len differs from .*: 64, not 32" "$SCRATCH/err" || bad "the field is not named: $(cat "$SCRATCH/err")"
grep -q '"status": "invalid_comparison"' "$out/scaling_report.json" || bad "scaling_report.json has another status"
expect 0 "seq_len differs" "$LOCKSTEP" report "$SCRATCH/runs" "$SCRATCH/other.json" --no_png --out "$out" --allow_mismatch
grep -q "mismatch_allowed" "$out/report.html" || bad "the page is not marked"

# --- without rsvg-convert: one note; with it, PNG files ---
PATH=$SCRATCH/nothing "$LOCKSTEP" report "$SCRATCH/runs" --out "$SCRATCH/plain" >"$SCRATCH/printed" 2>&1 || bad "without rsvg-convert: $(cat "$SCRATCH/printed")"
[ "$(grep -c "rsvg-convert is not installed.*librsvg2-bin" "$SCRATCH/printed")" = 1 ] || bad "the missing rsvg-convert is not reported once: $(cat "$SCRATCH/printed")"
[ -s "$SCRATCH/plain/charts/loss.svg" ] && [ ! -e "$SCRATCH/plain/charts/loss.png" ] || bad "charts without rsvg-convert"
# one that fails, at the first or a later call: the rest is written, and there is one note
mkdir -p "$SCRATCH/bin"
for first in 1 2; do
  printf '#!/bin/sh\nn=$(cat %s 2>/dev/null || echo 0); n=$((n + 1)); echo $n >%s\n[ $n -lt %d ] || { echo "no such size"; exit 1; }\n' \
    "$SCRATCH/bin/n" "$SCRATCH/bin/n" $first >"$SCRATCH/bin/rsvg-convert" && chmod +x "$SCRATCH/bin/rsvg-convert" && rm -f "$SCRATCH/bin/n"
  PATH=$SCRATCH/bin:$PATH "$LOCKSTEP" report "$SCRATCH/runs" --out "$SCRATCH/fails$first" >"$SCRATCH/printed" 2>&1 || bad "rsvg-convert fails at $first: $(cat "$SCRATCH/printed")"
  [ "$(grep -c rsvg "$SCRATCH/printed")" = 1 ] && grep -q "no such size (and [0-9]* more): those charts are SVG files only" "$SCRATCH/printed" || bad "rsvg-convert fails at $first: $(cat "$SCRATCH/printed")"
  [ -s "$SCRATCH/fails$first/report.html" ] && [ "$(ls -A "$SCRATCH/fails$first/charts" | sort)" = "$(ls "$SCRATCH/plain/charts" | sort)" ] || bad "charts of an rsvg-convert that fails at $first: $(ls -A "$SCRATCH/fails$first/charts")"
done
printf '#!/bin/sh\necho "rsvg-convert: libcairo.so.2: no such file"; exit 127\n' >"$SCRATCH/bin/rsvg-convert" # installed, but it does not start
PATH=$SCRATCH/bin:$PATH expect 0 "libcairo.so.2: no such file (and" "$LOCKSTEP" report "$SCRATCH/runs" --out "$out"
! grep -q "not installed" "$SCRATCH/err" || bad "an rsvg-convert that does not start: $(cat "$SCRATCH/err")"
PATH=$SCRATCH/bin:$PATH expect 0 "could not draw" "$LOCKSTEP" report charts --baseline_json "$SCRATCH/runs/1gpu_x/run_1/training_metrics.json" \
  --optimized_json "$SCRATCH/runs/4gpu_x/run_1/training_metrics.json" --out "$SCRATCH/pair_fails"
[ "$(ls -A "$SCRATCH/pair_fails" | wc -l)" = 2 ] || bad "the pair of charts of an rsvg-convert that fails: $(ls -A "$SCRATCH/pair_fails")"
if command -v rsvg-convert >/dev/null; then
  for c in throughput loss waterfall; do [ "$(head -c 4 "$SCRATCH/page/charts/$c.png" | tail -c 3)" = PNG ] || bad "$c.png is no PNG"; done
else echo "rsvg-convert is not installed: PNG files not looked at"; fi
expect 0 "Training time: [0-9]* % [lm]" "$LOCKSTEP" report charts --baseline_json "$SCRATCH/runs/1gpu_x/run_1/training_metrics.json" \
  --optimized_json "$SCRATCH/runs/4gpu_x/run_1/training_metrics.json" --out "$SCRATCH/pair"
[ -s "$SCRATCH/pair/training_time_comparison.svg" ] && [ -s "$SCRATCH/pair/training_throughput_comparison.svg" ] || bad "the pair of charts"
# what rsvg-convert is given: titles, every bar has its number, names are whole, and colours are no variables
printf '#!/bin/sh\nfor x; do :; done\ncat "$x" >>%s\n' "$SCRATCH/script" >"$SCRATCH/bin/rsvg-convert" && rm -f "$SCRATCH/script"
python3 "$LS_SOURCE/tests/support/reference_runs.py" "$SCRATCH/reference"
expect 0 "^Training time: 248 % more$" "$LOCKSTEP" report charts --optimized_json "$SCRATCH/reference/1gpu.json" --baseline_json "$SCRATCH/reference/4gpu.json" --out "$SCRATCH/pair"
PATH=$SCRATCH/bin:$PATH "$LOCKSTEP" report "$SCRATCH"/reference/repeat/*.json --allow_mismatch --out "$out" >/dev/null 2>&1
PATH=$SCRATCH/bin:$PATH "$LOCKSTEP" report "$SCRATCH/reference/study" --out "$out" >/dev/null 2>&1
for t in "204 ± 11" "35,300" "Throughput" "zero1 (steps 40, profiled, config cdcdcdcd, max_val_steps 0) × 8"; do
  grep -qF ">$t</text>" "$SCRATCH/script" || bad "a PNG lacks the text '$t': $(grep -o "<text[^/]*" "$SCRATCH/script")"
done
! grep -q "var(" "$SCRATCH/script" && grep -q "\.h0{color:#0072b2}" "$SCRATCH/script" || bad "colours of PNG charts: $(grep -m1 h0 "$SCRATCH/script")"
rm "$SCRATCH/bin/rsvg-convert"
# older files: 4 ranks recorded the speed of one
printf '{"train_time_per_epoch": [1600.0], "train_throughput": [1000.0]}' >"$SCRATCH/t1.json"
printf '{"train_time_per_epoch": [500.0], "train_throughput": [800.0], "gpus_tested": 4}' >"$SCRATCH/t4.json"
printf '{"train_time_per_epoch": [500.0], "train_throughput": [1234.5]}' >"$SCRATCH/t5.json"
expect 0 "t4.json: 800.0 tokens/s are of one of 4 ranks: not compared" "$LOCKSTEP" report charts --baseline_json "$SCRATCH/t1.json" --optimized_json "$SCRATCH/t4.json" --out "$SCRATCH/pair4"
! grep -q "t1.json" "$SCRATCH/out" && grep -q "69 % less" "$SCRATCH/out" || bad "the total of one rank: $(cat "$SCRATCH/out")"
grep -q ">optimized, tokens/s of one rank<" "$SCRATCH/pair4/training_throughput_comparison.svg" || bad "a speed of one rank is not marked"
expect 0 "not recorded whether 1234.5 tokens/s are of one rank or of all" "$LOCKSTEP" report charts --baseline_json "$SCRATCH/t1.json" --optimized_json "$SCRATCH/t5.json" --out "$SCRATCH/pair5"
expect 0 "no charts" "$LOCKSTEP" report charts --baseline_json "$SCRATCH/none.json" --optimized_json "$SCRATCH/none.json" --out "$SCRATCH/pair2"

# --- in a browser, where there is one: it opens, draws all sections, makes no network request, and is not wider than a phone ---
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if [ -n "$browser" ]; then
  cat >"$SCRATCH/look.html" <<HTML
<title>wait</title><iframe id=f width=390 height=800 src="page/report.html"></iframe><script>onload = () => {
  const d = f.contentDocument, shown = s => [...d.querySelectorAll(s)].filter(e => e.getBoundingClientRect().width > 0).length;
  document.title = [d.title, d.documentElement.scrollWidth <= d.documentElement.clientWidth ? "fits" : "is too wide", "narrow", shown(".narrow svg"), "wide", shown(".wide svg"),
    "fetched", f.contentWindow.performance.getEntriesByType("resource").length].join(" "); }</script>
HTML
  timeout 60 "$browser" --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking \
    --disable-component-update --disable-sync --allow-file-access-from-files --user-data-dir="$SCRATCH/profile" --virtual-time-budget=3000 \
    --dump-dom "file://$SCRATCH/look.html" >"$SCRATCH/dom" 2>/dev/null
  title=$(sed -n 's/.*<title>\(.*\)<\/title>.*/\1/p' "$SCRATCH/dom" | head -1)
  if [ -z "$title" ]; then echo "the browser does not start here: the page was not opened"
  else
    case $title in "Training runs compared fits narrow "[1-9]*" wide 0 fetched 0") ;; *) bad "in the browser at 390 pixels: $title" ;; esac
  fi
else echo "no browser is installed: the page was not opened"; fi

# --- nsys ---
mkdir -p "$SCRATCH/prof/profiles"
expect 3 "has no nsys_stats" "$LOCKSTEP" profile summarize --run_dir "$SCRATCH/prof"
printf ' ** NVTX Range Summary (nvtx_sum):\n\n     45.5  1,00,000  2  PushPop  :DeepSpeedEngine.allreduce_gradients\n' >"$SCRATCH/prof/profiles/nsys_stats_h.txt"
touch "$SCRATCH/prof/profiles/nsys_12_b.nsys-rep" "$SCRATCH/prof/profiles/nsys_12_a.qdrep"
expect 0 "Wrote .*profile_summary.json" "$LOCKSTEP" profile summarize --run_dir "$SCRATCH/prof"
python3 - "$SCRATCH/prof" <<'PY' || bad "profile_summary.json"
import json, sys
s = json.load(open(sys.argv[1] + "/profiles/profile_summary.json"))
assert s["hosts"] == ["a", "b"] and s["nsys_report"] == ["nsys_12_a.qdrep", "nsys_12_b.nsys-rep"] and s["world_size"] is None
assert s["likely_bottleneck"]["matched"] == {"name": ":DeepSpeedEngine.allreduce_gradients", "time_percent": 45.5, "total_time": "100000 ns"}
PY
expect 2 "summarize" "$LOCKSTEP" profile nonsense

# --- metrics files in the format of the ZeRO scaling study (docs/REFERENCES.md) ---
made=$SCRATCH/reference
python3 "$LS_SOURCE/tests/support/reference_runs.py" "$made"
"$LOCKSTEP" report table --gpu1 "$made/1gpu.json" --gpu2 "$made/2gpu.json" --gpu4 "$made/4gpu.json" >"$SCRATCH/table" || bad "report table"
cat >"$SCRATCH/want" <<'T'
| GPUs | Tokens/sec (global) | Wall time (s) | Speedup vs 1 GPU | Scaling efficiency |
| --- | --- | --- | --- | --- |
| 1 | 1000.00 | 40.00 | 1.00 | 1.00 |
| 2 | 1920.00 | 20.80 | 1.92 | 0.96 |
| 4 | 3400.00 | 11.50 | 3.40 | 0.85 |
T
same "$SCRATCH/table" "$SCRATCH/want"
expect 0 "precision differs" "$LOCKSTEP" report "$made"/?gpu.json --no_png --out "$SCRATCH/once"
mkdir "$SCRATCH/mixed" && cp "$made"/?gpu.json "$SCRATCH/mixed" && cp -r "$made/study" "$SCRATCH/mixed" && echo '{"name": "x"}' >"$SCRATCH/mixed/other.json"
expect 1 "(6 runs," "$LOCKSTEP" report "$SCRATCH/mixed" --no_png --out "$out" # files of metrics beside folders
! grep -q "other.json" "$SCRATCH/err" || bad "a JSON file without metrics is read as a run: $(cat "$SCRATCH/err")"
expect 0 "differs" "$LOCKSTEP" report "$made"/repeat/*.json --no_png --out "$SCRATCH/repeat" --allow_mismatch
python3 - "$SCRATCH" <<'PY' || bad "numbers of files in the format of the scaling study"
import json, sys
once, r, want = (json.load(open(f"{sys.argv[1]}/{f}")) for f in ("once/scaling_report.json", "repeat/scaling_report.json", "reference/expected.json"))
differs = {"field": "precision", "baseline": "fp16_torch_amp", "mismatch": "fp16_deepspeed"}
assert once["status"] == "mismatch_allowed" and once["mismatches"] == [differs] * 2 and list(once["runs"]) == ["1", "2", "4"], once
assert r["status"] == "mismatch_allowed" and r["mismatches"] == [differs] * 6, r["mismatches"]
for n, row in want["repeat"].items():
    for k, v in row.items(): assert abs(r["runs"][n][k] - v) <= 1e-12 * v, (n, k, r["runs"][n][k], v)
PY
# a folder of the scaling study: the profiled run is no repeat of the benchmark with its configuration, and single runs show no winner
"$LOCKSTEP" report "$made/study" --no_png --out "$SCRATCH/study" >"$SCRATCH/printed" 2>&1 || bad "the study: $(cat "$SCRATCH/printed")"
grep -q "^zero1 (config cdcdcdcd) .* 8  *1  *35,300.0 " "$SCRATCH/printed" && grep -q "^zero1 (steps 40, profiled" "$SCRATCH/printed" || bad "the settings of the study: $(cat "$SCRATCH/printed")"
grep -q "^No winner is shown: .* All settings have one run each; repeat them to compare.$" "$SCRATCH/printed" || bad "a winner without intervals: $(cat "$SCRATCH/printed")"
grep -q "Profiled: study/bucket_nsys80\." "$SCRATCH/study/report.md" && ! grep -qi "fastest" "$SCRATCH/study/report.html" || bad "the page of the study"
# its page has the instances of NVTX ranges (from the statistics, as there is no summary) and the 95th percentile of steps
grep -q "| study/bucket_nsys80 | NCCL:ncclAllReduce | 8.3 | 2112305750 ns | 520 | 4.062 |" "$SCRATCH/study/report.md" || bad "instances: $(grep nccl "$SCRATCH/study/report.md")"
# a copy of a profiled run with its summary alone
mkdir -p "$SCRATCH/summary"
cp "$made/study/bucket_nsys80/training_metrics.json" "$SCRATCH/summary/"
echo '{"nvtx_top5": []}' >"$SCRATCH/summary/profile_summary.json"
expect 0 "zero1 (profiled)" "$LOCKSTEP" report "$SCRATCH/summary" --no_png --out "$SCRATCH/summary/page"
# equal ranges of two hosts: times and instances are sums, the mean is that of all instances
mkdir -p "$SCRATCH/hosts/profiles"
cp "$made/study/bucket_nsys80/training_metrics.json" "$SCRATCH/hosts/"
printf ' ** NVTX Range Summary (nvtx_sum):\n\n  60.0  12,000,000  3  4,000,000.0  PushPop  :train/backward\n' >"$SCRATCH/hosts/profiles/nsys_stats_a.txt"
printf ' ** NVTX Range Summary (nvtx_sum):\n\n  60.0  2,000,000  1  2,000,000.0  PushPop  :train/backward\n' >"$SCRATCH/hosts/profiles/nsys_stats_b.txt"
"$LOCKSTEP" report "$SCRATCH/hosts" --no_png --out "$SCRATCH/hosts/page" >"$SCRATCH/printed" 2>&1 || bad "two hosts: $(cat "$SCRATCH/printed")"
grep -q ":train/backward | 100.0 | 14000000 ns | 4 | 3.500 |" "$SCRATCH/hosts/page/report.md" || bad "instances of two hosts: $(grep backward "$SCRATCH/hosts/page/report.md")"
grep -q "| zero1 (config abababab) × 8 | 70.200 | 78.000 | 1.11 | sampled" "$SCRATCH/study/report.md" || bad "p95: $(grep abababab "$SCRATCH/study/report.md")"
[ -s "$SCRATCH/study/charts/training_time.svg" ] && ! grep -q profiled "$SCRATCH/study/charts/training_time.svg" || bad "the chart of training times"
# folders with evidence alone: a summary in the root, files of the launcher and of NCCL, without metrics
mkdir -p "$SCRATCH/curated/8gpu/profiles" "$SCRATCH/curated/profile"
printf '{"nvtx_top5": [{"name": ":train/forward", "time_percent": 61.0, "total_time": "77 ns", "raw": "  61.0  77  1,11,320  0.2  PushPop  :train/forward"}]}' >"$SCRATCH/curated/profile/profile_summary.json"
printf "CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\n\t\tRate: 100\n\t\tLink layer: InfiniBand\n" >"$SCRATCH/curated/8gpu/ibstat.txt"
cp "$LS_SOURCE"/tests/data/nccl_logs/ib/*.log "$SCRATCH/curated/8gpu/"
expect 0 "what tools recorded about it is shown" "$LOCKSTEP" report "$SCRATCH/curated" --no_png --out "$SCRATCH/curated_page"
grep -q "| curated/profile | :train/forward | 61.0 | 77 ns | 111,320 |" "$SCRATCH/curated_page/report.md" || bad "a summary in the root of a folder"
grep -q "8gpu, ibstat.txt: ports: mlx5_0 port 1: Active, 100 Gb/s, InfiniBand" "$SCRATCH/curated_page/report.md" && grep -q "| curated/8gpu | nccl | 2.30.7 | 4 on 2 hosts | IB |" "$SCRATCH/curated_page/report.md" ||
  bad "evidence without metrics: $(grep curated "$SCRATCH/curated_page/report.md")"
grep -q "| t4 | 4 | 500.00 | 800.0 | one rank or all: not recorded |" <("$LOCKSTEP" report "$SCRATCH"/t[14].json --no_png --out "$SCRATCH/old" >/dev/null 2>&1; sed 's/| [^ ]*t4 /| t4 /' "$SCRATCH/old/report.md") || bad "older files"
# our own run with a profiler
"$LOCKSTEP" train --data "$SCRATCH/d" --model tiny --num_layers 1 --seq_length 16 --max_steps 2 --profile --checkpoint_path "$SCRATCH/traced" >/dev/null 2>&1
expect 3 "1 was profiled, and a profiled run is no benchmark" "$LOCKSTEP" bench scaling "$SCRATCH/traced"
expect 2 "a profiled run is no benchmark" "$LOCKSTEP" bench scaling -n 1 --dry_run -- --data "$SCRATCH/d" --model tiny --profile
# copies of a run are no repeats of it
cp -r "$SCRATCH/runs/2gpu_x/run_1" "$SCRATCH/copy_1" && cp -r "$SCRATCH/copy_1" "$SCRATCH/copy_2"
expect 0 "copy_2: a copy of .*copy_1 (all metrics and times are equal), which counts once" "$LOCKSTEP" report "$SCRATCH/copy_1" "$SCRATCH/copy_2" --no_png --out "$SCRATCH/copies"
# --- communication between GPUs: our run with a summary, a run of the scaling study with logs and files of its launcher, a run without files ---
logs=$LS_SOURCE/tests/data/nccl_logs gpu=$SCRATCH/gpu
mkdir -p "$gpu/ours/nccl" "$gpu/theirs" "$gpu/killed/nccl" "$gpu/bare"
python3 - "$gpu" "$SCRATCH/runs/2gpu_x/run_1/training_metrics.json" <<'PY'
import json, pathlib, sys
gpu, m = pathlib.Path(sys.argv[1]), json.load(open(sys.argv[2]))
m["lockstep"].update(device="cuda", step_split={"input": 0.001, "forward": 0.010, "backward": 0.020, "exposed_comm": 0.003,
                                               "optimizer": 0.004, "other": 0.0, "bubble": 0.005, "steps_without_times": 3},
                     gpu={"nccl_version": "2.30.7"},
                     comm={"backend": "nccl", "workers": 2, "steps": 10, "requests_without_times": 4,
                           "all_reduce": {"calls": 10, "bytes_moved": 100, "busy_sec": 0.5, "exposed_sec": 0.1, "busbw_bytes_per_sec": 12.5e9},
                           "broadcast": {"calls": 1, "bytes_moved": 1, "busy_sec": None, "exposed_sec": None, "busbw_bytes_per_sec": None}})
m["lockstep"].pop("workers", None)
m["epochs"][0].update(train_loss_avg_global=3.0)
(gpu / "bare/training_metrics.json").write_text(json.dumps(dict(m, run_id="another run")))
(gpu / "ours/training_metrics.json").write_text(json.dumps(m))
(gpu / "ours/nccl/summary.json").write_text(json.dumps({"version": "2.30.7", "n_ranks": 2, "n_ranks_logged": 1, "n_nodes": 1, "network": "Socket",
    "transports": {"P2P/CUMEM": 32, "NVLS": 2}, "rings": 16, "first_ring": "0 1", "ring_path": "NVL", "gpudirect_rdma": False, "nvlink": True,
    "nvls": None, "infiniband": False, "warnings": 2, "first_warning": "Call to connect failed"}))
(gpu / "killed/metrics.jsonl").write_text("".join('{"step": %d, "loss": 3.5, "step_time_sec": 0.25}\n' % k for k in range(1, 9)))
del m["lockstep"]
(gpu / "theirs/training_metrics.json").write_text(json.dumps(m))
(gpu / "theirs/topo.txt").write_text("\t\033[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\033[0m\nGPU0\t X \tNV2\tSYS\tPIX\t0-7\t0\n"
    "GPU1\tNV2\t X \tSYS\tPIX\t0-7\t0\nGPU2\tSYS\tSYS\t X \tNODE\t8-15\t1\nNIC0\tPIX\tPIX\tNODE\t X \n\nLegend:\n  X    = Self\n")
(gpu / "theirs/ibstat.txt").write_text("CA 'mlx5_0'\n\tCA type: MT4119\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n\t\tRate: 100\n"
    "\t\tLink layer: InfiniBand\nCA 'mlx5_1'\n\tPort 1:\n\t\tState: Down\n\t\tRate: 40\n")
(gpu / "theirs/nccl_topo.xml").write_text('<system version="1">\n <cpu numaid="0">\n  <nic>\n   <net name="mlx5_0" dev="0" speed="100000" port="1"/>\n  </nic>\n </cpu>\n</system>\n')
PY
cp "$logs"/ib/*.log "$gpu/theirs/" && cp "$logs"/socket/*.log "$gpu/killed/nccl/"
"$LOCKSTEP" report "$gpu" --out "$SCRATCH/gpu_page" --allow_mismatch >"$SCRATCH/printed" 2>&1 || bad "report of GPU runs: $(cat "$SCRATCH/printed")"
python3 - "$SCRATCH/gpu_page/report.md" <<'PY' || bad "the report of GPU runs"
import sys
text = open(sys.argv[1]).read()
part = text[text.index("## Communication between GPUs"):]
part = part[:part.index("\n## ", 5)]
def row(name, n):  # the n-th table's row of a run
    rows = [[c.strip() for c in l.strip("|").split("|")] for l in part.splitlines() if l.startswith("|") and "gpu/" + name in l]
    return rows[n]
dash = "\u2013"
assert row("ours", 0)[1:] == ["nccl", "2.30.7", "2 on 1 host (logs of 1)", "Socket", "P2P/CUMEM x 32, NVLS x 2", "16 over NVL; first: 0 1",
                              "yes", dash, "no", "no"], row("ours", 0)
assert row("theirs", 0)[1:] == ["nccl", "2.30.7", "4 on 2 hosts", "IB", "NET/IB/GDRDMA x 4, P2P/CUMEM x 5", "2 over NVL; first: 0 1 2 3",
                                "yes", "no", "yes", "yes"], row("theirs", 0)
assert row("killed", 0)[2:6] == ["2.21.5", "3", "Socket", row("killed", 0)[5]] and "SHM x 2" in row("killed", 0)[5], row("killed", 0)
assert row("bare", 0)[1:] == ["nccl", "2.30.7"] + [dash] * 8, row("bare", 0)
# the parts add up to the step: forward, backward, optimizer, exposed, bubble, stragglers, input, other
assert row("ours", 1)[1:] == ["10.000", "20.000", "4.000", "3.000", "5.000", dash, "1.000", "0.000", "43.000", "all steps"], row("ours", 1)
assert row("killed", 1)[1:] == [dash] * 8 + ["250.000", "steps after the first 5"], row("killed", 1)
assert row("ours", 2)[1:] == ["replicas", dash, dash, dash], row("ours", 2)  # a collective without times: the hidden share is unknown
assert row("ours", 3)[1:] == ["all_reduce", "12.50", "50.000", "10.000"], row("ours", 3)
assert row("ours", 4)[1:] == ["broadcast", dash, dash, dash], row("ours", 4)
for words in ("NCCL printed 2 warnings; the first: Call to connect failed", "topo.txt: links between GPUs: NV2 x 1, SYS x 2",
              "ibstat.txt: ports: mlx5_0 port 1: Active, 100 Gb/s, InfiniBand, mlx5_1 port 1: Down, 40 Gb/s", "nccl_topo.xml: network cards: mlx5_0 100000 Mb/s",
              "read from the logs", "no times are known of 3 steps and 4 requests"):
    assert words in part, words
assert "\033" not in text
PY
"$LOCKSTEP" report "$SCRATCH/runs" --out "$SCRATCH/cpu_page" >/dev/null 2>&1
! grep -q "Communication between GPUs" "$SCRATCH/cpu_page/report.md" || bad "a section on GPUs about runs on the CPU"
mkdir -p "$SCRATCH/left" && cp -r "$SCRATCH/runs/2gpu_x/run_1" "$SCRATCH/left/run" && cp -r "$gpu/ours/nccl" "$SCRATCH/left/run/nccl"
grep -q "| gpu/ours |" "$SCRATCH/gpu_page/report.md" || bad "no row of the run over NCCL"
expect 0 "left/run: the run did not communicate over NCCL (local)" "$LOCKSTEP" report "$SCRATCH/left" --no_png --out "$SCRATCH/left_page"
! grep -q "Communication between GPUs" "$SCRATCH/left_page/report.md" || bad "the report of a CPU run shows the NCCL files of an earlier run"

done_tests
