"""record.py FILE SECONDS PROGRAM [ARGUMENT …]: runs a full-screen program on a terminal, and writes what it showed as a moving
picture (SVG). A line of standard input is the caption from then on; with its end the recording ends early."""

import fcntl
import os
import pty
import select
import struct
import sys
import termios
import time

import pyte

COLUMNS, LINES = 92, 9
# Between two frames, in seconds.
STEP = 0.5
WIDTH, HEIGHT = 8.4, 18
ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
COLOURS = {
    "default": "#d8dee9", "black": "#2e3440", "red": "#bf616a", "green": "#a3be8c", "brown": "#ebcb8b", "yellow": "#ebcb8b",
    "blue": "#81a1c1", "magenta": "#b48ead", "cyan": "#88c0d0", "white": "#e5e9f0",
}


def colour(name):
    name = name.removeprefix("bright")
    return COLOURS.get(name) or (f"#{name}" if len(name) == 6 else COLOURS["default"])


def runs(line):
    """The stretches of a line of the screen that look the same: column, text, how it looks."""
    found = []
    for column in range(COLUMNS):
        cell = line[column]
        looks = (cell.fg, cell.bold, cell.reverse)
        if found and found[-1][2] == looks:
            found[-1][1].append(cell.data)
        else:
            found.append((column, [cell.data], looks))
    return [(column, "".join(text), looks) for column, text, looks in found]


def frame(screen, caption):
    parts = []
    for row in range(LINES):
        for column, text, (colour_name, bold, is_reverse) in runs(screen.buffer[row]):
            if not text.strip() and not is_reverse:
                continue
            begin = len(text) - len(text.lstrip()) if not is_reverse else 0
            text = text[begin:] if is_reverse else text.strip()
            x, y = 12 + (column + begin) * WIDTH, 40 + row * HEIGHT
            shade = colour(colour_name)
            if is_reverse:
                parts.append(f'<rect x="{x:.1f}" y="{y - 14}" width="{len(text) * WIDTH:.1f}" height="{HEIGHT}" fill="{shade}"/>')
                shade = COLOURS["black"]
            weight = ' font-weight="bold"' if bold else ""
            parts.append(f'<text x="{x:.1f}" y="{y}" textLength="{len(text) * WIDTH:.1f}" fill="{shade}"{weight}>{text.translate(ENTITIES)}</text>')
    below = 52 + LINES * HEIGHT
    parts.append(f'<text x="12" y="{below}" fill="{COLOURS["green"]}">{caption.translate(ENTITIES)}</text>')
    return "\n".join(parts)


def picture(frames):
    lasts, width, height = len(frames) * STEP, 24 + COLUMNS * WIDTH, 68 + LINES * HEIGHT
    text = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" font-family="monospace" font-size="14" xml:space="preserve">',
        "<style>",
        f".f {{ visibility: hidden; animation: f {lasts}s step-end infinite; }}",
        f"@keyframes f {{ 0% {{ visibility: visible; }} {100 / len(frames):.4f}% {{ visibility: hidden; }} }}",
        "@media (prefers-reduced-motion: reduce) { .f { animation: none; } .last { visibility: visible; } }",
        "</style>",
        f'<rect width="100%" height="100%" rx="8" fill="{COLOURS["black"]}"/>',
    ]
    for number, drawn in enumerate(frames):
        last = " last" if number == len(frames) - 1 else ""
        text.append(f'<g class="f{last}" style="animation-delay: {number * STEP}s">\n{drawn}\n</g>')
    return "\n".join(text) + "\n</svg>\n"


def main():
    file, seconds, program = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm-256color"
        time.sleep(0.2)  # until the terminal has its size
        os.execvp(program[0], program)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    frames, caption, told = [], "", b""
    begun = time.monotonic()
    inputs = [terminal, 0]
    while time.monotonic() - begun < seconds:
        due = begun + (len(frames) + 1) * STEP
        ready = select.select(inputs, [], [], max(0, due - time.monotonic()))[0]
        if terminal in ready:
            try:
                stream.feed(os.read(terminal, 65536))
            except OSError:
                sys.exit("record.py: the program ended")
        if 0 in ready:
            more = os.read(0, 4096)
            if not more:
                break
            told += more
            *lines, told = told.split(b"\n")
            caption = lines[-1].decode() if lines else caption
        if time.monotonic() >= due:
            frames.append(frame(screen, caption))
    os.write(terminal, b"q")
    while True:
        try:
            if not select.select([terminal], [], [], 5)[0] or not os.read(terminal, 65536):
                break
        except OSError:
            break
    os.close(terminal)
    os.waitpid(pid, 0)
    if not any("<text" in drawn for drawn in frames):
        sys.exit("record.py: the program showed nothing")
    with open(file, "w", encoding="utf-8") as out:
        out.write(picture(frames))


main()
