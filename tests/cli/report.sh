#!/usr/bin/env bash
# report and profile summarize: runs of 1, 2 and 4 workers become a page, pass the verifier and make the table; the reference's own
# files give its published numbers; unlike runs are refused, broken folders named; no gnuplot and no browser are no obstacle.
. "$(dirname "$0")/../lib.sh"
out=$SCRATCH/report

# --- our own runs ---
mkdir -p "$SCRATCH/d" && tokens "$SCRATCH/d/train.bin" 8000 && tokens "$SCRATCH/d/val.bin" 1000 2
for n in 1 2 4; do
  run=$SCRATCH/runs/${n}gpu_x/run_1
  mkdir -p "$run"
  timeout 200 "$LOCKSTEP" train --data "$SCRATCH/d" --model tiny --seq_length 32 --micro_batch_size_per_gpu 1 --global_batch_size 4 \
    --epochs 1 --max_steps 12 --lr 1e-3 --checkpoint_path "$run" -n $n >"$run/train.log" 2>"$run/stderr.log" || bad "$n workers: $(tail -2 "$run/stderr.log")"
done
expect 0 "Verification passed." "$LOCKSTEP" report verify --dir "$SCRATCH/runs"
[ "$(grep -c "	ok	" "$SCRATCH/out")" = 3 ] || bad "verify: $(cat "$SCRATCH/out")"
expect 0 "| 4 |" "$LOCKSTEP" report table --gpu1 "$SCRATCH"/runs/1gpu_x/run_1/training_metrics.json \
  --gpu2 "$SCRATCH"/runs/2gpu_x/run_1/training_metrics.json --gpu4 "$SCRATCH"/runs/4gpu_x/run_1/training_metrics.json
"$LOCKSTEP" report "$SCRATCH/runs" --out "$SCRATCH/page" >"$SCRATCH/said" 2>&1 || bad "report: $(cat "$SCRATCH/said")"
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
    x = [float(c) for c in row.strip("| ").split("|")[1:]]
    assert x[-1] == 100.0 and abs(sum(x[:-1]) - 100) < 0.06 * len(x), row
PY

# --- refusals and broken folders ---
mkdir -p "$SCRATCH/broken/cut" "$SCRATCH/broken/foreign" "$SCRATCH/nothing"
head -c 300 "$SCRATCH/runs/1gpu_x/run_1/training_metrics.json" >"$SCRATCH/broken/cut/training_metrics.json"
echo '{"schema_version": "2.0", "hardware": {"world_size": "two"}}' >"$SCRATCH/broken/foreign/training_metrics.json"
expect 0 "cut/training_metrics.json: line" "$LOCKSTEP" report "$SCRATCH/broken" "$SCRATCH/runs" --no-png --out "$out"
grep -q "foreign/training_metrics.json: key hardware.world_size: a number was expected, not text" "$SCRATCH/err" || bad "the key is not named: $(cat "$SCRATCH/err")"
grep -q "^ddp *4 " "$SCRATCH/out" || bad "the others are not reported: $(cat "$SCRATCH/out")"
expect 3 "no run" "$LOCKSTEP" report "$SCRATCH/nothing" --out "$out"
expect 3 "no such file" "$LOCKSTEP" report "$SCRATCH/not-there" --out "$out"
expect 2 "at least one run folder" "$LOCKSTEP" report
expect 2 "gpu1" "$LOCKSTEP" report table --gpu1 x
expect 3 "summary.mean_tokens_per_sec_global" "$LOCKSTEP" report table --gpu1 "$SCRATCH/broken/foreign/training_metrics.json" --gpu2 x --gpu4 x
expect 1 "No run_" "$LOCKSTEP" report verify --dir "$SCRATCH/nothing"
rm "$SCRATCH/runs/1gpu_x/run_1/train.log"
expect 1 "Verification failed: 1 run(s) invalid." "$LOCKSTEP" report verify --dir "$SCRATCH/runs"
sed 's/"seq_len": 32/"seq_len": 64/' "$SCRATCH/runs/2gpu_x/run_1/training_metrics.json" >"$SCRATCH/other.json"
expect 1 "invalid_comparison" "$LOCKSTEP" report "$SCRATCH/runs" "$SCRATCH/other.json" --no-png --out "$out"
grep -q "seq_len differs from .*: 32, not 64" "$SCRATCH/err" || bad "the field is not named: $(cat "$SCRATCH/err")"
grep -q '"status": "invalid_comparison"' "$out/scaling_report.json" || bad "scaling_report.json has another status"
expect 0 "seq_len differs" "$LOCKSTEP" report "$SCRATCH/runs" "$SCRATCH/other.json" --no-png --out "$out" --allow-mismatch
grep -q "mismatch_allowed" "$out/report.html" || bad "the page is not marked"

