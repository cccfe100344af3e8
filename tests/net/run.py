#!/usr/bin/env python3
"""The net under a refactoring: whole files of small runs, byte for byte, compared with goldens in golden/CASE.txt.

    run.py check [CASE...]    makes the runs again and prints how they differ (exit code 1: they do)
    run.py make [CASE...]     writes the goldens; `git diff` then shows what changed
    run.py list               the cases, and what each of them runs
    --nccl                    check or make the case that needs GPUs and NCCL (see cases.py); exit code 77 without them

A golden has a section per command (exit code, stdout, stderr) and one per file of the folders that it made. Values that differ from one run or machine
to the next are replaced by marks; masks.py is the table of them, and everything else is compared byte for byte. Files that are no text
have their size and SHA-256 (safetensors: the header as text; event files: the records; pictures: the picture, with a tolerance).
LOCKSTEP is the program.
"""
import concurrent.futures
import difflib
import fnmatch
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import zlib

LIMIT = int(os.environ.get("NET_LINES", "40"))
HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parents[1]
LOCKSTEP = os.path.abspath(os.environ.get("LOCKSTEP", SOURCE / "build" / "lockstep"))
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True
import masks  # noqa: E402

INK = 0.05  # serifs instead of DejaVu Sans: 0.02
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null|[{}\[\]:,]')


class Skipped(Exception):
    pass


# --- masks ---


def json_values(text):
    """(begin, end, path, token) of every value that is no object or list. Path: a.b[].c, in each line of JSON lines."""
    stack, key, found = [], None, []  # of [kind, path]
    for m in TOKEN.finditer(text):
        t = m.group()
        here = stack[-1] if stack else None
        path = "" if not here else here[1] + "[]" if here[0] == "[" else f"{here[1]}.{key}" if here[1] else str(key)
        if t in "{[":
            stack.append((t, path))
            key = None
        elif t in "}]":
            stack.pop()
            key = None
        elif t in ",:":
            key = None if t == "," else key
        elif here and here[0] == "{" and key is None:
            key = t[1:-1]
        else:
            found.append((m.start(), m.end(), path, t))
    return found


def kind_of(token):
    if token[0] == '"':
        return "text"
    if token in ("true", "false", "null"):
        return token
    return "real" if any(c in token for c in ".eE") else "int"


class Masks:
    """The rules of one file. frozen, the number of a run from 1: a mark becomes a value that is always the same, of its type, so that programs can read the file."""

    def __init__(self, name, frozen=0):
        rules = [r for r in (masks.FIXED if name.startswith("fixed/") else masks.RULES) if any(fnmatch.fnmatchcase(name, f) for f in r[0].split())]
        self.name, self.frozen = name, frozen
        self.keys = [(re.compile(r[1][4:]), r[2]) for r in rules if r[1].startswith("key:")]
        self.texts = [(re.compile(r[1][5:], re.M), r[2]) for r in rules if r[1].startswith("text:")]
        self.dropped = [re.compile(r[1], re.M) for r in masks.DROPPED if any(fnmatch.fnmatchcase(name, f) for f in r[0].split())]
        self.unordered = [(re.compile(r[1]), re.compile(r[2]) if r[2] else None) for r in masks.UNORDERED if any(fnmatch.fnmatchcase(name, f) for f in r[0].split())]
        self.of_path = {}

    def mark_of(self, path):
        if path not in self.of_path:
            self.of_path[path] = next((mark for rule, mark in self.keys if rule.fullmatch(path)), None)
        return self.of_path[path]

    def value(self, path, token, mark, place):
        if self.frozen:
            return masks.frozen(mark, path, token, zlib.crc32(f"{self.name} {path} {place}".encode()) % 1000, place, self.frozen, self.name.split("/")[1])
        kind = kind_of(token)
        return f'"<{mark}>"' if kind == "text" else f"<{mark}>" if kind == "real" else f"<{mark} {kind}>"

    def json(self, text):
        out, at, times = [], 0, {}
        for begin, end, path, token in json_values(text):
            mark = self.mark_of(path)
            times[path] = times.get(path, 0) + 1
            if mark:
                out += [text[at:begin], self.value(path, token, mark, times[path])]
                at = end
        return "".join(out) + text[at:]

    def text(self, text):
        for rule in self.dropped:
            text = rule.sub("", text)
        for rule, mark in self.texts:
            def put(m, mark=mark):
                spans = [m.span(k) for k in range(1, m.re.groups + 1) if m.group(k) is not None] or [m.span()]
                out, at = "", m.start()
                for begin, end in spans:
                    value = f"<{mark}>" if not self.frozen else "1000" if m.string[begin:end].isdigit() else mark
                    out, at = out + m.string[at:begin] + value, end
                return out + m.string[at:m.end()]
            text = rule.sub(put, text)
        return text

    def order(self, text):
        for rule, anchor in self.unordered:
            lines = text.splitlines(True)
            moved = [x for x in lines if rule.match(x)]
            if anchor:
                out = []
                for x in lines:
                    at = max((k + 1 for k, y in enumerate(out) if anchor.match(y)), default=len(out)) if x in moved else len(out)
                    out.insert(at, x)
            else:
                out = [x for x in lines if x not in moved] + sorted(moved)
            text = "".join(out)
        return text

    def __call__(self, text):
        text = self.order(text)
        looks_json = self.name.endswith((".json", ".jsonl")) or text[:1] in "{[" and text.rstrip()[-1:] in "}]"
        if self.keys and looks_json:
            text = self.json(text)
        return self.order(self.text(text))


