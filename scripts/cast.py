"""Records a command's terminal and draws it as one SVG that moves (``make cast``).

    python scripts/cast.py --seconds 24 docs/images/demo.svg -- make demo
    python scripts/cast.py --to result.json docs/images/demo-real.svg -- make demo-real

The command runs under a pseudo-terminal, whose screen pyte keeps. The picture holds every line of the
screen once, and the frames as references to them; a style sheet inside it moves from frame to frame. It has
no script. Readers who ask for less motion (``prefers-reduced-motion``) see the last frame. A run longer than
``--seconds`` is shown faster than it was, and the title bar says how much.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import shlex
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pyte

ROOT = Path(__file__).resolve().parents[1]
HOME = "~/agent-lightning"
"""What the picture shows in place of this checkout."""
COLUMNS, LINES = 100, 36
CHAR, LINE, SIZE, ROOM, BAR = 8.4, 18, 14, 14, 30
"""Pixels: a character's width, a line's height, the font's size, the margin, the title bar."""
RATE = 3
"""Frames a second of the picture, at most."""
HOLD = 6.0
"""Seconds for which the last frame stays."""
BACKGROUND, FOREGROUND = "#11151c", "#d5dae3"
COLOURS = {
    "black": "#5b6472", "red": "#ff7b72", "green": "#7ee787", "brown": "#e3b341", "yellow": "#e3b341",
    "blue": "#79b8ff", "magenta": "#d2a8ff", "cyan": "#56d4dd", "white": "#f0f3f8",
}  # fmt: skip
FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono','Liberation Mono',monospace"


class Frame(NamedTuple):
    """The screen from ``at`` seconds on, a line of SVG for each of its lines."""

    at: float
    lines: tuple[str, ...]


class Recording(NamedTuple):
    """What a command showed, for how long it ran, and its exit status."""

    frames: list[Frame]
    seconds: float
    status: int


def typed(command: Sequence[str], to: str | None) -> str:
    """The command as a person types it; ``to``: the file that its stdout goes to, which is not shown."""
    return shlex.join(command) + (f" > {to}" if to else "")


def record(command: Sequence[str], to: str | None = None) -> Recording:
    """Run ``command`` under a terminal; keep each screen that differs from the one before, ten a second."""
    import pyte

    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    prompt = f"$ {typed(command, to)}\r\n"
    stream.feed(prompt.encode())
    frames = [Frame(0.0, drawn(screen))]
    began = time.monotonic()
    process, terminal = _started(command, shown=to is None)
    for piece in _pieces(terminal):
        if piece:
            os.write(sys.stderr.fileno(), piece)
            stream.feed(piece)
        now = time.monotonic() - began
        if now - frames[-1].at >= 0.1 and (lines := drawn(screen)) != frames[-1].lines:
            frames.append(Frame(now, lines))
    status = process.wait()
    seconds = time.monotonic() - began
    frames.append(Frame(seconds, drawn(screen)))
    return Recording(frames, seconds, status)


def _started(command: Sequence[str], shown: bool) -> tuple[subprocess.Popen[bytes], int]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=theirs if shown else subprocess.DEVNULL,
        stderr=theirs,
        env=environment,
        close_fds=True,
    )
    os.close(theirs)
    return process, ours


def _pieces(terminal: int) -> Iterator[bytes]:
    """What the command writes, as it comes; an empty piece where nothing has come for a while."""
    while True:
        if not select.select([terminal], [], [], 0.1)[0]:
            yield b""
            continue
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # Linux says so that the last process has closed the terminal
            return
        if not piece:
            return
        yield piece


def drawn(screen: pyte.Screen) -> tuple[str, ...]:
    """The lines of a screen as SVG, without their height."""
    return tuple(
        _line(_homely([screen.buffer[row][column] for column in range(COLUMNS)]))
        for row in range(screen.lines)
    )


def _homely(cells: list[pyte.screens.Char]) -> list[pyte.screens.Char]:
    """The cells of a line without the place of this checkout; a frame at their end stays in its column."""
    text, place = "".join(cell.data for cell in cells), str(ROOT)
    at = text.find(place)
    if at < 0:
        return cells
    shown = [cells[at]._replace(data=letter) for letter in HOME]
    left = [*cells[:at], *shown, *cells[at + len(place) :]]
    room = next((i for i in range(len(left) - 1, 0, -1) if left[i].data == " "), len(left) - 1)
    while len(left) > COLUMNS and left[room].data == " ":
        del left[room]
        room -= 1
    blanks = [cells[at]._replace(data=" ")] * (COLUMNS - len(left))
    return [*left[:room], *blanks, *left[room:]][:COLUMNS]


def _line(row: Sequence[pyte.screens.Char]) -> str:
    """Runs of one style. Letters and drawn lines are runs of their own: their widths may differ."""
    found = []
    for style, group in groupby(
        enumerate(row),
        key=lambda cell: (cell[1].fg, cell[1].bold, cell[1].italics, cell[1].data.isascii()),
    ):
        part = list(group)
        text = "".join(cell.data for _, cell in part)
        start = part[0][0] + len(text) - len(text.lstrip())
        if kept := text.strip():
            found.append(_text(start, kept, *style[:3]))
    return "".join(found)


