#!/usr/bin/env bash
# docs/tutorial.md is true: its commands run, in order and with small limits, and print what the page shows. Before each block of the page:
#   <!-- sed: s/A/B/; s/C/D/ -->     how its commands get small (optional)
#   <!-- shows: REGEX|REGEX -->      lines that the page and the program must both print
. "$(dirname "${BASH_SOURCE[0]}")/../support/lib.sh"
cd "$SCRATCH" || exit 1
mkdir build && ln -s "$LOCKSTEP" build/lockstep
cat >run.py <<'PY'
import re, subprocess, sys
page, failed, ran = open(sys.argv[1]).read(), 0, 0
blocks = re.findall(r"((?:^<!-- .*? -->\n)*)^```\n(.*?)^```$", page, re.M | re.S)
for notes, block in blocks:
    commands = re.findall(r"^\$ ((?:.*\\\n)*.*)", block, re.M)
    if not commands:
        continue
    shows = re.search(r"<!-- shows: (.*?) -->", notes)
    small = re.search(r"<!-- sed: (.*?) -->", notes)
    assert shows, f"no <!-- shows: --> before {commands[0]}"
    printed = ""
    for c in commands:
        for a, b in re.findall(r"s/(.*?)/(.*?)/", small.group(1) if small else ""):
            assert a in c or any(a in x for x in commands), f"'{a}' is not in {commands}"
            c = c.replace(a, b)
        r = subprocess.run(["bash", "-c", c.replace("\\\n", " ")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
        printed += r.stdout.decode(errors="replace")
        ran += 1
        if r.returncode:
            failed += 1
            print(f"FAILED: exit code {r.returncode}: {c}\n{printed[-800:]}")
    for regex in shows.group(1).split("|"):
        for what, text in (("the page", re.sub(r"^\$ (?:.*\\\n)*.*", "", block, flags=re.M)), ("the program", printed)):
            if not re.search(regex, text, re.M):
                failed += 1
                print(f"FAILED: {what} does not show '{regex}' after: {commands[0]}\n{printed[-1500:]}")
assert ran >= 9, f"{ran} commands in {sys.argv[1]}"
sys.exit(failed > 0)
PY
OMP_NUM_THREADS=1 python3 run.py "$LS_SOURCE/docs/tutorial.md" || bad "docs/tutorial.md does not show what the program does"
done_tests
