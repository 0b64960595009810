"""Runs every block of README.md as a reader would: ``make readme``. Its last line is JSON.

    scripts/readme.py                  all blocks
    scripts/readme.py --list           only say what would be run, and how
    scripts/readme.py --only N …       some blocks, by number

The commands run in a copy of this checkout, each block by one bash, in the order of the page. A block that
installs something gets an empty environment, and the blocks below it run in that one until the next that
installs. A Python block is a file that is executed; YAML is loaded as a run's file; ``text`` and ``console``
are output. ``make`` targets set up their own environment. :data:`SHORTER` gives the longest commands fewer
steps, by the variable that the Makefile takes for it.

Needs Python 3.11 or later, git and make; the standard library is enough. pip needs a package index for what
is not ours: the suite itself comes out of the checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from first_hour import Shell, new_users_environment
from install_lines import INSTALL, copied

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "README.md"
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.S | re.M)
OUTPUT = ("text", "console")
SHORTER = {
    "make demo": 'SET="training.steps=2 environment.val.args.limit=16 environment.headroom_tasks=4"',
    "make test": "TESTS=tests/core/credit",
}
"""Command → the variable that shortens it. Whole runs are recorded in bench/results; CI runs all tests."""
EMPTY = "import agentlightning.train.run_file as r, sys; r.load_config(sys.argv[1])"


class Block(NamedTuple):
    """A block of the page."""

    number: int
    line: int
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """The lines of a shell block, without comments."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [bare for line in lines if (bare := re.sub(r"(^|\s+)#.*$", "", line).strip())]


class Outcome(NamedTuple):
    """``why``: what went wrong; empty: nothing."""

    block: Block
    why: str
    seconds: float


def blocks(page: str) -> list[Block]:
    """Every block of a page in its order."""
    found = BLOCK.finditer(page)
    return [
        Block(number, page[: one.start()].count("\n") + 1, one[1], one[2])
        for number, one in enumerate(found, 1)
    ]


class Reader:
    """A reader of the page: a copy of the checkout, and an environment once a block installs something."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkout = copied(ROOT, folder / "agent-lightning")
        self.variables = new_users_environment(folder / "home")
        self._made = 0

    def environment(self) -> None:
        """Go on in an empty environment."""
        self._made += 1
        place = self.folder / f"environment-{self._made}"
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        self.variables |= {
            "PATH": f"{place / 'bin'}:{self.variables['PATH']}", "VIRTUAL_ENV": str(place),
            "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }  # fmt: skip

    def read(self, block: Block) -> str:
        """Do what a block says; return why it did not work, or nothing."""
        if block.language in ("sh", "bash"):
            if any(INSTALL.search(command) for command in block.commands):
                self.environment()
            return self._shell(block)
        if block.language == "python":
            return self._run([self._python, self._written(block, "py")])
        if block.language in ("yaml", "yml"):
            return self._run([self._python, "-c", EMPTY, self._written(block, "yaml")])
        return "" if block.language in OUTPUT else f"nobody knows what a block of {block.language!r} is for"

    @property
    def _python(self) -> str:
        return shutil.which("python", path=self.variables["PATH"]) or sys.executable

    def _written(self, block: Block, kind: str) -> str:
        place = self.folder / f"block-{block.number}.{kind}"
        place.write_text(block.text, encoding="utf-8")
        return str(place)

    def _run(self, command: list[str]) -> str:
        done = subprocess.run(
            command, cwd=self.folder, env=self.variables, encoding="utf-8", stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        print(done.stdout, end="", flush=True)
        return "" if done.returncode == 0 else f"status {done.returncode}: {_last(done.stdout)}"

    def _shell(self, block: Block) -> str:
        """Type the lines of a block, up to the first that fails."""
        shell = Shell(self.checkout, self.variables)
        try:
            for command in block.commands:
                given = SHORTER.get(command)
                typed = f"{given} {command}" if given else command
                print(f"$ {typed}", flush=True)
                step = shell.run(typed)
                if step.status != 0:
                    return f"{command}: status {step.status}: {_last(step.said)}"
        finally:
            shell.close()
        return ""


def _last(said: str) -> str:
    return " | ".join(said.strip().splitlines()[-4:])


def read(page: list[Block], folder: Path) -> list[Outcome]:
    """Go through the blocks; each gets its outcome, whatever became of those before it."""
    reader, outcomes = Reader(folder), list[Outcome]()
    for block in page:
        began = time.monotonic()
        print(
            f"block {block.number}, {PAGE.name}:{block.line}, {block.language or 'no language'}", flush=True
        )
        why = reader.read(block)
        outcomes.append(Outcome(block, why, round(time.monotonic() - began, 1)))
        word = f"FAILED: {why}" if why else "ok"
        print(f"block {block.number}: {word} ({outcomes[-1].seconds} s)", flush=True)
    return outcomes


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="make readme", description="Run the blocks of README.md.")
    parser.add_argument("--list", action="store_true", help="run nothing")
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="blocks by their numbers")
    asked, page = parser.parse_args(), blocks(PAGE.read_text(encoding="utf-8"))
    wanted = [block for block in page if not asked.only or block.number in asked.only]
    if asked.list:
        for block in wanted:
            print(f"{block.number}  line {block.line}  {block.language}  {'; '.join(block.commands)[:100]}")
        return 0
    folder = Path(tempfile.mkdtemp(prefix="agl-readme-", dir=os.environ.get("TMPDIR")))
    try:
        outcomes = read(wanted, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    failed = [f"{PAGE.name}:{one.block.line}: {one.why}" for one in outcomes if one.why]
    told = {"blocks": len(outcomes), "ok": len(outcomes) - len(failed)}
    seconds = round(sum(one.seconds for one in outcomes), 1)
    print(json.dumps({**told, "seconds": seconds, "failed": failed}), flush=True)
    return int(bool(failed) or not outcomes)


if __name__ == "__main__":
    sys.exit(main())
