#!/usr/bin/env python3
"""Writes man pages and shell completions from the program's own help, so that they list exactly the options it has.

    pages.py PROGRAM OUT [--date YYYY-MM-DD]

OUT/man1/*.1, OUT/bash/lockstep, OUT/zsh/_lockstep, OUT/fish/lockstep.fish. The source is `lockstep --help=json` (commands), `COMMAND
--help=json` (rows of the option table) and `COMMAND --help-all` (the text around them).
"""

import argparse
import json
import re
import subprocess
import time
from pathlib import Path

PATH_ARG = re.compile(r"^(PATH|FILE|DIR|RUN|RUN_DIR|RUNS|FOLDER)\b|\b(PATH|FILE|DIR)\b")
WORDS_ARG = re.compile(r"^[a-z0-9_.-]+(\|[a-z0-9_.-]+)+$")


class Option:
    def __init__(self, row):
        self.name, self.kind, self.alias_of, self.value = row["name"], row["kind"], row["alias_of"], row["value"]
        self.arg = row["arg"] or {"switch": "", "text": "TEXT"}.get(self.kind, "N")
        self.takes_value = self.kind != "switch"  # else arg, if any, may follow: --resume [RUN]
        self.help, self.section, self.default = row["help"], row["section"] or "Options", row["default"]
        self.hidden = not self.help and not self.alias_of

    def text(self):
        has_default = self.default is not None and self.kind != "switch" and not self.help.endswith("]")
        return self.help + (f" [{self.default}]" if has_default else "")

    def summary(self):
        """One line for a completion menu."""
        if self.alias_of:
            return f"same as --{self.alias_of}{' ' + self.value if self.value else ''}"
        return re.split(r"[;:] ", re.sub(r" *\[[^]]*\]$", "", self.help))[0]

    def values(self):
        return self.arg.split("|") if WORDS_ARG.match(self.arg) else []

    def takes_path(self):
        return bool(PATH_ARG.search(self.arg))

    def flag(self):
        return ("-" if len(self.name) == 1 else "--") + self.name


class Page:
    """One help page: a command, or a command with the words that select another option table."""

    def __init__(self, program, words, summary):
        self.words, self.summary = words, summary
        data = json.loads(output(program, *words, "--help=json"))
        usage = data["usage"].split("\n")
        self.usage = [u.strip().removeprefix("lockstep ") for u in usage]
        self.commands, self.forms = data.get("commands", []), data.get("forms", [])
        self.options = [o for o in map(Option, data.get("options", [])) if not o.hidden]
        self.intro, self.after = split_help(output(program, *words, "--help-all"), self.options)

    def offered(self):
        return self.options + [HELP, HELP_ALL]


HELP = Option(dict(name="help", kind="switch", alias_of=None, value=None, arg=None, help="print the most used options", section=None, default=None))
HELP_ALL = Option(dict(name="help_all", kind="switch", alias_of=None, value=None, arg=None, help="print every option", section=None, default=None))


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def split_help(text, options):
    """(text between the usage and the first heading, [(heading, lines)] of the parts that are no options)."""
    lines = text.rstrip("\n").split("\n")
    start = lines.index("") + 1 if "" in lines else len(lines)
    names, sections = {o.name for o in options}, {o.section for o in options}
    intro, after, heading = [], [], None
    for line in lines[start:]:
        option = re.match(r"^  --([\w-]+)", line)
        if option and option[1] in names and heading not in sections:
            heading = next(o.section for o in options if o.name == option[1])  # options without a heading
        elif re.match(r"^[A-Z][^:]*:$", line):
            heading = line[:-1]
            after.append((heading, []))
        elif heading is None:
            intro.append(line)
        elif heading not in sections:
            after[-1][1].append(line)
    return intro, [(h, body) for h, body in after if h not in sections]


def is_example(heading):
    return heading in ("Examples", "First run")


def read_pages(program):
    top = Page(program, [], "train GPT-2 under every parallel strategy")
    pages = []
    for c in top.commands:
        page = Page(program, [c["name"]], c["help"])
        pages.append(page)
        pages += [Page(program, [c["name"], sub["name"]], sub["help"]) for sub in page.commands]
    for form in top.forms:
        parent = next(p for p in pages if p.words == form.split()[:1])
        pages.append(Page(program, form.split(), f"{parent.summary} ({form})"))
    return top, pages


# ---- man pages ----


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("~", "\\(ti").replace("^", "\\(ha")
    text = re.sub(r"`([^`']*)[`']", r"\\fB\1\\fR", text)
    return re.sub(r"(?m)^([.'])", r"\\&\1", text)