# --- without gnuplot: said once; with it, PNG files ---
PATH=$SCRATCH/nothing "$LOCKSTEP" report "$SCRATCH/runs" --out "$SCRATCH/plain" >"$SCRATCH/said" 2>&1 || bad "without gnuplot: $(cat "$SCRATCH/said")"
[ "$(grep -c gnuplot "$SCRATCH/said")" = 1 ] || bad "the missing gnuplot is not said once: $(cat "$SCRATCH/said")"
[ -s "$SCRATCH/plain/charts/loss.svg" ] && [ ! -e "$SCRATCH/plain/charts/loss.png" ] || bad "charts without gnuplot"
if command -v gnuplot >/dev/null; then
  for c in throughput loss waterfall; do [ "$(head -c 4 "$SCRATCH/page/charts/$c.png" | tail -c 3)" = PNG ] || bad "$c.png is no PNG"; done
else echo "gnuplot is not installed: PNG files not looked at"; fi
expect 0 "less" "$LOCKSTEP" report charts --baseline-json "$SCRATCH/runs/1gpu_x/run_1/training_metrics.json" \
  --optimized-json "$SCRATCH/runs/4gpu_x/run_1/training_metrics.json" --out "$SCRATCH/pair"
[ -s "$SCRATCH/pair/training_time_comparison.svg" ] && [ -s "$SCRATCH/pair/training_throughput_comparison.svg" ] || bad "the pair of charts"
expect 0 "no charts" "$LOCKSTEP" report charts --baseline-json "$SCRATCH/none.json" --optimized-json "$SCRATCH/none.json" --out "$SCRATCH/pair2"

# --- in a browser, where there is one: it opens, draws all sections, asks the network for nothing, and is not wider than a phone ---
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
expect 1 "No nsys_stats" "$LOCKSTEP" profile summarize --run-dir "$SCRATCH/prof"
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

# --- the reference's files, where they lie beside the source ---
fixtures=$LS_SOURCE/../shared/spec/fixtures/r1
if [ -d "$fixtures" ]; then
  "$LOCKSTEP" report table --gpu1 "$fixtures/1gpu.json" --gpu2 "$fixtures/2gpu.json" --gpu4 "$fixtures/4gpu.json" >"$SCRATCH/table" || bad "report table"
  sed -n '/^### 7.2/,/^### 7.3/p' "$fixtures/../../artifacts.md" | grep '^|' >"$SCRATCH/want"
  same "$SCRATCH/table" "$SCRATCH/want"
  expect 1 "precision differs" "$LOCKSTEP" report "$fixtures"/?gpu.json --no-png --out "$SCRATCH/v100"
  expect 0 "differs" "$LOCKSTEP" report "$fixtures"/repeat/*.json --no-png --out "$SCRATCH/repeat" --allow-mismatch
  cp -r "$fixtures/bucket200_nsys80" "$SCRATCH/nsys" && chmod -R u+w "$SCRATCH/nsys" && touch "$SCRATCH/nsys/profiles/nsys_17776175_gn-0013.nsys-rep"
  "$LOCKSTEP" profile summarize --run-dir "$SCRATCH/nsys" >/dev/null || bad "profile summarize"
  same <(sed 2,3d "$SCRATCH/nsys/profiles/profile_summary.json") <(sed 2,3d "$fixtures/bucket200_nsys80/profiles/profile_summary.json")
  python3 - "$SCRATCH" <<'PY' || bad "the reference's numbers"
import json, sys
v = json.load(open(sys.argv[1] + "/v100/scaling_report.json"))
assert v == {"status": "invalid_comparison", "mismatches": [{"field": "precision", "baseline": "fp16_torch_amp", "mismatch": "fp16_deepspeed"}] * 2}, v
r = json.load(open(sys.argv[1] + "/repeat/scaling_report.json"))
assert r["status"] == "mismatch_allowed" and len(r["mismatches"]) == 12
def col(key): return [r["runs"][n][key] for n in ("1", "2", "4")]
assert col("mean_tokens_per_sec_global") == [100.0, 181.66666666666666, 320.0]
assert col("stdev_tokens_per_sec_global") == [5.0, 7.637626158259733, 10.0]
assert col("mean_epoch_wall_time_sec") == [10.166666666666666, 6.0, 3.5]
assert col("stdev_epoch_wall_time_sec") == [0.7637626158259733, 0.20000000000000018, 0.10000000000000009]
assert col("speedup_vs_1gpu") == [1.0, 1.8166666666666667, 3.2]
assert col("scaling_efficiency") == [1.0, 0.9083333333333333, 0.8]
PY
else echo "the reference's files are not here: its published numbers were not compared"; fi
done_tests
