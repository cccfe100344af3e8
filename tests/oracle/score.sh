#!/usr/bin/env bash
# Compares BLEU and chrF with sacrebleu on random corpora: 1,000 with LS_TEST_ALL=1, else 200. Needs the Python of `./run oracle`.
. "$(dirname "${BASH_SOURCE[0]}")/../support/lib.sh"
python=${LS_ORACLE:-${XDG_CACHE_HOME:-$HOME/.cache}/lockstep/oracle}/bin/python
[ -x "$python" ] || skip "no Python with sacrebleu at $python"
"$python" -c 'import sacrebleu' 2>/dev/null || skip "$python has no sacrebleu (./run oracle installs it)"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
n=200
[ -z "${LS_TEST_ALL:-}" ] || n=1000
"$python" "$here/score.py" "${LS_BUILD:-$LS_SOURCE/build}/oracle_score_tool" "$LOCKSTEP" "$n" || bad "score.py found differences"
done_tests