def paragraphs(lines):
    """Lines that begin with a blank are examples and stay as they are."""
    out, verbatim = [], False
    for line in lines:
        example = line.startswith("  ")
        if example != verbatim:
            if example and out and out[-1] != ".PP":
                out.append(".PP")
            out += [".RS 4", ".nf"] if example else [".fi", ".RE"]
            verbatim = example
        if line.strip():
            out.append(roff(line[2:] if example else line))
        elif not verbatim and out and out[-1] not in (".PP", ".RE"):
            out.append(".PP")
    if verbatim:
        out += [".fi", ".RE"]
    while out and out[-1] == ".PP":
        out.pop()
    return out


def definitions(lines):
    """'  term   text' with continuation lines as tagged paragraphs; other text as paragraphs."""
    out, in_text = [], False
    for line, following in zip(lines, [*lines[1:], ""]):
        row = re.match(r"^  (\S.*?)(?: {2,}(\S.*))?$", line)
        if row and (row[2] or following.startswith("   ")):
            out += [".TP", ".B " + roff(row[1])] + ([roff(row[2])] if row[2] else [])
            in_text = False
        elif line.strip():
            if row and not in_text:
                out += [".PP"] if out else []
                in_text = True
            out.append(roff(line.strip()))
    return out


def section(heading, lines):
    return [".SH " + roff(heading.upper()), *(paragraphs(lines) if is_example(heading) else definitions(lines))]


def option_list(options):
    out, section = [], None
    names = {}
    for o in options:
        if o.alias_of:
            names.setdefault(o.alias_of, []).append(o)
    for o in options:
        if o.alias_of or not o.help:
            continue
        if o.section != section:
            section = o.section
            out += [".SS " + roff(section)] if section != "Options" else []
        out += [".TP", f".B {roff(o.flag())}" + (f" \\fI{roff(o.arg)}\\fR" if o.arg else ""), roff(o.text())]
        also = [roff(a.flag()) + (f" \\fI{roff(a.arg)}\\fR (= {roff(o.flag())} {roff(a.value)})" if a.value else "") for a in names.get(o.name, [])]
        if also:
            out += [".br", "Also: " + ", ".join(also)]
    return out


def synopsis(page):
    out = []
    for i, usage in enumerate(page.usage):
        out += [".br"] * (i > 0) + [".B lockstep", roff(usage)]
    return out


def see_also(names):
    refs = [f".BR {roff(n)} (1)" for n in names]
    return [".SH SEE ALSO"] + [r + "," for r in refs[:-1]] + refs[-1:] + [
        ".PP", "Guide, file formats and reference of all measurements: /usr/share/doc/lockstep (of the Debian package)."]


def man(words, summary, body, version, date):
    name = "-".join(["lockstep", *words])
    head = [f'.TH {roff(name.upper())} 1 "{date}" "Lockstep {version}" "User Commands"', ".nh", ".ad l", ".SH NAME", f"{roff(name)} \\- {roff(summary)}"]
    return "\n".join([*head, *body]) + "\n"


def man_pages(top, pages, version, date):
    """{file name: text}"""
    named = [p for p in pages if not p.words[-1].startswith("-") and not any(w.startswith("-") for w in p.words)]
    forms = [p for p in pages if p not in named]
    out = {}
    body = [".SH SYNOPSIS", *synopsis(top), ".SH DESCRIPTION", *paragraphs(top.intro), ".SH COMMANDS"]
    for c in top.commands:
        body += [".TP", f".BR {roff('lockstep-' + c['name'])} (1)", roff(c["help"])]
    for heading, lines in top.after:
        if heading == "Commands":
            continue
        body += section(heading, lines)
    out["lockstep.1"] = man([], top.summary, body + see_also(["lockstep-" + c["name"] for c in top.commands]), version, date)
    for p in named:
        body = [".SH SYNOPSIS", *synopsis(p), ".SH DESCRIPTION", *paragraphs([] if p.commands else p.intro)]
        related = ["lockstep"] + ["-".join(["lockstep", *q.words]) for q in named if q is not p and q.words[0] == p.words[0]]
        if p.commands:
            body += ["Each of its commands has its own page."]
            for c in p.commands:
                body += [".TP", f".BR {roff('-'.join(['lockstep', *p.words, c['name']]))} (1)", roff(c["help"])]
        elif p.options:
            body += [".SH OPTIONS", *option_list(p.options)]
        for f in (f for f in forms if f.words[0] == p.words[0] and len(p.words) == 1):
            body += [".SH " + roff("OPTIONS WITH " + " ".join(f.words[1:])), *paragraphs(f.intro), *option_list(f.options)]
        for heading, lines in p.after:
            body += section(heading, lines)
        out["-".join(["lockstep", *p.words]) + ".1"] = man(p.words, p.summary, body + see_also(related), version, date)
    return out


