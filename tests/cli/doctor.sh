#!/usr/bin/env bash
# doctor names every part with a state, speaks JSON, and fails when a part that every run needs does not work.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*"; exit 1; }

"$LOCKSTEP" doctor >"$work/out" 2>"$work/err" || { cat "$work/out" "$work/err"; fail "doctor does not succeed on this machine"; }
[[ ! -s $work/err ]] || fail "stderr is not empty: $(cat "$work/err")"
for part in cpu memory openmp compute reference blas files mpi cuda nccl slurm; do
    grep -Eq "^  $part +(ok|missing|failed) +[^ ]" "$work/out" || fail "no row for $part"
done
for part in cpu memory openmp compute reference files; do
    grep -Eq "^  $part +ok " "$work/out" || fail "$part is not ok"
done
for part in cuda nccl slurm; do
    grep -E "^  $part " "$work/out" | grep -q "not used by this version" || fail "$part does not say that it is unused"
done
[[ -z $(find "${TMPDIR:-/tmp}" -maxdepth 1 -name 'lockstep-doctor-*') ]] || fail "doctor left a file behind"

"$LOCKSTEP" doctor --json >"$work/json"
python3 - "$work/json" <<'P'
import json, sys
d = json.load(open(sys.argv[1]))
assert d["ok"] is True, d
assert [p["name"] for p in d["parts"]] == "cpu memory openmp compute reference blas files mpi cuda nccl slurm".split(), d
assert all(p["state"] in ("ok", "missing", "failed") and p["text"] for p in d["parts"]), d
P

rc=0
TMPDIR=$work/none "$LOCKSTEP" doctor >"$work/out" 2>"$work/err" || rc=$?
[[ $rc -eq 4 ]] || fail "a folder that is not there gives exit code $rc, not 4"
grep -Eq "^  files +failed +there is no folder" "$work/out" || fail "the row does not say why"
grep -q "files does not work here" "$work/err" || fail "the error does not name the part"
[[ ! -e $work/none ]] || fail "doctor made TMPDIR"

rc=0
TMPDIR=$work/none "$LOCKSTEP" doctor --json >"$work/json" 2>/dev/null || rc=$?
[[ $rc -eq 4 ]] && grep -q '"ok": false' "$work/json" || fail "--json does not say that a part failed"

rc=0
"$LOCKSTEP" doctor --jsn >/dev/null 2>"$work/err" || rc=$?
[[ $rc -eq 2 ]] && grep -q "did you mean --json" "$work/err" || fail "a misspelt option is not refused with its name"
echo "doctor: ok"
