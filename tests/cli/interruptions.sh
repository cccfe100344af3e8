#!/usr/bin/env bash
# A supervised run that fails three times: what its folder, CSV files, the report and `watch` show of it.
. "$(dirname "$0")/../support/lib.sh"
cd "$SCRATCH" || exit 1
tokens t.bin 6000
cat >ds.json <<'JSON'
{"train_micro_batch_size_per_gpu": 1, "csv_monitor": {"enabled": true, "output_path": "csv", "job_name": "job"},
 "tensorboard": {"enabled": true, "output_path": "tb", "job_name": "job"}}
JSON
train=("$LOCKSTEP" train --train_data_path t.bin --model tiny --num_layers 1 --vocab_size 256 --seq_length 32 --threads 1
       --max_steps 16 --save_every 4 --deepspeed_config ds.json)
mkdir -p csv/job && printf 'step,lr\r\n1,0.5\r\n' >csv/job/Train_Samples_lr.csv # of an earlier run
export LOCKSTEP_FAULT="kind=kill,rank=0,step=3,attempt=1;kind=kill,rank=0,step=7,attempt=2;kind=kill,rank=0,step=14,attempt=3"
expect 0 "" "${train[@]}" --checkpoint_path run --max_restarts 2
unset LOCKSTEP_FAULT
expect 0 "" "${train[@]}" --checkpoint_path whole

# every step once, also after the restart from step 0; rows of the earlier run stay
python3 - <<'PY' || bad "rows of the CSV file"
rows = open("csv/job/Train_Samples_lr.csv", newline="").read().split("\r\n")
parts = "\n".join(r.split(",")[0] for r in rows).split("step\n")
assert parts[1] == "1\n", parts
assert [int(x) for x in parts[2].split()] == list(range(1, 17)), parts
PY
[ "$(printf '%s\n' tb/job/* | wc -l)" = 5 ] || bad "event files: $(ls tb/job)"

expect 0 "" "$LOCKSTEP" report run whole --out page --no_png
grep -q "^run  *3  *3  *0 " "$SCRATCH/out" || bad "no line of the interrupted run: $(cat "$SCRATCH/out")"
grep -q "^  killed  *3, lost steps 5, " "$SCRATCH/out" || bad "no line of the cause: $(cat "$SCRATCH/out")"
grep -q "(interrupted)" "$SCRATCH/out" || bad "the run is not marked: $(cat "$SCRATCH/out")"
grep -q "## Interruptions" page/report.md || bad "no section"
[ -e page/charts/attempts.svg ] || bad "no chart of attempts"
expect 0 "" "$LOCKSTEP" report run whole --out page --no_png --json
python3 - "$SCRATCH/out" <<'PY' || bad "report --json: $(head -c 2000 "$SCRATCH/out")"
import json, sys
r = json.load(open(sys.argv[1]))
assert r["report"] == "page/report.html", r["report"]
part = r["parts"][0]
runs = {x["run"]: x["interruptions"] for x in part["runs"]}
assert runs["whole"] is None
i = runs["run"]
assert i["failures"] == i["restarts"] == 3 and not i["waits_for_restart"], i
assert [c["cause"] for c in i["causes"]] == ["killed"] and i["causes"][0]["lost_steps"] == 2 + 2 + 1, i["causes"]
assert [(a["from_step"], a["to_step"]) for a in i["attempts"]] == [(0, 2), (0, 6), (4, 13), (12, 16)], i["attempts"]
parts = [i[k + "_seconds"] for k in ("useful", "repeated", "waiting")]
assert 0 < i["goodput"] < 1 and sum(parts) <= i["wall_seconds"] * 1.01, i
assert sorted(s["interrupted"] for s in part["settings"]) == [False, True], part["settings"]
PY

expect 0 "" "$LOCKSTEP" watch run --once
grep -q "failures 3  restarts 3" "$SCRATCH/out" || bad "watch: $(cat "$SCRATCH/out")"

# a run that is given up has failed at once, and names the cause
LOCKSTEP_FAULT="kind=kill,rank=0,step=2,attempt=1;kind=kill,rank=0,step=2,attempt=2" expect 4 "" "${train[@]}" --checkpoint_path often --max_restarts 1
tail -n 1 often/events.jsonl | grep -q '"event": "end", .*"state": "failed", .*"attempt": 2' || bad "no end: $(tail -n 2 often/events.jsonl)"
expect 0 "" "$LOCKSTEP" watch often --once
head -n 1 "$SCRATCH/out" | grep -q "often  failed " || bad "watch of a run that was given up: $(cat "$SCRATCH/out")"

