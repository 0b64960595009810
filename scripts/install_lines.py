#!/usr/bin/env python3
"""Runs every install command of README and docs in an empty environment each, as a stranger would type it.

    scripts/install_lines.py            all of them; the last line of stdout is {"lines", "ok", …}
    scripts/install_lines.py --list     only say what would be run, and what is left out and why
    scripts/install_lines.py --only langgraph

Commands are read out of the Markdown (fenced blocks and `inline code`), so a new one is run without being
registered. They run in a copy of the checkout. The suite's own distributions must come out of that copy: for
one that is missing from a command, pip would look on a package index. Everything else comes from wherever pip
is set up to look. Needs Python 3.11 or later; the standard library is enough.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
INSTALL = re.compile(r"\b(?:pip3?|pipx|uv pip|uv tool) install\b|\bgit clone\b|\bconda install\b")
FENCED = re.compile(r"^```(?P<kind>[^\n]*)\n(?P<lines>.*?)^```", re.S | re.M)
INLINE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
LONGEST = 1800
"""Seconds of one command."""
LEFT_OUT = {
    "CONTRIBUTING.md": (
        "pre-commit install",
        "it writes a git hook into the checkout, with the .venv that `make lint` makes",
    ),
    "docs/contributing/write-an-adapter.md": (
        "../my-framework/",
        "my-framework is the reader's own, and nowhere to be had; tests/examples make an adapter so",
    ),
    "docs/first-hour.md": ("../agent-lightning/", "`make first-hour` runs the whole page"),
    "docs/gpu.md": ("$URL_OF_THE_SELECTOR", "the reader's CUDA decides which index it is"),
    "docs/contributing/credit.md": (
        "verl==0.9.1",
        "it makes a benchmark's environment, of gigabytes; `make test-verl-inside` makes one with verl",
    ),
}
"""Page → part of a command on it that is not run, and why."""
OURS = re.compile(r"agl[-_][a-z0-9_-]+|agentlightning")
SMOKE = """
import importlib, importlib.metadata as m, sys
names = [d.name.replace("_", "-") for d in m.distributions()]
for name in names:
    if name.startswith("agl-"):
        importlib.import_module("agentlightning" if name == "agl-core" else name.replace("-", "_"))
if "agl-core" in names:
    from agentlightning.plugins.manager import load
    loaded = load()
    assert not loaded.broken, loaded.broken
    for name in sys.argv[1:]:
        importlib.import_module(loaded.adapters[name].framework)
        loaded.adapters[name].instrumentor()
"""


class Line(NamedTuple):
    """A command, where it stands, and what its block says before it."""

    where: str
    text: str
    before: tuple[str, ...] = ()


class Outcome(NamedTuple):
    """``why``: what went wrong; ``None``: nothing."""

    line: Line
    why: str | None
    seconds: float


# ---------------------------------------------------------------------------------------------------- finding
def pages(root: Path = ROOT) -> list[Path]:
    """README and the documentation: every page a user is pointed to."""
    found = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("core/README.md")]
    for room in ("adapters", "plugins", "examples", "bench"):
        found += [path for path in root.glob(f"{room}/**/README.md") if ".venv" not in path.parts]
    return sorted(path for path in found if path.name != "CHANGELOG.md")


def commands(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The install commands of a page in their order, each with the commands of its block before it."""
    for block in FENCED.finditer(text):
        if block["kind"] == "text":  # what a command answered
            continue
        words = [_bare(line) for line in block["lines"].replace("\\\n", " ").splitlines()]
        lines = [line for line in words if line]
        for position, line in enumerate(lines):
            if INSTALL.search(line):
                yield line, tuple(lines[:position])
    for span in INLINE.findall(FENCED.sub("", text)):
        line = " ".join(span.split())
        if INSTALL.search(line):
            yield line, ()


def _bare(line: str) -> str:
    """A line of a terminal without its prompt and its comment."""
    return re.sub(r"\s+#.*$", "", line.strip().removeprefix("$ ")).strip()


def lines(root: Path = ROOT) -> list[Line]:
    """All commands: those of the pages, and those that messages name for adapters and drivers."""
    found = [
        Line(path.relative_to(root).as_posix(), text, before)
        for path in pages(root)
        for text, before in commands(path.read_text(encoding="utf-8"))
    ]
    suite = _suite(root)
    found += [
        Line(f"the message for a missing {kind}", suite.install_line(kind, name))
        for kind, names in suite.checkout().items()
        for name in names
    ]
    unique: dict[tuple[Any, ...], Line] = {}
    for line in found:
        unique.setdefault((line.text, line.before), line)
    return list(unique.values())