# ---- completions ----


def completion_pages(pages):
    """{words: options}; the tables of `--task translate` and the like are offered with their command."""
    out = {}
    for p in pages:
        key = tuple(w for w in p.words if not w.startswith("-"))[:2]
        if any(w.startswith("-") for w in p.words):
            key = (p.words[0],)
        rows = out.setdefault(key, {})
        for o in p.offered():
            rows.setdefault(o.name, o)
    return {k: list(v.values()) for k, v in out.items()}


def has_options(pages):
    return {tuple(p.words) for p in pages if p.options}


def subcommands(pages):
    out = {}
    for p in pages:
        if len(p.words) == 2 and not p.words[1].startswith("-"):
            out.setdefault(p.words[0], []).append((p.words[1], p.summary))
    return out


BASH = """# bash completion for lockstep: made by packaging/pages.py from the program's option tables
_lockstep() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} at=1 i key options
    for ((i = 1; i < COMP_CWORD; i++)); do # launch and profile: a command of its own follows --
        [[ ${COMP_WORDS[i]} != -- ]] || at=$((i + 1))
    done
    [[ ${COMP_WORDS[at]} != lockstep || $at -eq 1 ]] || at=$((at + 1))
    [[ $cur != "=" ]] || { cur=; prev=${COMP_WORDS[COMP_CWORD-1]}; }
    [[ $prev != "=" ]] || prev=${COMP_WORDS[COMP_CWORD-2]}
    COMPREPLY=()
    if ((COMP_CWORD <= at)); then
        COMPREPLY=($(compgen -W "@COMMANDS@ help --help --version" -- "$cur"))
        return
    fi
    key=${COMP_WORDS[at]}
    case $key in
    help)
        COMPREPLY=($(compgen -W "@COMMANDS@" -- "$cur"))
        return
        ;;
@SUBCOMMANDS@
    esac
    local name=${prev//_/-}
    case $key:$name in
@VALUES@
    esac
    case $key in
@OPTIONS@
    esac
    if [[ $cur == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$cur"))
        if ((${#COMPREPLY[@]} == 0)); then # - and _ are equal in names
            COMPREPLY=($(compgen -W "${options//_/-}" -- "${cur//_/-}"))
        fi
        return
    fi
    compopt -o filenames 2>/dev/null
    COMPREPLY=($(compgen -f -- "$cur"))
}
complete -F _lockstep lockstep
"""


def bash(top, pages):
    subs, values, options = [], [], []
    for command, names in subcommands(pages).items():
        words = [n for n, _ in names]
        files = ' $(compgen -f -- "$cur")' if (command,) in has_options(pages) else ""
        subs.append(
            f"    {command})\n        if ((COMP_CWORD == at + 1)) && [[ $cur != -* ]]; then\n"
            f'            COMPREPLY=($(compgen -W "{" ".join(words)}" -- "$cur"){files})\n            return\n        fi\n'
            f'        case ${{COMP_WORDS[at+1]}} in {"|".join(words)}) key="$key ${{COMP_WORDS[at+1]}}" ;; esac\n        ;;'
        )
    for key, rows in completion_pages(pages).items():
        name = " ".join(key)
        by_value = {}
        for o in rows:
            if o.values():
                by_value.setdefault(" ".join(o.values()), []).append(o.flag().replace("_", "-"))
        for words, flags in by_value.items():
            pattern = " | ".join(f'"{name}:{f}"' for f in flags)
            values.append(f'    {pattern})\n        COMPREPLY=($(compgen -W "{words}" -- "$cur"))\n        return\n        ;;')
        options.append(f'    "{name}")\n        options="{" ".join(o.flag() for o in rows)}"\n        ;;')
    return (
        BASH.replace("@COMMANDS@", " ".join(c["name"] for c in top.commands))
        .replace("@SUBCOMMANDS@", "\n".join(subs))
        .replace("@VALUES@", "\n".join(values))
        .replace("@OPTIONS@", "\n".join(options))
    )


def zsh_quote(text):
    return text.replace("'", "'\\''")


def zsh_text(text):
    return zsh_quote(re.sub(r"([\[\]:\\])", r"\\\1", text))