# killed together with its supervisor, as by a power cut, and resumed: what it had finished after its checkpoint is lost time, too
LOCKSTEP_FAULT="kind=kill,rank=0,step=3,attempt=1;kind=slow,seconds=30,rank=0,step=7,attempt=2" "${train[@]}" --checkpoint_path cut --max_restarts 2 >/dev/null 2>&1 &
cut=$!
sixth() { [ -e cut/step-4 ] && tail -n 1 cut/metrics.jsonl | grep -q '"step": 6,'; }
await "$cut" sixth || bad "cut: $(tail -n 1 cut/metrics.jsonl)"
worker=$(pgrep -P "$cut")
kill -9 "$cut" "$worker"
wait "$cut"
printf '{"event": "checkpoint", "st' >>cut/events.jsonl # a line that was cut must not take the start after it
expect 0 "" "${train[@]}" --checkpoint_path cut --resume
expect 0 "" "$LOCKSTEP" report cut --out page --no_png --json
python3 - "$SCRATCH/out" <<'PY' || bad "a run that was cut off: $(head -c 2000 "$SCRATCH/out")"
import json, sys
i = json.load(open(sys.argv[1]))["parts"][0]["runs"][0]["interruptions"]
assert [(c["cause"], c["lost_steps"]) for c in i["causes"]] == [("killed", 2), ("other", 2)], i["causes"]
assert [(a["from_step"], a["to_step"]) for a in i["attempts"]] == [(0, 2), (0, 6), (4, 16)], i["attempts"]
lines = open("cut/events.jsonl").read().split("\n")
torn = lines.index('{"event": "checkpoint", "st')
start = json.loads(lines[torn + 1])
assert start["event"] == "start", start
assert start["dropped_steps"] == 2 and i["repeated_seconds"] > start["dropped_seconds"] > 0, start
PY
# the same without another failure
cp -r cut alone
awk '/"start"/ { n++ } n > 1 && !/"restart"/' cut/events.jsonl >alone/events.jsonl
expect 0 "" "$LOCKSTEP" report alone --out page --no_png --json
python3 - "$SCRATCH/out" <<'PY' || bad "a run that was cut off, without failures: $(head -c 2000 "$SCRATCH/out")"
import json, sys
i = json.load(open(sys.argv[1]))["parts"][0]["runs"][0]["interruptions"]
assert [(c["cause"], c["lost_steps"]) for c in i["causes"]] == [("other", 2)] and i["failures"] == 0 and 0 < i["goodput"] < 1, i
PY
grep -q "^## Interruptions" page/report.md || bad "alone: no section"

# the supervisor dies before it restarts the run: the time until somebody resumes it is no part of it
dead() { # RUN
  local pid tries
  for tries in 1 2 3 4 5; do # it waits for 0.5 s, in which a busy machine may miss it
    rm -rf "$1"
    LOCKSTEP_FAULT="kind=kill,rank=0,step=7" "${train[@]}" --checkpoint_path "$1" --max_restarts 2 >/dev/null 2>&1 &
    pid=$!
    until grep -q '"failure"' "$1/events.jsonl" 2>/dev/null || ! kill -0 "$pid" 2>/dev/null; do sleep 0.01; done
    kill -9 "$pid"
    wait "$pid"
    grep -q '"restart"' "$1/events.jsonl" || return
  done
  bad "$1: the supervisor was faster $tries times"
}
dead gone
cp -r gone anew
sleep 3
LOCKSTEP_FAULT="kind=kill,rank=0,step=14" expect 0 "" "${train[@]}" --checkpoint_path gone --resume --max_restarts 2
expect 0 "" "$LOCKSTEP" report gone --out page --no_png --json
python3 - "$SCRATCH/out" <<'PY' || bad "a supervisor that died: $(head -c 2000 "$SCRATCH/out"; cat gone/events.jsonl)"
import json, sys
i = json.load(open(sys.argv[1]))["parts"][0]["runs"][0]["interruptions"]
events = [json.loads(line) for line in open("gone/events.jsonl")]
starts = [e for e in events if e["event"] == "start"]
failures = [e for e in events if e["event"] == "failure"]
lost = [e["lost_seconds"] for e in events if e["event"] == "restart"]
lost.append((failures[0]["time_unix_ms"] - starts[1]["dropped_until_unix_ms"]) / 1e3) # until the first failure was noticed
assert [e["attempt"] for e in starts] == [1, 1, 2], starts
wall = (failures[0]["time_unix_ms"] - starts[0]["time_unix_ms"] + events[-1]["time_unix_ms"] - starts[1]["time_unix_ms"]) / 1e3
assert abs(i["wall_seconds"] - wall) < 0.01 and abs(i["waiting_seconds"] - sum(lost)) < 0.01 and i["goodput"], i
assert i["failures"] == 2 and i["restarts"] == 1 and i["causes"][0]["lost_steps"] == 2 + 1, i
PY

