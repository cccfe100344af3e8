"""Compares what Lockstep writes and prints with docs/FORMATS.md, in both directions.

    formats.py FORMATS.md LOCKSTEP MANIFEST

MANIFEST has one line per artifact: SECTION TAB PATH. SECTION is the name in code of a heading of FORMATS.md with a table of keys, or `files:`
and the text of a heading with a table of files; PATH is a JSON file, a .jsonl file, a safetensors file or a folder. With a line `met` TAB WORD,
keys whose condition in FORMATS.md begins with WORD must exist too. Flags are compared with the output of `LOCKSTEP ... --help`.
"""
import json
import os
import re
import struct
import subprocess
import sys

CONDITIONS = ("GPU", "NCCL", "fp16", "fp8")  # tested if the manifest has a line `met` for them
TYPES = {"string": (str,), "int": (int,), "real": (float, int), "bool": (bool,), "object": (dict,), "list": (list,)}
bad = 0


def fail(text):
    global bad
    bad += 1
    print("FORMATS:", text)


def braces(text):
    """`a.{b,c}` to a.b and a.c; alternatives may be empty and contain dots."""
    m = re.search(r"\{([^{}]*)\}", text)
    if not m:
        return [text]
    return [x for word in m.group(1).split(",") for x in braces(text[:m.start()] + word + text[m.end():])]


def parts(path):
    return [p for p in path.replace("[]", ".[]").split(".") if p]


class Key:
    def __init__(self, text, path, kind, when, line):  # text: the key of a row; a heading can put it at several paths
        self.text, self.path, self.when, self.line, self.seen = text, parts(path), when, line, False
        words = kind.split(" or ")
        self.any = words[0] == "any"
        self.types = () if self.any else TYPES[words[0]]
        self.null = "null" in words[1:]

    def fits(self, path):
        if self.path and self.path[-1] == "**":
            front = self.path[:-1]
            return len(path) > len(front) and all(w in ("*", p) for w, p in zip(front, path))
        return len(path) == len(self.path) and all(w == p or (w == "*" and p != "[]") for w, p in zip(self.path, path))

    def exact(self):
        return sum(w not in ("*", "**") for w in self.path) + (self.path[-1:] != ["**"])

    def takes(self, value):
        if value is None:
            return self.null or self.any
        return self.any or (isinstance(value, self.types) and (bool in self.types or not isinstance(value, bool)))


def code(cell):
    return re.findall(r"`([^`]+)`", cell)


def read(path):
    """Keys by section, files by heading, flags by command, hidden flags by command, other names of flags by command."""
    keys, files, flags, hidden, names = {}, {}, {}, {}, {}
    section = prefix = title = kind = None
    for number, line in enumerate(open(path, encoding="utf-8"), 1):
        line = line.rstrip("\n")
        if m := re.match(r"(#+) (.*)", line):
            name = code(m.group(2))
            if len(m.group(1)) == 4:
                prefix = name[0]
            else:
                title, section, prefix = m.group(2), name[0] if name else None, ""
            kind = None
        elif line.startswith("Accepted for"):
            hidden.setdefault(section, [])
            kind = "hidden"
        elif line.startswith("|"):
            cells = [c.strip() for c in re.split(r"(?<!\\)\|(?!endoftext)(?<!endoftext\|)", line)[1:-1]]
            if cells[0] in ("key", "file", "flag", "other name"):
                kind = cells[0]
            elif cells[0].startswith("---"):
                continue
            elif kind == "key":
                for text in code(cells[0]):
                    for start in braces(prefix):
                        for one in braces(text):
                            full = f"{start}.{one}" if start else one
                            keys.setdefault(section, []).append(Key(one, full, cells[1], cells[2], number))
            elif kind == "file":
                for text in code(cells[0]):
                    files.setdefault(title, []).append([text, cells[1], False, number])
            elif kind == "flag":
                flags.setdefault(section, set()).update(code(cells[0]))
            elif kind == "other name":
                names.setdefault(section, set()).update(code(cells[0]))
        if kind == "hidden" and not line:
            kind = None
        if kind == "hidden":
            hidden[section] += [f for f in code(line) if f.startswith("--") and f not in ("--n", "--out")]
    return keys, files, flags, hidden, names