def _text(column: int, text: str, colour: str, bold: bool, italic: bool) -> str:
    """A run of characters of one style, stretched to the columns that it takes."""
    known = COLOURS.get(colour.removeprefix("bright")) or (f"#{colour}" if len(colour) == 6 else None)
    marks = f' fill="{known}"' if known and colour != "default" else ""
    marks += ' font-weight="bold"' if bold else ""
    marks += ' font-style="italic"' if italic else ""
    return (
        f'<text x="{ROOM + column * CHAR:g}" textLength="{len(text) * CHAR:g}"{marks}>'
        f"{escape(text, quote=False).replace('  ', chr(0xA0) * 2)}</text>"
    )


def thinned(frames: Sequence[Frame], seconds: float, shown: float) -> list[Frame]:
    """Frames at the picture's pace: ``seconds`` of recording in ``shown`` seconds, :data:`RATE` a second."""
    kept: list[Frame] = []
    for frame in frames:
        at = frame.at * shown / seconds
        if kept and at - kept[-1].at < 1 / RATE:
            kept[-1] = Frame(kept[-1].at, frame.lines)
        elif not kept or frame.lines != kept[-1].lines:
            kept.append(Frame(at, frame.lines))
    return kept


def picture(recording: Recording, command: str, longest: float, about: str) -> str:
    """The SVG of a recording. ``command``: as it was typed."""
    shown = min(recording.seconds, longest)
    frames = thinned(recording.frames, recording.seconds, shown)
    names: dict[str, str] = {}
    for line in (line for frame in frames for line in frame.lines if line):
        names.setdefault(line, f"l{len(names)}")
    width, height = COLUMNS * CHAR + 2 * ROOM, LINES * LINE + 2 * ROOM
    faster = recording.seconds / shown
    title = command + (f" — shown {faster:.1f} times as fast" if faster > 1.05 else "")
    film = "".join(
        f'<g transform="translate(0 {number * height:g})">'
        + "".join(
            f'<use href="#{names[line]}" y="{ROOM + (row + 1) * LINE - 5:g}"/>'
            for row, line in enumerate(frame.lines)
            if line
        )
        + "</g>\n"
        for number, frame in enumerate(frames)
    )
    kept = "".join(f'<g id="{name}">{line}</g>\n' for line, name in names.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height + BAR:g}" width="{width:g}"'
        f' height="{height + BAR:g}" role="img" aria-labelledby="t d">\n'
        f'<title id="t">{escape(title)}</title>\n<desc id="d">{escape(about)}</desc>\n'
        f"<style>{style(frames, shown, height)}</style>\n<defs>\n{kept}</defs>\n"
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>\n'
        f'<circle cx="18" cy="15" r="5" fill="#ff5f57"/><circle cx="36" cy="15" r="5" fill="#febc2e"/>'
        f'<circle cx="54" cy="15" r="5" fill="#28c840"/>\n'
        f'<text x="50%" y="20" text-anchor="middle" fill="#8b95a5">{escape(title)}</text>\n'
        f'<svg y="{BAR}" width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}">\n'
        f'<g class="film" fill="{FOREGROUND}">\n{film}</g>\n</svg>\n</svg>\n'
    )


def style(frames: Sequence[Frame], shown: float, height: float) -> str:
    """The style sheet that moves the film. It begins with the end, which is what matters, and plays then; by
    itself, and with less motion, it stands there.
    """
    whole = shown + HOLD
    stops = "".join(
        f"{100 * frame.at / whole:.2f}%{{transform:translateY({-number * height:g}px)}}"
        for number, frame in enumerate(frames)
    )
    last = f"transform:translateY({-(len(frames) - 1) * height:g}px)"
    return (
        f"text{{font:{SIZE}px {FONT};white-space:pre}}"
        f".film{{{last};animation:film {whole:.1f}s step-end {-shown:.1f}s infinite}}"
        f"@keyframes film{{{stops}to{{{last}}}}}"
        "@media (prefers-reduced-motion:reduce){.film{animation:none}}"
    )


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        prog="scripts/cast.py", description="Draw a command's terminal as an SVG."
    )
    parser.add_argument("picture", type=Path)
    parser.add_argument("--seconds", type=float, default=24.0, help="of the picture at most, without its end")
    parser.add_argument("--about", default="A terminal, recorded.", help="what is seen, in words")
    parser.add_argument("--to", metavar="NAME", help="leave stdout out, as if `> NAME` were typed")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    command = [word for word in asked.command if word != "--"]
    if not command:
        parser.error("the command is missing: scripts/cast.py PICTURE -- COMMAND")
    recording = record(command, asked.to)
    if recording.status:
        print(f"{shlex.join(command)} ended with {recording.status}: no picture", file=sys.stderr)
        return recording.status
    shown = picture(recording, typed(command, asked.to), asked.seconds, asked.about)
    asked.picture.write_text(shown, encoding="utf-8")
    size = asked.picture.stat().st_size
    print(f"{asked.picture}: {size / 1000:.0f} kB, {recording.seconds:.0f} s recorded", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
