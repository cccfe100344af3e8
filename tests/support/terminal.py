"""terminal.py COLUMNS COMMAND...: runs the command on a pseudo-terminal of that width and prints the lines that its user would see in the end.

Carriage returns, "erase to the end of the line" and colours are interpreted; another escape sequence is an error. A line that was wider than the terminal
ends with "<<WRAPPED". On stderr: the exit code, the time, the number of drawings (carriage returns before text), whether colours were used and whether the
cursor is in column 0 at the end, as words of one line.

Environment: PTY_SIGINT=TEXT presses Ctrl-C once this text has appeared; PTY_RESIZE=TEXT:COLUMNS changes the width then.
"""
import fcntl
import os
import re
import select
import struct
import sys
import termios
import time


def resize(fd, columns):
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))


def run(columns, command):
    begin = time.monotonic()
    pid, fd = os.forkpty()
    if pid == 0:
        time.sleep(0.2)  # until the width is set
        os.execvp(command[0], command)
    resize(fd, columns)
    key, new = os.environ.get("PTY_SIGINT"), os.environ.get("PTY_RESIZE")
    out = b""
    while True:
        try:
            if not select.select([fd], [], [], 120)[0]:
                sys.exit("the command printed nothing for 120 s")
            got = os.read(fd, 65536)
        except OSError:
            got = b""
        if not got:
            break
        out += got
        if key and key.encode() in out:
            os.write(fd, b"\x03")
            key = None
        if new and new.rsplit(":", 1)[0].encode() in out:
            resize(fd, int(new.rsplit(":", 1)[1]))
            new = None
    status = os.waitpid(pid, 0)[1]
    return out.decode(errors="replace"), os.waitstatus_to_exitcode(status), time.monotonic() - begin


def screen(text, columns):
    """The lines after all control characters, and the column of the cursor."""
    lines, row, at, wrapped = [], [], 0, False
    for token in re.findall(r"\x1b\[[0-9;]*[A-Za-z]|\x1b|.|\n", text, re.S):
        if token == "\n":
            lines.append("".join(row) + ("<<WRAPPED" if wrapped else ""))
            row, wrapped = [], False  # \r came before
        elif token == "\r":
            at = 0
        elif token == "\x1b[K":
            del row[at:]
        elif re.fullmatch(r"\x1b\[[0-9;]*m", token):
            pass
        elif token < " ":
            sys.exit(f"a control sequence that is not allowed: {token!r}")
        else:
            row[at : at + 1] = [token]
            at += 1
            wrapped |= at > columns
    return lines + (["".join(row)] if row else []), at


def main():
    columns = int(sys.argv[1])
    text, code, seconds = run(columns, sys.argv[2:])
    if os.environ.get("PTY_RAW"):
        open(os.environ["PTY_RAW"], "w").write(text)
    lines, at = screen(text, 1 << 30 if os.environ.get("PTY_RESIZE") else columns)
    print("\n".join(lines))
    drawings = len(re.findall(r"\r(?=[^\n\r])(?!\x1b\[K)", text))
    colours = len(re.findall(r"\x1b\[[0-9;]*m", text))
    print(f"exit={code} seconds={seconds:.2f} drawings={drawings} colours={colours} column={at}", file=sys.stderr)


main()