def walk(value, path, each):
    if isinstance(value, dict):
        for k, v in value.items():
            each(path + [k], v)
            walk(v, path + [k], each)
    elif isinstance(value, list):
        for v in value:
            if isinstance(v, (dict, list)):
                walk(v, path + ["[]"], each)


def load(path):
    if path.endswith(".safetensors"):
        with open(path, "rb") as f:
            return [json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))]
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f] if path.endswith(".jsonl") else [json.load(f)]


def check_keys(section, path, keys):
    reported = set()

    def one(where, value):
        fitting = sorted((k for k in keys if k.fits(where)), key=Key.exact, reverse=True)
        name = ".".join(where).replace(".[]", "[]")
        if not fitting:
            if name not in reported:
                fail(f"{path}: key {name} is not in section `{section}`")
        else:
            fitting[0].seen = True
            if not fitting[0].takes(value) and name not in reported:
                fail(f"{path}: {name} is {json.dumps(value)[:40]}, line {fitting[0].line} states another type")
        reported.add(name)

    for value in load(path):
        walk(value, [], one)


def check_files(title, path, files):
    for folder, _, names in os.walk(path):
        for name in names:
            full = os.path.relpath(os.path.join(folder, name), path)
            for row in files:
                pattern = re.sub(r"<[^>]*>", "[^/]+", row[0].replace(".", r"\."))
                if re.fullmatch(pattern + (".*" if row[0].endswith("/") else ""), full):
                    row[2] = True
                    break
            else:
                fail(f"{os.path.join(path, full)}: the table of files under '{title}' does not list it")


def run(words):
    return subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def plain(flag):
    return flag.lstrip("-").replace("-", "_")


def check_flags(program, flags, hidden, names):
    for command, listed in flags.items():
        words = [program] + command.split()[1:]
        printed = {plain(f) for f in re.findall(r"^  (--[a-z0-9_-]+)", run(words + ["--help_all"]).stdout, re.M)} - {"help"}
        listed = {plain(f) for f in listed}
        for f in sorted(printed - listed):
            fail(f"`{command} --help_all` prints --{f}, which its table does not list")
        for f in sorted(listed - printed):
            fail(f"`{command} --help_all` does not print --{f}, which its table lists")
    for command, listed in names.items():
        rows = json.loads(run([program] + command.split()[1:] + ["--help=json"]).stdout)["options"]
        for f in sorted({"--" + r["name"] for r in rows if r["alias_of"]} ^ listed):
            fail(f"`{command}`: {f} is {'no other name of a flag' if f in listed else 'not in the table of other names'}")
    for command, accepted in hidden.items():
        words = [program] + command.split()[1:]
        unknown = run(words + ["--no_such_flag"]).stderr.splitlines()[0]
        for f in accepted:
            if run(words + [f]).stderr.splitlines()[0] == unknown.replace("--no_such_flag", f):
                fail(f"`{command}` does not accept {f}")


def main():
    keys, files, flags, hidden, names = read(sys.argv[1])
    n = 0
    open_conditions = ["rare", *CONDITIONS]
    for line in open(sys.argv[3]):
        section, path = line.rstrip("\n").split("\t")
        if section == "met":
            open_conditions.remove(path)
            continue
        n += 1
        if section.startswith("files:"):
            check_files(section[6:], path, files[section[6:]])
        else:
            check_keys(section, path, keys[section])
    check_flags(sys.argv[2], flags, hidden, names)
    for section, rows in keys.items():
        by_row = {}
        for k in rows:
            by_row.setdefault((k.line, k.text), []).append(k)
        for (line, text), same in by_row.items():
            if not any(k.seen for k in same) and not same[0].when.startswith(tuple(open_conditions)):
                fail(f"line {line}: no run has {text} of `{section}`")
    for title, rows in files.items():
        for text, when, seen, line in rows:
            if not seen and not when.startswith(tuple(open_conditions)):
                fail(f"line {line}: no run has the file {text} of '{title}'")
    print(f"{n} artifacts, {sum(map(len, keys.values()))} keys, {sum(map(len, files.values()))} files, "
          f"{sum(map(len, flags.values()))} flags: {bad} differences")
    return 1 if bad else 0


sys.exit(main())
