"""screen.py WANTED PROGRAM [ARGUMENT …]: runs a full-screen program on a terminal of 120 by 40 until the screen shows
the word WANTED and is drawn to its end, or for a minute; then asks it to quit with `q` and prints the screen."""

import fcntl
import os
import pty
import select
import struct
import sys
import termios
import time

import pyte

COLUMNS, LINES = 120, 40

wanted, program = sys.argv[1], sys.argv[2:]
pid, terminal = pty.fork()
if pid == 0:
    os.environ["TERM"] = "xterm"
    time.sleep(0.2)  # until the terminal has its size
    os.execvp(program[0], program)
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
screen = pyte.Screen(COLUMNS, LINES)
stream = pyte.ByteStream(screen)
shown = []
deadline = time.monotonic() + 60
while time.monotonic() < deadline:
    found = any(wanted in line.split() for line in shown)
    # A program draws its screen without a pause, and then rests.
    if not select.select([terminal], [], [], 0.3 if found else 1)[0]:
        if found:
            break
        continue
    try:
        stream.feed(os.read(terminal, 65536))
    except OSError:
        break
    shown = [line.rstrip() for line in screen.display]
print("\n".join(line for line in shown if line))
try:
    os.write(terminal, b"q")
except OSError:
    pass
while select.select([terminal], [], [], 5)[0]:
    try:
        if not os.read(terminal, 65536):
            break
    except OSError:
        break
os.close(terminal)
os.waitpid(pid, 0)