def _suite(root: Path) -> Any:
    """The module that makes the messages, without installing its package."""
    place = root / "core" / "src" / "agentlightning" / "plugins" / "suite.py"
    spec = importlib.util.spec_from_file_location("_suite_of_install_lines", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def left_out(line: Line) -> str | None:
    """Why a command is not run; ``None``: it is."""
    part, why = LEFT_OUT.get(line.where, ("", ""))
    return why if part and part in line.text else None


# --------------------------------------------------------------------------------------------------- siblings
class Distribution(NamedTuple):
    """One of the suite's: its name, and of which others it needs which, by extra (``""``: always)."""

    name: str
    needs: dict[str, list[tuple[str, tuple[str, ...]]]]


def distributions(root: Path = ROOT) -> dict[str, Distribution]:
    """Folder → distribution."""
    found = {}
    for manifest in sorted(
        path for depth in ("", "*/", "*/*/") for path in root.glob(f"{depth}pyproject.toml")
    ):
        project = tomllib.loads(manifest.read_text(encoding="utf-8")).get("project", {})
        if not OURS.fullmatch(str(project.get("name", ""))):
            continue
        asked = {"": project.get("dependencies", []), **project.get("optional-dependencies", {})}
        needs = {
            extra: [_requirement(text) for text in of if OURS.match(text)] for extra, of in asked.items()
        }
        found[manifest.parent.relative_to(root).as_posix()] = Distribution(project["name"], needs)
    return found


def _requirement(text: str) -> tuple[str, tuple[str, ...]]:
    """``agl-langchain[instruments]==0.1.0`` → name and extras."""
    match = re.match(r"([\w-]+)(?:\[([^\]]*)\])?", text)
    assert match is not None
    return match[1], tuple(extra.strip() for extra in (match[2] or "").split(",") if extra.strip())


def missing(text: str, root: Path = ROOT) -> list[str]:
    """Distributions of the suite that a command needs and does not bring along."""
    known = distributions(root)
    by_name = {one.name: one for one in known.values()}
    todo: list[tuple[str, tuple[str, ...]]] = []
    brought = set()
    for word in _words(text):
        folder, extras = _requirement(word) if OURS.match(word) else _folder(word)
        if folder in known:
            brought.add(known[folder].name)
            todo.append((known[folder].name, extras))
        elif folder in by_name:  # by its name: an index would be asked for it
            todo.append((folder, extras))
    seen = set()
    while todo:
        name, extras = todo.pop()
        for extra in ("", *extras):
            if name in by_name and (name, extra) not in seen:
                seen.add((name, extra))
                todo += by_name[name].needs.get(extra, [])
    return sorted({name for name, _ in seen} - brought)


def absent(text: str, root: Path = ROOT) -> list[str]:
    """Words of a command that name a folder without a manifest, or an extra that its manifest lacks."""
    found = []
    for word in _words(text):
        folder, extras = _folder(word)
        manifest = root / folder / "pyproject.toml"
        if folder and not manifest.is_file():
            found.append(word)
        elif folder:
            project = tomllib.loads(manifest.read_text(encoding="utf-8"))["project"]
            if {*extras} - {*project.get("optional-dependencies", {})}:
                found.append(word)
    return found


def _words(text: str) -> list[str]:
    """A command's words as bash sees them: ``./plugins/{local,audit}`` is two."""
    found = []
    for word in shlex.split(text):
        braces = re.fullmatch(r"([^{}]*)\{([^{}]*)\}([^{}]*)", word)
        parts = braces[2].split(",") if braces else []
        found += [f"{braces[1]}{part}{braces[3]}" for part in parts] if braces else [word]
    return found


def _folder(word: str) -> tuple[str, tuple[str, ...]]:
    """``./adapters/langgraph[instruments]`` → folder and extras."""
    match = re.fullmatch(r"(\.[^\[\]]*)(?:\[([^\]]*)\])?", word)
    if match is None:
        return "", ()
    extras = tuple(extra.strip() for extra in (match[2] or "").split(",") if extra.strip())
    return Path(match[1]).as_posix(), extras


# ---------------------------------------------------------------------------------------------------- running
def copied(root: Path, to: Path) -> Path:
    """The checkout's files, without what git ignores: a command may write into the copy, never into it."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root, capture_output=True, check=True,
    ).stdout.decode()  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (root / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name)
    return to


def run(line: Line, root: Path) -> Outcome:
    """One command in an environment and a checkout of its own, then a look at what it installed."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="agl-install-") as scratch:
        place = copied(root, Path(scratch) / "checkout")
        environment = Path(scratch) / "environment"
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        why = _tried(line, place, environment, Path(scratch) / "report.json")
    return Outcome(line, why, round(time.monotonic() - began, 1))


def _tried(line: Line, place: Path, environment: Path, report: Path) -> str | None:
    # As a variable, pip reads --no-compile the other way round: 0 is what leaves bytecode out.
    shell = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("AGL_", "PYTHON"))},
        "PATH": f"{environment / 'bin'}:{os.environ['PATH']}", "VIRTUAL_ENV": str(environment),
        "PIP_NO_INPUT": "1", "PIP_QUIET": "1", "PIP_NO_COMPILE": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_REPORT": str(report),
    }  # fmt: skip
    script = "\n".join(["set -euo pipefail", *line.before, line.text])
    if why := _failed(["bash", "-c", script], place, shell):
        return why
    found = json.loads(report.read_text(encoding="utf-8")).get("install", []) if report.exists() else []
    if strangers := _from_elsewhere(found):
        return f"came from elsewhere: {', '.join(strangers)}"
    python = _python(line, place, environment)
    return _smoke(python, _with_framework(line.text), place, shell)