def zsh(top, pages):
    out = ["#compdef lockstep", "# zsh completion for lockstep: made by packaging/pages.py from the program's option tables", ""]
    keys, subs = completion_pages(pages), subcommands(pages)
    for key, rows in keys.items():
        out.append(f"_lockstep_{'_'.join(key)}() {{")
        out.append("  _arguments -s -S \\")
        for o in rows:
            spec = f"*{o.flag()}[{zsh_text(o.summary())}]"
            if o.takes_value:
                action = f"({' '.join(o.values())})" if o.values() else "_files" if o.takes_path() else " "
                spec += f":{zsh_text(o.arg)}:{action}"
            out.append(f"    '{spec}' \\")
        if key[0] in subs and len(key) == 1:
            names = " ".join(f"'{n}:{zsh_text(h)}'" for n, h in subs[key[0]])
            out += ["    '1: :->name' '*:: :->rest'", "  case $state in", "    name)", f"      local -a names=({names})", "      _describe -t commands command names", "      _files ;;", "  esac"]
        else:
            out.append("    '*:file:_files'")
        out += ["}", ""]
    commands = " ".join(f"'{c['name']}:{zsh_text(c['help'])}'" for c in top.commands)
    out += [
        "_lockstep() {",
        "  local curcontext=$curcontext state line",
        f"  local -a commands=({commands})",
        "  if (( CURRENT == 2 )); then",
        "    _describe -t commands command commands",
        "    _arguments '--help[print the commands]' '--version[print the version]'",
        "    return",
        "  fi",
        "  local name=$words[2]",
        "  if [[ $name == help ]]; then _describe -t commands command commands; return; fi",
        "  shift words; (( CURRENT-- ))",
        "  if (( $+functions[_lockstep_${name}_$words[2]] && CURRENT > 2 )); then",
        "    name=${name}_$words[2]; shift words; (( CURRENT-- ))",
        "  fi",
        "  (( $+functions[_lockstep_$name] )) && _lockstep_$name",
        "}",
        "",
        '_lockstep "$@"',
    ]
    return "\n".join(out) + "\n"


def fish_quote(text):
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def fish(top, pages):
    out = ["# fish completion for lockstep: made by packaging/pages.py from the program's option tables"]
    names = [c["name"] for c in top.commands]
    none = "not __fish_seen_subcommand_from help " + " ".join(names)
    for c in [*top.commands, {"name": "help", "help": "print the help of a command"}]:
        out.append(f"complete -c lockstep -f -n {fish_quote(none)} -a {c['name']} -d {fish_quote(c['help'])}")
    out.append(f"complete -c lockstep -f -n {fish_quote(none)} -l version -d 'print the version'")
    out.append(f"complete -c lockstep -f -n '__fish_seen_subcommand_from help' -a {fish_quote(' '.join(names))}")
    subs = subcommands(pages)
    for command, rows in subs.items():
        when = f"__fish_seen_subcommand_from {command}; and not __fish_seen_subcommand_from {' '.join(n for n, _ in rows)}"
        for n, h in rows:
            out.append(f"complete -c lockstep -n {fish_quote(when)} -a {n} -d {fish_quote(h)}")
    for key, rows in completion_pages(pages).items():
        when = "; and ".join(f"__fish_seen_subcommand_from {w}" for w in key)
        if len(key) == 1 and key[0] in subs:
            when += f"; and not __fish_seen_subcommand_from {' '.join(n for n, _ in subs[key[0]])}"
        for o in rows:
            how = f"-x -a {fish_quote(' '.join(o.values()))}" if o.values() else "" if not o.takes_value else "-r" if o.takes_path() else "-x"
            letter = "-s" if len(o.name) == 1 else "-l"
            out.append(re.sub(" +", " ", f"complete -c lockstep -n {fish_quote(when)} {letter} {o.name} {how}") + f" -d {fish_quote(o.summary())}")
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser(description="man pages and shell completions from the program's own help")
    parser.add_argument("program")
    parser.add_argument("out", type=Path)
    parser.add_argument("--date", default=time.strftime("%Y-%m-%d", time.gmtime()))
    args = parser.parse_args()
    top, pages = read_pages(args.program)
    version = output(args.program, "--version").split()[1]
    files = {f"man1/{n}": t for n, t in man_pages(top, pages, version, args.date).items()}
    files |= {"bash/lockstep": bash(top, pages), "zsh/_lockstep": zsh(top, pages), "fish/lockstep.fish": fish(top, pages)}
    for name, text in files.items():
        path = args.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
