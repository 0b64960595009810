"""Runs the commands of docs/first-hour.md from an empty folder: ``make first-hour``. The last line is JSON.

Every line of a block ``sh`` is a step. One bash runs them in their order, as a reader would type them, beside
a copy of this checkout called ``agent-lightning``; the first that fails ends the run. The page installs the
wheels of the core and of every plugin but those of :data:`APART`, whatever list it has. ``--write`` puts that
list and what the steps answered into the page, without the places of this machine.

Needs Python 3.11 or later; the standard library is enough. pip needs a package index for what is not ours.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from install_lines import copied

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "first-hour.md"
BLOCK = re.compile(r"^```sh\n(?P<typed>.*?)^```\n(?P<between>\s*)```text\n(?P<said>.*?)^```\n", re.S | re.M)
WHEELS = re.compile(r"agl_\{[a-z0-9_,]+\}-\*\.whl")
"""The wheels that the page installs."""
APART = {
    *("apo", "dashboard", "distill", "judge", "kubernetes", "openenv", "postgres"),
    *("ray", "tinker", "v03", "verifiers", "verl"),
}
"""Plugins with pages of their own: a library, a cluster, a database, former programs, a teacher, a judge or
another search.
"""
TYPED = re.compile(r"^```sh\n", re.M)
HEAD, TAIL = 14, 16
"""Lines that the page keeps of a longer answer."""
WIDE = 600
"""Characters that the page keeps of a longer line."""
PIP = "WARNING: Location '"
"""What pip says of the package indexes that it is set up with here."""
LEFT_OUT = ("AGL_", "OPENAI_", "PYTHON", "VIRTUAL_ENV", "MAKE", "COLUMNS")
"""Beginnings of the variables that a new user's shell does not have."""


class Step(NamedTuple):
    """One command and what became of it; ``status`` is ``None`` where the shell ended with it."""

    typed: str
    said: str
    status: int | None


def blocks(page: str) -> list[list[str]]:
    """The commands of each block of a page. Raise ValueError for a block without a place for its answer."""
    found = [_commands(match["typed"]) for match in BLOCK.finditer(page)]
    if len(found) != len(TYPED.findall(page)):
        raise ValueError("a block ```sh of the page has no block ```text below it")
    return found


def _commands(typed: str) -> list[str]:
    return [line for line in typed.replace("\\\n", "").splitlines() if line.strip()]


def listed(page: str, root: Path = ROOT) -> str:
    """The page with the wheels of this checkout in its command."""
    plugins = {manifest.parent.name for manifest in root.glob("plugins/*/pyproject.toml")} - APART
    names = ",".join(["core", *sorted(name.replace("-", "_") for name in plugins)])
    return WHEELS.sub(f"agl_{{{names}}}-*.whl", page)


class Shell:
    """A bash that is given one line at a time. Its processes are a group, which ends with it."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.mark = f"step-{secrets.token_hex(8)}"
        self.process = subprocess.Popen(
            ["bash", "--norc"], cwd=folder, env=environment, encoding="utf-8", start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, typed: str) -> Step:
        """Run one line and wait for its end."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(f"{typed}\nprintf '\\n%s %s\\n' {self.mark} $?\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return Step(typed, "", None)
        said: list[str] = []
        for line in self.process.stdout:
            if line.startswith(self.mark):
                return Step(typed, "".join(said).removesuffix("\n"), int(line.split()[1]))
            said.append(line)
            print(line, end="", flush=True)
        return Step(typed, "".join(said), None)

    def close(self) -> None:
        """End the shell and all that it left running."""
        try:
            os.killpg(self.process.pid, signal.SIGTERM)
        except ProcessLookupError:
            pass
        self.process.communicate()


def new_users_environment(home: Path) -> dict[str, str]:
    """This environment with an empty home, ``python3`` as the one that runs here, and pip as it is set up."""
    programs = home / "bin"
    programs.mkdir(parents=True)
    (programs / "python3").symlink_to(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LEFT_OUT)}
    path = [part for part in kept["PATH"].split(os.pathsep) if not (Path(part) / "agl").exists()]
    settings = Path(os.environ.get("HOME", "/")) / ".config" / "pip" / "pip.conf"
    if settings.is_file():
        kept.setdefault("PIP_CONFIG_FILE", str(settings))
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "pip"
    kept.setdefault("PIP_CACHE_DIR", str(cache))
    return kept | {"HOME": str(home), "PATH": os.pathsep.join([str(programs), *path]), "COLUMNS": "100"}


def run(page: str, folder: Path) -> list[list[Step]]:
    """Run the commands of a page below ``folder``, up to the first that fails."""
    shell, done = Shell(folder, new_users_environment(folder / "home")), list[list[Step]]()
    try:
        for commands in blocks(page):
            done.append([])
            for typed in commands:
                print(f"$ {typed}", flush=True)
                done[-1].append(shell.run(typed))
                if done[-1][-1].status != 0:
                    return done
    finally:
        shell.close()
    return done


def written(page: str, done: list[list[Step]], folder: Path) -> str:
    """The page with the answers of a whole run in it."""
    answers = iter(done)

    def filled(block: re.Match[str]) -> str:
        steps = next(answers)
        said = [(step.typed, answer) for step in steps if (answer := shown(step.said, folder))]
        text = "".join(f"$ {typed}\n{answer}" if len(steps) > 1 else answer for typed, answer in said)
        return f"```sh\n{block['typed']}```\n{block['between']}```text\n{text}```\n"

    return BLOCK.sub(filled, page)


def shown(said: str, folder: Path) -> str:
    """What the page keeps of an answer: no places, no colours, no long lines, its beginning and its end."""
    for place, name in ((str(folder / "home"), "~"), (str(folder.resolve()), "~"), (str(folder), "~")):
        said = said.replace(place, name)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said)
    lines = [_cut(line.rstrip()) for line in plain.splitlines() if not line.startswith(PIP)]
    while lines and not lines[0]:
        lines.pop(0)
    if len(lines) > HEAD + TAIL + 1:
        left = len(lines) - HEAD - TAIL
        lines = [*lines[:HEAD], f"… {left} lines", *lines[-TAIL:]]
    return "".join(f"{line}\n" for line in lines)


def _cut(line: str) -> str:
    return line if len(line) <= WIDE else f"{line[: WIDE - 1]}…"


def failures(done: list[list[Step]]) -> Iterator[Step]:
    """The step that failed, if one did."""
    return (step for block in done for step in block if step.status != 0)


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="make first-hour", description="Run the commands of a page.")
    parser.add_argument("--write", action="store_true", help="put the answers into the page")
    asked, page = parser.parse_args(), listed(PAGE.read_text(encoding="utf-8"))
    steps, began = sum(map(len, blocks(page))), time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="first-hour-")).resolve()
    try:
        copied(ROOT, folder / "agent-lightning")
        done = run(page, folder)
        failed = next(failures(done), None)
        if failed is None and asked.write:
            PAGE.write_text(written(page, done, folder), encoding="utf-8")
            translation = PAGE.with_suffix(".zh.md")
            translation.write_text(listed(translation.read_text(encoding="utf-8")), encoding="utf-8")
            subprocess.run([sys.executable, ROOT / "scripts" / "translations.py"], check=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if failed is not None:
        print(f"FAILED with status {failed.status}: {failed.typed}")
    passed = sum(step.status == 0 for block in done for step in block)
    print(json.dumps({"steps": steps, "ok": passed, "seconds": round(time.monotonic() - began, 1)}))
    return int(passed < steps)


if __name__ == "__main__":
    sys.exit(main())