# a hang after which nothing is started any more: the time in which it was not noticed is charged to it, before and after somebody resumes the run
hung() { # STEPS FAILURES: of the whole run
  expect 0 "" "$LOCKSTEP" report hung --out page --no_png --json
  python3 - "$SCRATCH/out" "$1" "$2" <<'PY' || bad "hung: $(head -c 2000 "$SCRATCH/out"; cat hung/events.jsonl)"
import json, sys
i = json.load(open(sys.argv[1]))["parts"][0]["runs"][0]["interruptions"]
assert i["attempts"][-1]["to_step"] == int(sys.argv[2]) and i["failures"] == int(sys.argv[3]), i
cause, = i["causes"]
assert cause["waiting_seconds"] > 1.9 * i["failures"], i
assert i["wall_seconds"] - sum(i[k + "_seconds"] for k in ("useful", "repeated", "waiting")) < 1.9, i
PY
}
LOCKSTEP_FAULT="kind=slow,seconds=60,rank=1,step=7,attempt=0,count=2" expect 4 "no progress" "${train[@]}" -n 2 --comm_timeout 2 --checkpoint_path hung --max_restarts 1
hung 6 2
expect 0 "" "${train[@]}" -n 2 --checkpoint_path hung --resume
hung 16 2

# a new run in the folder has none of it; the earlier one keeps its own events, without those of the run before
interruptions() { # RUN: failures, the steps of the first attempt; or null
  expect 0 "" "$LOCKSTEP" report "$1" --out page --no_png --json
  python3 -c '
import json, sys
i = json.load(open(sys.argv[1]))["parts"][0]["runs"][0]["interruptions"]
print(i and (i["failures"], i["attempts"][0]["to_step"]))' "$SCRATCH/out"
}
expect 0 "moved the checkpoints of an earlier run (up to step 4) to anew/earlier-1" "${train[@]}" --checkpoint_path anew --max_steps 8
[ "$(interruptions anew)" = None ] || bad "a new run inherits: $(interruptions anew)"
[ "$(interruptions anew/earlier-1)" = "(1, 6)" ] || bad "the earlier run: $(interruptions anew/earlier-1)"
same anew/earlier-1/events.jsonl <(head -n "$(wc -l <anew/earlier-1/events.jsonl)" anew/events.jsonl)
# the same if a run without a checkpoint is resumed
LOCKSTEP_FAULT="kind=kill,rank=0,step=3,attempt=0,count=9" expect 4 "" "${train[@]}" --checkpoint_path anew --max_restarts 1
expect 0 "moved the metrics of an earlier run to anew/earlier-3" "${train[@]}" --checkpoint_path anew --resume
[ "$(interruptions anew/earlier-2)" = None ] || bad "a run without failures: $(interruptions anew/earlier-2)"
[ "$(interruptions anew/earlier-3)" = "(2, 2)" ] || bad "resumed without a checkpoint: $(interruptions anew/earlier-3)"
[ "$(grep -c '"start"' anew/earlier-3/events.jsonl)" = 2 ] || bad "lines of other runs: $(cat anew/earlier-3/events.jsonl)"
[ "$(interruptions anew)" = None ] || bad "the run that began again: $(interruptions anew)"

# a run that somebody resumed counts from there; a profile of its first part makes it no benchmark
for name in plain profiled; do
    profile=()
    [ "$name" = plain ] || profile=(--profile)
    expect 0 "" "${train[@]}" --checkpoint_path "$name" --max_steps 8 "${profile[@]}"
    expect 0 "" "${train[@]}" --checkpoint_path "$name" --max_steps 16 --resume
done
expect 0 "" "$LOCKSTEP" report plain profiled whole --out resumed --no_png --json
python3 - "$SCRATCH/out" <<'PY' || bad "resumed runs: $(head -c 2000 "$SCRATCH/out")"
import json, sys
benchmark = {s["setting"]: s["benchmark"] for s in json.load(open(sys.argv[1]))["parts"][0]["settings"]}
assert benchmark == {"single": True, "single (resumed_from_step 8)": True, "single (resumed_from_step 8, profiled)": False}, benchmark
PY
grep -q "No winner is shown" resumed/report.md || bad "a winner of single runs"
# a line that rank 0 was writing when it was killed must not take the failure after it
LOCKSTEP_FAULT="kind=slow,seconds=2,rank=0,step=3,attempt=1;kind=kill,rank=0,step=3,phase=backward,attempt=1" "${train[@]}" --checkpoint_path torn --max_restarts 1 >/dev/null 2>&1 &
torn=$!
second() { tail -n 1 torn/metrics.jsonl | grep -q '"step": 2,'; }
await "$torn" second || bad "torn: $(tail -n 1 torn/metrics.jsonl)"
printf '{"event": "checkpoint", "st' >>torn/events.jsonl
wait "$torn" || bad "torn: exit code $?"
grep -q '^{"event": "failure", ' torn/events.jsonl && grep -qx '{"event": "checkpoint", "st' torn/events.jsonl || bad "torn: $(cat torn/events.jsonl)"
done_tests
