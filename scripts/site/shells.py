"""Runs shell blocks of pages: each in its own copy of a project with a finished run, ``mine``.

A block's lines are commands, one after the other. A line that ends with ``&`` goes on beside those below it.
A server is ended by SIGTERM when it says what the comment ``<!-- until: words -->`` names; all other commands
must end with status 0. ``<!-- setup: line -->`` is a line that the reader does not see. Standard output and
error of a line are read together.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = Path(__file__).parent / "project"
"""What pages speak of besides: programs, chats, traces."""
SECONDS = 600
LEFT_OUT = ("AGL_", "OPENAI_", "PYTHON")
"""Beginnings of the variables that a reader's shell does not have."""
WHOLE, SMALL = "steps: 12, batch_size: 8", "steps: 1, batch_size: 2, keep_best: true"
"""What the project's configuration says, and what it says here."""
TASKS = 8
"""Held-out tasks that the project keeps: it is evaluated often."""


class Failed(Exception):
    """A line did not end as it should."""


def environment(home: Path) -> dict[str, str]:
    """A reader's shell: an empty home, and this interpreter's programs first."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LEFT_OUT)}
    programs = Path(sys.executable).parent
    return kept | {"HOME": str(home), "PATH": f"{programs}{os.pathsep}{kept['PATH']}", "COLUMNS": "100"}


@cache
def project() -> Path:
    """A project of ``agl init`` that was trained once, in a temporary folder; made when first asked for."""
    folder = Path(tempfile.mkdtemp(prefix="agl-pages-"))
    made = folder / "project"
    try:
        said("agl init project", folder)
        tasks = made / "val.jsonl"
        tasks.write_text(
            "".join(tasks.read_text(encoding="utf-8").splitlines(keepends=True)[:TASKS]), encoding="utf-8"
        )
        config = (made / "config.yaml").read_text(encoding="utf-8")
        for name in ("config.yaml", "run.yaml"):
            (made / name).write_text(config.replace(WHOLE, SMALL), encoding="utf-8")
        shutil.copytree(FILES, made, dirs_exist_ok=True)
        said("agl train --config config.yaml --run mine", made)
    except BaseException:
        shutil.rmtree(folder)
        raise
    (made / "examples").symlink_to(ROOT / "examples")
    return made


def forget() -> None:
    """Remove the project, if one was made."""
    if project.cache_info().currsize:
        shutil.rmtree(project().parent)
        project.cache_clear()


def run(lines: Sequence[str], setup: Sequence[str] = (), until: str = "") -> str:
    """Run the lines of a block; return what went wrong, or nothing."""
    with tempfile.TemporaryDirectory(prefix="agl-block-") as scratch:
        folder = Path(scratch) / "project"
        shutil.copytree(project(), folder, symlinks=True)
        beside: list[subprocess.Popen[str]] = []
        try:
            for line in (*setup, *lines):
                if line.endswith("&"):
                    beside.append(started(line[:-1], folder, out=subprocess.DEVNULL))
                else:
                    said(line, folder, until)
        except Failed as error:
            return str(error)
        finally:
            for process in beside:
                ended(process)
    return ""


def commands(text: str) -> Iterator[str]:
    """The lines of a shell block, without comments and empty lines."""
    for line in text.replace("\\\n", " ").splitlines():
        bare = line.strip() if line.lstrip().startswith("#") else _uncommented(line)
        if bare and not bare.startswith("#"):
            yield bare


def _uncommented(line: str) -> str:
    """A line without the comment at its end; a ``#`` in quotes or within a word begins none."""
    quote = ""
    for at, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "#" and line[:at].endswith((" ", "\t")):
            return line[:at].strip()
    return line.strip()


def said(line: str, folder: Path, until: str = "") -> str:
    """Run one line for :data:`SECONDS` at most and return what it said. Raise :class:`Failed`."""
    told, stopped = list[str](), False
    with started(line, folder) as process:
        late = threading.Timer(SECONDS, ended, (process,))
        late.start()
        try:
            assert process.stdout is not None
            for words in process.stdout:
                told.append(words)
                if until and until in words:
                    stopped = True
                    ended(process)
            status = process.wait()
        finally:
            late.cancel()
    if status and not stopped:
        last = " | ".join("".join(told).strip().splitlines()[-3:]) or "it said nothing"
        raise Failed(f"{line}: status {status}: {last[-300:]}")
    return "".join(told)


def started(line: str, folder: Path, out: int = subprocess.PIPE) -> subprocess.Popen[str]:
    """A line in a shell of its own, whose processes are a group."""
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    return subprocess.Popen(
        ["bash", "-c", line], cwd=folder, env=environment(home), encoding="utf-8", start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> None:
    """End a line and what it left running; what does not end within ten seconds is killed."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        until = time.monotonic() + 10
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