def _with_framework(text: str) -> list[str]:
    """Names of the adapters that a command brings with their frameworks."""
    return [name for name in _suite(ROOT).checkout()["adapter"] if f"./adapters/{name}[" in text]


def _python(line: Line, place: Path, environment: Path) -> Path:
    """The interpreter that the command installed into: that of the environment, or one that it names."""
    word = next((w for w in shlex.split(line.text) if w.endswith("/bin/pip")), None)
    return (place / word).with_name("python") if word else environment / "bin" / "python"


def _from_elsewhere(found: list[dict[str, Any]]) -> list[str]:
    """The suite's distributions that pip did not take from a folder."""
    return [
        f"{one['metadata']['name']} ({one['download_info']['url']})"
        for one in found
        if OURS.fullmatch(one["metadata"]["name"]) and "dir_info" not in one["download_info"]
    ]


def _smoke(python: Path, adapters: list[str], place: Path, shell: dict[str, str]) -> str | None:
    """Import what came, and ask ``agl`` for its plugins and for the doctor's help."""
    if why := _failed([str(python), "-c", SMOKE, *adapters], place.parent, shell):
        return why
    agl = python.with_name("agl")
    for words in ([str(agl), "plugins"], [str(agl), "doctor", "--help"]) if agl.exists() else ():
        if why := _failed(words, place.parent, shell):
            return why
    return None


def _failed(command: list[str], cwd: Path, shell: dict[str, str]) -> str | None:
    """Why a command did not succeed: the last lines that it said; ``None`` if it did."""
    try:
        done = subprocess.run(
            command, cwd=cwd, env=shell, capture_output=True, encoding="utf-8", timeout=LONGEST
        )
    except subprocess.TimeoutExpired:
        return f"not done after {LONGEST} seconds"
    said = [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith("WARNING")]
    return None if done.returncode == 0 else f"status {done.returncode}: " + " | ".join(said[-6:])


def tell(outcome: Outcome) -> None:
    """A line for the person who waits."""
    word = "ok" if outcome.why is None else "FAILED"
    print(f"{word:6}  {outcome.seconds:6.1f} s  {outcome.line.where}: {outcome.line.text}", flush=True)
    if outcome.why:
        print(f"        {outcome.why}", flush=True)


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="run nothing")
    parser.add_argument("--only", default="", metavar="TEXT", help="commands that contain it")
    parser.add_argument("--jobs", type=int, default=4, metavar="N", help="commands at a time")
    asked = parser.parse_args()
    found = [line for line in lines() if asked.only in line.text]
    skipped = [line for line in found if left_out(line)]
    for line in skipped:
        print(f"left out: {line.where}: {line.text}: {left_out(line)}", flush=True)
    wanted = [line for line in found if line not in skipped]
    if asked.list:
        print(*(f"{line.where}: {line.text}" for line in wanted), sep="\n")
        return 0
    began, outcomes = time.monotonic(), []
    with ThreadPoolExecutor(asked.jobs) as pool:  # most of the time is spent waiting for an index
        for done in as_completed([pool.submit(run, line, ROOT) for line in wanted]):
            outcomes.append(done.result())
            tell(outcomes[-1])
    failed = [f"{one.line.where}: {one.line.text}" for one in outcomes if one.why]
    result = {
        "lines": len(outcomes),
        "ok": len(outcomes) - len(failed),
        "left_out": len(skipped),
        "seconds": round(time.monotonic() - began, 1),
        "failed": failed,
    }
    print(json.dumps(result), flush=True)
    return 1 if failed or not outcomes else 0


if __name__ == "__main__":
    raise SystemExit(main())