# --- files that are no text ---


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at


def message(data):
    """The fields of a protocol buffer: (number, value)."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == 0:
            value, at = varint(data, at)
        else:
            size, at = varint(data, at) if tag & 7 == 2 else ({1: 8, 5: 4}[tag & 7], at)
            value, at = data[at:at + size], at + size
        yield tag >> 3, value


def event_file(data):
    """TensorBoard's records, without their times; the checksums of a record are checked by the size of the file alone."""
    at, out = 0, []
    while at < len(data):
        size = struct.unpack_from("<Q", data, at)[0]
        event = dict(message(data[at + 12:at + 12 + size]))
        out.append(f"step {event.get(2, 0)} {event.get(3, b'').decode()}".rstrip())
        for _, value in message(event.get(5, b"")):
            fields = dict(message(value))
            out.append(f"  {fields[1].decode()} {struct.unpack('<f', fields[2])[0]!r}")
        at += 16 + size
    return "\n".join(out) + f"\n{'whole records' if at == len(data) else 'a cut record'}\n"


def picture(data):
    """The pixels of a PNG with 8 bits per sample, as rows of cells of 20 x 20 pixels, each with its mean lightness from 00 to ff."""
    at, body, head, palette = 8, b"", None, b""
    while at < len(data):
        size, what = struct.unpack_from(">I4s", data, at)
        if what == b"IHDR":
            head = struct.unpack_from(">IIBBBBB", data, at + 8)
        elif what == b"PLTE":
            palette = data[at + 8:at + 8 + size]
        elif what == b"IDAT":
            body += data[at + 8:at + 8 + size]
        at += 12 + size
    width, height, depth, colours, interlace = head[0], head[1], head[2], head[3], head[6]
    if depth != 8 or interlace:
        return f"PNG {width} x {height}, depth {depth}, not decoded\n"
    n = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colours]
    raw, before, rows = zlib.decompress(body), bytearray(width * n), []
    for y in range(height):
        begin = y * (width * n + 1)
        how, row = raw[begin], bytearray(raw[begin + 1:begin + 1 + width * n])
        for x in range(len(row) if how else 0):
            a, b, c = (row[x - n] if x >= n else 0), before[x], (before[x - n] if x >= n else 0)
            if how == 4:
                p = a + b - c
                near = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
            row[x] = row[x] + (a, b, (a + b) // 2, near if how == 4 else 0)[how - 1] & 255
        before = row
        if colours == 3:
            rows.append([sum(palette[3 * v:3 * v + 3]) // 3 for v in row])
        else:
            rows.append([sum(row[x:x + min(n, 3)]) // min(n, 3) if n > 2 else row[x] for x in range(0, len(row), n)])
    cells = []
    for y in range(0, height, 20):
        part = rows[y:y + 20]
        cells.append(" ".join(f"{sum(sum(r[x:x + 20]) for r in part) // sum(len(r[x:x + 20]) for r in part):02x}" for x in range(0, width, 20)))
    return f"PNG {width} x {height}\n" + "\n".join(cells) + "\n"


def same_picture(a, b):
    """Fonts differ from one machine to the next: the sizes are equal, and the cells differ by at most INK of all that is drawn."""
    a, b = a.split("\n", 1), b.split("\n", 1)
    p, q = ([int(x, 16) for x in cells.split()] for cells in (a[1], b[1]))
    return a[0] == b[0] and len(p) == len(q) and sum(abs(x - y) for x, y in zip(p, q)) <= INK * sum(255 - x for x in p)


def binary(path, data):
    if path.endswith(".safetensors"):
        size = struct.unpack_from("<Q", data)[0]
        return data[8:8 + size].decode().replace('}, "', '},\n"') + f"\n{len(data) - 8 - size} bytes of tensors: {hashlib.sha256(data[8 + size:]).hexdigest()}\n"
    if "tfevents" in path:
        return event_file(data)
    if path.endswith(".png"):
        return picture(data)
    return f"{len(data)} bytes: {hashlib.sha256(data).hexdigest()}\n"


# --- a case: commands and folders ---


def clean_env(home):
    keep = {k: v for k, v in os.environ.items() if k in ("PATH", "LD_LIBRARY_PATH", "GLIBC_TUNABLES") or k.startswith(("ASAN_", "UBSAN_", "LSAN_"))}
    return keep | {"HOME": home, "XDG_CACHE_HOME": home, "TMPDIR": home, "LC_ALL": "C", "TZ": "UTC", "COLUMNS": "80", "TERM": "dumb", "LS_DEVICE": "cpu",
                   "LS_SIMD": "generic", "LS_GEMM": "plain", "LS_PLUGIN_DIR": home, "GIT_COMMIT": "c0ffee", "EC2_INSTANCE_TYPE": "none", "OMP_NUM_THREADS": "1"}


class Case:
    def __init__(self, name, top):
        self.name, self.dir, self.sections, self.seen = name, os.path.join(top, name), [], {}
        os.makedirs(os.path.join(self.dir, ".home"))
        self.env = clean_env(os.path.join(self.dir, ".home"))

    def path(self, *parts):
        return os.path.join(self.dir, *parts)

    def plain(self, text):
        """Without the places of this machine."""
        return text.replace(self.dir, "/case").replace(LOCKSTEP, "lockstep").replace(os.path.dirname(LOCKSTEP), "/build").replace(str(SOURCE), "/source")

    def add(self, name, text, rules=None):
        """Control characters, and a missing newline at the end, can be seen."""
        text = Masks(rules or name)(self.plain(text))
        text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", lambda m: f"\\x{ord(m.group()):02x}", text)
        if text and not text.endswith("\n"):
            text += "\n\\ no newline at the end\n"
        self.sections.append((name, self.shorter(name, text)))

    def shorter(self, name, text):
        """A text that resembles an earlier one, of a file of the same name, as the difference."""
        earlier = self.seen.setdefault(os.path.basename(name), [])
        for where, other in reversed(earlier if len(text) > 200 else []):
            if text == other:
                return f"as {where}\n"
            change = "".join(x if x.endswith("\n") else x + "\n" for x in list(difflib.unified_diff(other.splitlines(True), text.splitlines(True), n=0))[2:])
            if len(change) < 0.3 * len(text):
                return f"as {where}, with this difference:\n{change}"
        earlier.append((name, text))
        return text

    def run(self, *args, env=None, ordered=True, rules=""):
        """A command of lockstep. ordered False: several processes print to stderr, and its lines are sorted. rules: instead of those of the command;
        "fixed/": it reads files with fixed numbers, and next to nothing is masked."""
        args = [str(a) for a in args]
        p = subprocess.run([LOCKSTEP, *args], cwd=self.dir, env=self.env | (env or {}), stdin=subprocess.DEVNULL, capture_output=True, timeout=200)
        title = "$ " + " ".join([f"{k}={v}" for k, v in sorted((env or {}).items())] + ["lockstep", *(f"'{a}'" if re.search(r"[^\w./,:=@-]", a) else a for a in args)])
        self.sections.append((self.plain(title), f"exit code {p.returncode}\n"))
        out, err = (t.decode(errors="backslashreplace") for t in (p.stdout, p.stderr))
        number = sum(name.startswith("$") for name, _ in self.sections)
        if out:
            self.add(f"stdout of command {number}", out, f"{rules or args[0] + '.'}stdout")
        if err:
            self.add(f"stderr of command {number}", err if ordered else "".join(sorted(err.splitlines(True))), f"{rules or args[0] + '.'}stderr")
        return p.stdout.decode(errors="replace")

    def keep(self, folder, only="*", rules=""):
        """Every file below the folder; empty folders, links, and modes other than 644. rules: "fixed/" as in run."""
        found = []
        for at, folders, files in os.walk(self.path(folder)):
            folders.sort()
            found += [os.path.join(at, f) for f in files] + [os.path.join(at, f) for f in folders if not os.listdir(os.path.join(at, f))]
        for path in sorted(found):
            name = os.path.relpath(path, self.dir)
            if fnmatch.fnmatchcase(name, only):
                self.keep_file(name, path, rules)

    def keep_file(self, name, path, rules):
        for rule, short in masks.NAMES:
            name = re.sub(rule, short, name)
        if os.path.islink(path) or os.path.isdir(path):
            self.sections.append((name, f"link to {os.readlink(path)}\n" if os.path.islink(path) else "an empty folder\n"))
            return
        data, mode = pathlib.Path(path).read_bytes(), os.stat(path).st_mode & 0o777
        try:
            text = data.decode()
            if "\0" in text or (name.endswith("tokenizer.json") and self.name not in ("prepare", "translate")):
                text = binary(name, data)
        except UnicodeDecodeError:
            text = binary(name, data)
        if name.endswith("ranks.jsonl"):  # lines of one length, whatever is in them
            text = re.sub(r"^(.*\S)( +)$", lambda m: f"{m.group(1)} <blanks to {len(m.group())} bytes>", text, flags=re.M)
        self.add(name if mode == 0o644 else f"{name} (mode {mode:o})", text, rules + name)

    def freeze(self, folder, to):
        """A copy of run folders in which all that was measured has values that are always the same; the runs began in the order of their options.json."""
        shutil.copytree(self.path(folder), self.path(to))
        top = pathlib.Path(self.path(to))
        runs = [p.parent for p in sorted(top.rglob("options.json"), key=lambda p: p.stat().st_mtime_ns)]
        for path in top.rglob("*.json*"):
            number = next((k for k, r in enumerate(runs, 1) if r in path.parents), 1)
            text = path.read_text()
            if not path.match("tokenizer.json"):
                path.write_text(Masks(str(path.relative_to(self.dir)), frozen=number)(text))
        for path in top.rglob("RUN_COMPLETE.txt"):
            metrics = json.loads((path.parent / "training_metrics.json").read_text())["summary"]
            for key, value in (("tokens_per_sec", metrics["mean_tokens_per_sec_global"]), ("total_wall_time_sec", metrics["total_wall_time_sec"])):
                path.write_text(re.sub(rf"\b{key}=\S+", f"{key}={value!r}", path.read_text()))

    def golden(self):
        return "".join(f"@@@@ {name}\n{text}\n" for name, text in self.sections)


# --- comparison ---


def window(lines):
    """A pair of long lines: the part around the first difference."""
    if len(lines) == 2 and max(map(len, lines)) > 200:
        first = len(os.path.commonprefix([x[1:] for x in lines]))
        begin = max(0, first - 60)
        return [x[0] + ("..." if begin else "") + x[1 + begin:1 + begin + 180] for x in lines]
    return [x[:240] for x in lines]


def sections_of(golden):
    return dict(part.split("\n", 1) for part in re.split(r"^@@@@ ", golden, flags=re.M)[1:])


def differences(want, got):
    """Lines that show them, section by section."""
    a, b, out = sections_of(want), sections_of(got), []
    for name in sorted(a.keys() | b.keys(), key=lambda n: (n not in b, list(b).index(n) if n in b else 0)):
        if a.get(name) == b.get(name) or (name.endswith(".png") and name in a and name in b and same_picture(a[name].rstrip(), b[name].rstrip())):
            continue
        if name not in a or name not in b:
            out.append(f"{name}: {'is new' if name not in a else 'is missing'}")
            continue
        out.append(f"{name}:")
        block = []
        for line in list(difflib.unified_diff(a[name].splitlines(), b[name].splitlines(), "golden", "now", n=1, lineterm=""))[2:]:
            if line[0] in "-+":
                block.append(line)
                continue
            out += [x for pair in pairs_of(block) for x in window(pair)] + [line[:240]]
            block = []
        out += [x for pair in pairs_of(block) for x in window(pair)]
    if not out and list(a) != list(b):
        out = list(difflib.unified_diff(list(a), list(b), "golden", "now", n=1, lineterm=""))
    return out


def pairs_of(block):
    minus, plus = [x for x in block if x[0] == "-"], [x for x in block if x[0] == "+"]
    return [list(p) for p in zip(minus, plus)] if len(minus) == len(plus) else [[x] for x in block]


def main(argv):
    sys.modules["run"] = sys.modules["__main__"]
    import cases
    what, names = (argv[0] if argv else ""), [a for a in argv[1:] if a != "--nccl"]
    table = {n[5:]: f for n, f in vars(cases).items() if n.startswith("case_")}
    chosen = names or [n for n in table if (n == "nccl") == ("--nccl" in argv)]
    if what == "list":
        for n, f in table.items():
            print(f"{n:12} {f.__doc__}")
        return 0
    if what not in ("check", "make") or set(chosen) - set(table):
        print(__doc__, file=sys.stderr)
        return 2
    if not os.access(LOCKSTEP, os.X_OK):
        print(f"{LOCKSTEP} is no program; build it, or set LOCKSTEP", file=sys.stderr)
        return 2
    os.umask(0o022)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    bad = skipped = 0
    with tempfile.TemporaryDirectory(prefix="lockstep-net.") as top, concurrent.futures.ThreadPoolExecutor(2) as pool:
        def one(name):
            case = Case(name, os.path.realpath(top))
            try:
                table[name](case)
            except Skipped as e:
                return case, f"SKIPPED: {e}"
            except Exception as e:  # a command that hangs, a file that is missing: the other cases go on
                return case, f"FAILED: {type(e).__name__}: {e}"
            return case, ""
        for name, (case, why) in zip(chosen, pool.map(one, chosen)):
            file = HERE / "golden" / f"{name}.txt"
            if why.startswith("SKIPPED"):
                print(f"{name}: {why}")
                skipped += 1
            elif what == "make" and not why:
                file.write_text(case.golden())
                print(f"{name}: {file.relative_to(SOURCE)}")
            elif what == "make" or not file.exists():
                print(f"{name}: {why or f'FAILED: there is no golden; tests/net/run.py make {name} writes it'}")
                bad += 1
            else:
                lines = [why] * bool(why) + differences(file.read_text(), case.golden())
                print(f"{name}: {'FAILED' if lines else 'ok'}" + "".join(f"\n  {x}" for x in lines[:LIMIT]) + (f"\n  ... {len(lines) - LIMIT} more lines" if len(lines) > LIMIT else ""))
                bad += bool(lines)
    if bad and what == "check":
        print(f"{bad} cases differ from their goldens. If that is meant: tests/net/run.py make, and say why in the commit")
    return 1 if bad else 77 if skipped == len(chosen) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
