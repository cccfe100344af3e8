#!/usr/bin/env bash
# Help, version, wrong commands: on stdout or stderr, and the exit codes; every command has its own help.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*"; exit 1; }

for word in --help -h help; do
    "$LOCKSTEP" "$word" >"$work/out" 2>"$work/err" || fail "$word does not exit 0"
    [[ ! -s $work/err ]] || fail "$word writes to stderr"
    grep -q "^usage: lockstep COMMAND" "$work/out" || fail "$word prints no usage"
done
commands=$(sed -n 's/^  \([a-z]\{2,\}\) .*/\1/p' "$work/out" | grep -v '^lockstep$')
for c in prepare train eval generate doctor; do
    grep -qx "$c" <<<"$commands" || fail "the overview does not list $c"
done
for c in $commands; do
    "$LOCKSTEP" "$c" --help >"$work/out" 2>"$work/err" || fail "$c --help does not exit 0: $(cat "$work/err")"
    [[ ! -s $work/err ]] || fail "$c --help writes to stderr"
    head -n 1 "$work/out" | grep -q "^usage: lockstep $c" || fail "$c --help begins with: $(head -n 1 "$work/out")"
    grep -q -- "--" "$work/out" || fail "$c --help lists no option"
    awk 'length($0) > 80 { print FILENAME ": " $0; bad = 1 } END { exit bad }' "$work/out" || fail "$c --help has lines of more than 80 columns"
done

for c in "bench scaling" "bench strategies" "bench ab" "bench comm" "bench gemm" "bench r3" "report table" "report charts" "report verify" \
    "plan --schedule 1f1b" "prepare --task translate" "generate --task translate"; do
    # shellcheck disable=SC2086
    "$LOCKSTEP" $c --help >"$work/out" 2>"$work/err" || fail "$c --help does not exit 0: $(cat "$work/err")"
    awk 'length($0) > 80 { print; bad = 1 } END { exit bad }' "$work/out" || fail "$c --help has lines of more than 80 columns"
done
"$LOCKSTEP" --help | awk 'length($0) > 80 { print; bad = 1 } END { exit bad }' || fail "--help has lines of more than 80 columns"

"$LOCKSTEP" help bench scaling >"$work/out" || fail "help COMMAND does not exit 0"
"$LOCKSTEP" bench scaling --help | cmp -s - "$work/out" || fail "help bench scaling differs from bench scaling --help"

"$LOCKSTEP" --version | grep -Eqx 'lockstep [0-9]+\.[0-9]+\.[0-9]+' || fail "--version"

rc=0
"$LOCKSTEP" >"$work/out" 2>"$work/err" || rc=$?
[[ $rc -eq 2 && ! -s $work/out ]] || fail "no command: exit code $rc, or text on stdout"
grep -q "^usage:" "$work/err" || fail "no command: no usage on stderr"

rc=0
"$LOCKSTEP" trian >"$work/out" 2>"$work/err" || rc=$?
[[ $rc -eq 2 && ! -s $work/out ]] || fail "a wrong command: exit code $rc, or text on stdout"
head -n 1 "$work/err" | grep -q "^lockstep: bad usage: .*'trian'.*did you mean train?" || fail "wrong words: $(cat "$work/err")"
[[ $(wc -l <"$work/err") -eq 1 ]] || fail "an error prints more than one line: $(cat "$work/err")"
LS_LOG=debug "$LOCKSTEP" trian 2>"$work/err" && fail "a wrong command exits 0"
grep -q "^  at cli/common.c:" "$work/err" || fail "LS_LOG=debug prints no call trace: $(cat "$work/err")"
LS_LOG=info,error=trace "$LOCKSTEP" trian 2>"$work/err" && fail "a wrong command exits 0"
grep -q "^  at cli/common.c:" "$work/err" || fail "LS_LOG=error=trace prints no call trace: $(cat "$work/err")"

ops=${LS_BUILD:-$(dirname "$LOCKSTEP")}/bench_ops
if [[ -x $ops ]]; then
    "$ops" --help >"$work/out" 2>"$work/err" || fail "bench_ops --help does not exit 0"
    [[ ! -s $work/err && $(head -n 1 "$work/out") == "usage: bench_ops "* ]] || fail "bench_ops --help begins with: $(head -n 1 "$work/out")"
    grep -q " best " "$work/out" && fail "bench_ops --help measures"
    rc=0
    "$ops" --threads >"$work/out" 2>"$work/err" || rc=$?
    [[ $rc -eq 2 && ! -s $work/out ]] || fail "bench_ops --threads without a value gives exit code $rc, not 2"
fi

# The error of a full disk reaches the exit code.
if [[ -w /dev/full ]]; then
    rc=0
    "$LOCKSTEP" doctor >/dev/full 2>"$work/err" || rc=$?
    [[ $rc -eq 3 ]] || fail "stdout on a full disk gives exit code $rc, not 3"
fi

# ./run lists its commands too, and refuses others.
"$LS_SOURCE/run" help >"$work/out" # not through a pipe: grep -q would close it early
grep -q "^  demo " "$work/out" || fail "./run help does not list demo"
rc=0
"$LS_SOURCE/run" nonsense >/dev/null 2>&1 || rc=$?
[[ $rc -eq 2 ]] || fail "./run nonsense gives exit code $rc, not 2"
echo "help: ok"
