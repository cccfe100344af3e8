#!/usr/bin/env bash
# Man pages and completions that packaging/pages.py makes: every command has a page that renders without warnings, every option is in its page and is
# offered by bash, zsh and fish (each where it is installed); the files for containers and clouds are consistent.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*"; exit 1; }

python3 "$LS_SOURCE/packaging/pages.py" "$LOCKSTEP" "$work" --date 2026-01-31
python3 - "$LOCKSTEP" >"$work/options" <<'EOF'
# "command[ sub]<tab>option" of every row that help shows, from the program
import json, subprocess, sys
def read(*words):
    return json.loads(subprocess.run([sys.argv[1], *words, "--help=json"], check=True, capture_output=True, text=True).stdout)
top = read()
lines = [[c["name"]] for c in top["commands"]]
lines += [[c["name"], s["name"]] for c in top["commands"] for s in read(c["name"]).get("commands", [])] + [f.split() for f in top["forms"]]
for words in lines:
    key = " ".join(words if len(words) == 2 and not words[1].startswith("-") else words[:1])
    rows = [o["name"] for o in read(*words).get("options", []) if o["help"] or o["alias_of"]]
    for name in rows or ["help"]:
        print(key, ("-" if len(name) == 1 else "--") + name, sep="\t")
EOF
n=$(wc -l <"$work/options")
((n > 300)) || fail "only $n options"

# Man pages.
while IFS=$'\t' read -r key option; do
    [[ -s $work/man1/lockstep-${key// /-}.1 ]] || fail "no man page of lockstep $key"
    printf '%s\t%s\n' "$key" "${option//-/\\-}"
done <"$work/options" >"$work/roff"
awk -F '\t' -v dir="$work/man1/lockstep-" '{ file = $1; gsub(" ", "-", file); file = dir file ".1"
    if (!(file in text)) { while ((getline line < file) > 0) text[file] = text[file] "\n" line; close(file) }
    if ($2 != "\\-\\-help" && !index(text[file], $2)) { print $1 " " $2; bad = 1 } } END { exit bad }' "$work/roff" || fail "options without an entry in their man page"
if command -v mandoc >/dev/null; then
    mandoc -Tlint -Wwarning "$work"/man1/*.1 >"$work/lint" || fail "mandoc: $(head -n 5 "$work/lint")"
fi
if command -v groff >/dev/null; then
    groff -ww -man -Tascii "$work"/man1/*.1 >/dev/null 2>"$work/lint"
    [[ ! -s $work/lint ]] || fail "groff: $(head -n 5 "$work/lint")"
fi

# bash: one call for the options of a command, then a few values.
cat >"$work/complete.sh" <<'EOF'
. "$1/bash/lockstep"
offers() { COMP_WORDS=(lockstep "$@"); COMP_CWORD=$#; COMPREPLY=(); _lockstep; printf '%s\n' "${COMPREPLY[@]}"; }
last=
while IFS=$'\t' read -r key option; do
    [[ $key == "$last" ]] || { read -ra words <<<"$key"; all=$'\n'$(offers "${words[@]}" -)$'\n'; last=$key; }
    [[ $all == *$'\n'"$option"$'\n'* ]] || { echo "lockstep $key: $option is not offered"; exit 1; }
done < <(sort "$1/options")
commands=$'\n'$(offers '')$'\n'
for c in $(cut -f1 "$1/options" | cut -d' ' -f1 | sort -u); do [[ $commands == *$'\n'"$c"$'\n'* ]] || { echo "command $c is not offered"; exit 1; }; done
[[ $(offers train --precision b) == bf16 && $(offers train --precision = b) == bf16 ]] || { echo "values of --precision"; exit 1; }
[[ -z $(offers train --bf16 fp) ]] || { echo "values of --precision after --bf16"; exit 1; }
[[ $(offers train --seq-len | head -n 1) == --seq-len* ]] || { echo "hyphens in names"; exit 1; }
[[ $(offers launch --hosts a,b -- train --precis) == --precision ]] || { echo "launch -- train"; exit 1; }
EOF
bash "$work/complete.sh" "$work" || fail "bash completion"

if command -v fish >/dev/null; then
    cut -f1 "$work/options" | sort -u | while read -r key; do
        HOME=$work fish -N -c "source $work/fish/lockstep.fish; complete -C 'lockstep $key --'" | cut -f1 >"$work/fish.out"
        awk -F '\t' -v key="$key" 'NR == FNR { has[$0] = 1; next } $1 == key && $2 ~ /^--/ && !($2 in has) { print key " " $2; bad = 1 } END { exit bad }' "$work/fish.out" "$work/options" ||
            fail "fish does not offer these"
    done
fi
if command -v zsh >/dev/null; then
    cat >"$work/zsh.sh" <<'EOF'
_arguments() { print -rl -- "$@"; }
_describe() { local -a list=(${(P)@[-1]}); print -rl -- $list; }
_files() { :; }
work=$1
words=(lockstep ''); CURRENT=2
. $work/zsh/_lockstep >$work/commands
cut -f1 $work/options | sort -u | while read -r key; do
    words=(lockstep ${=key} --); CURRENT=$#words
    _lockstep >$work/zsh.out
    grep -P "^$key\t" $work/options | cut -f2 | while read -r option; do grep -qF -- "*$option""[" $work/zsh.out || { print "$key $option"; exit 1; }; done
done
EOF
    zsh -f "$work/zsh.sh" "$work" || fail "zsh completion"
    grep -q '^train:' "$work/commands" || fail "zsh does not offer the commands"
fi

rc=0
python3 "$LS_SOURCE/packaging/check_places.py" || rc=$?
[[ $rc -eq 0 || $rc -eq 77 ]] || fail "files for containers and clouds"
echo "package: ok, $n options"
