#!/usr/bin/env bash
# Whole files of small runs, byte for byte, with times and names of the machine masked: compared with the goldens of tests/net (docs: tests/README.md).
. "$(dirname "$0")/../support/lib.sh"
command -v python3 >/dev/null || skip "python3 is missing"
TMPDIR=$SCRATCH LOCKSTEP=$LOCKSTEP python3 "$LS_SOURCE/tests/net/run.py" check || bad "files of runs differ from their goldens"
done_tests
