#!/usr/bin/env bash
# tools/hooks/commit-msg takes messages as CONTRIBUTING.md describes them and refuses others with a reason; tools/release takes the notes of a
# version from CHANGELOG.md and refuses a version without a dated section.
. "$(dirname "$0")/../support/lib.sh"
cd "$SCRATCH" || exit 1
hook=$LS_SOURCE/tools/hooks/commit-msg

# message TEXT: the hook's exit code; its reasons are in err
message() { printf '%b' "$1" >message && "$hook" message 2>err; }
# the example of CONTRIBUTING.md, and messages that git writes
sed -n '/^## Commits/,/^- Title/p' "$LS_SOURCE/CONTRIBUTING.md" | sed -n '/^```/,/^```/{/^```/!p}' >message
grep -q '^comm: ' message || bad "CONTRIBUTING.md has no example of a commit"
"$hook" message 2>err || bad "the example of CONTRIBUTING.md: $(cat err)"
for text in "core, cli: add a table of options\n\nWhy.\n" "docs: address the reader\n\nWhy.\n# a comment\n" "tests: pass beside a load\n\nWhy.\n" \
    "Merge branch 'a'\n" "fixup! core: x\n" "Revert \"core: add a\"\n\nWhy.\n" "run: skip what is missing\n\nWhy.\n# ---- >8 ----\ndiff\n"; do
    message "$text" || bad "refused: $text: $(cat err)"
done
refuses() { # refuses REASON TEXT
    ! message "$2" || bad "taken: $2"
    grep -q "$1" err || bad "$2: $(cat err)"
}
refuses "is not .folder" "Fixes of a review\n\nWhy.\n"
refuses "no folder" "wip: add a test\n\nWhy.\n"
refuses "73 characters" "core: add $(printf 'x%.0s' $(seq 63))\n\nWhy.\n"
for verb in fixes fixed fixing adds; do refuses "not imperative" "core: $verb a test\n\nWhy.\n"; done
refuses "small letters" "core: Add a test\n\nWhy.\n"
refuses "no body" "core: add a test\n"
refuses "no body" "core: add a test\n\n# only a comment\n"
refuses "second line" "core: add a test\nWhy.\n"

mkdir -p tree/tools tree/build && cp "$LS_SOURCE/tools/release" tree/tools/
printf '#!/bin/sh\necho lockstep 1.2.0\n' >tree/build/lockstep && chmod +x tree/build/lockstep
printf '# Changelog\n\n## 1.2.0 - unreleased\n\n### Added\n- new\n\n## 1.1.0 - 2026-01-31\n\n- old\n' >tree/CHANGELOG.md
[ "$(tree/tools/release notes)" = "$(printf '### Added\n- new')" ] || bad "notes of the program's version"
[ "$(tree/tools/release notes 1.1.0)" = "- old" ] || bad "notes of 1.1.0"
expect 1 "no section 9.9.9" tree/tools/release notes 9.9.9
expect 1 "no dated section 1.2.0" tree/tools/release check v1.2.0
sed -i 's/unreleased/2026-02-28/' tree/CHANGELOG.md
tree/tools/release check v1.2.0 || bad "a dated version with its tag is refused"
expect 1 "the tag is v1.1.0" tree/tools/release check v1.1.0
done_tests
