# shellcheck shell=bash
# lib.sh - for test scripts: a temporary folder, and checks that print the expected and the actual result.
# LOCKSTEP is the program; exit 77 skips with a printed reason.
set -u
LS_SOURCE=${LS_SOURCE:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
LOCKSTEP=${LOCKSTEP:-$LS_SOURCE/build/lockstep}
SCRATCH=$(mktemp -d "${TMPDIR:-/tmp}/lockstep-test.XXXXXX")
# Cleans up only when the test itself ends: a background child that gets SIGTERM before its exec also runs this trap.
# A test that needs more clean-up defines at_end.
at_end() { :; }
clean_up() { [ "$BASHPID" = $$ ] || return 0; at_end; chmod -R u+w "$SCRATCH" 2>/dev/null; rm -rf "$SCRATCH"; }
trap clean_up EXIT
# The CPU, unless a test gives --device: tests do the same on a machine with a GPU.
export LS_DEVICE=cpu
n_bad=0

skip() { echo "SKIPPED: $*"; exit 77; }
bad() { echo "FAILED: $*"; n_bad=$((n_bad + 1)); }

# expect CODE TEXT COMMAND...: the command must end with this exit code and print this text
expect() {
  local code=$1 words=$2 got
  shift 2
  "$@" >"$SCRATCH/out" 2>"$SCRATCH/err"
  got=$?
  [ "$got" = "$code" ] || bad "exit code $got, expected $code: $*: $(head -c 300 "$SCRATCH/err")"
  grep -q -- "$words" "$SCRATCH/err" "$SCRATCH/out" || bad "'$words' is not in the output: $*: $(head -c 300 "$SCRATCH/err")"
}

# await PID COMMAND...: waits until the command succeeds. Fails if the process ends before, or after 200 s: a limit for hangs, not for
# slow machines.
await() {
  local pid=$1 until=$((SECONDS + 200))
  shift
  until "$@" 2>/dev/null; do
    kill -0 "$pid" 2>/dev/null || { "$@"; return; }
    [ $SECONDS -lt $until ] || return 1
    sleep 0.05
  done
}

# keep RUN [HOSTS]: called before the run; other tests do not remove its copies in memory when it is killed (each run that starts removes those that nobody
# works on). For 20 s after its end.
keep() {
  (
    copies=() end=$((SECONDS + 100))
    until [ ${#copies[@]} -ge "${2:-1}" ]; do
      [ $SECONDS -lt $end ] || exit
      sleep 0.01
      [ ! -s "$1/memory_copy" ] || mapfile -t copies < <(compgen -G "/dev/shm/lockstep-$(id -u)/$(head -c 16 "$1/memory_copy")-*")
    done
    for c in "${copies[@]}"; do (exec 9<"$c" && flock 9 && exec sleep 20) & done
  ) >/dev/null 2>&1 &
}

same() { cmp -s "$1" "$2" || bad "$1 and $2 differ"; }
done_tests() { [ "$n_bad" = 0 ] && echo "ok" && exit 0; echo "$n_bad checks failed"; exit 1; }

# tokens FILE COUNT [SEED]: a token file with some structure
tokens() {
  python3 - "$@" <<'PY'
import random, struct, sys
path, n = sys.argv[1], int(sys.argv[2])
r = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
words = [[r.randrange(256) for _ in range(r.randrange(2, 7))] for _ in range(60)]
ids = []
while len(ids) < n:
    ids += r.choice(words)
open(path, "wb").write(struct.pack(f"<{n}H", *ids[:n]))
PY
}
