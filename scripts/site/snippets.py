"""Runs or checks every block of README and pages; no block is passed over in silence.

A block is one of four:

- *Run*: a Python block whose imports are installed is executed in a folder of its own; a YAML block with
  sections of a run's file is loaded as one, types and all; `make docs` runs the lines of a shell block
  (:mod:`shells`), elsewhere the commands and options of ``agl`` in it are checked.
- *Needs …*: a comment ``<!-- needs: what -->`` above a block says what is missing here. Its syntax, the
  imports of the suite and each ``agl.name`` are checked, and the commands and options of shell lines.
- *Elsewhere*: the blocks of a page in :data:`ELSEWHERE` are run by another command or test, which it names.
- *Output*: the languages of :data:`OUTPUT`.

A block that is none of these, or names no language, is reported. Comments may also prepare a block, out of
the reader's sight: ``<!-- setup: code -->`` is executed before it, ``<!-- cell -->`` runs it as a cell of a
notebook, where ``await`` is allowed, and ``<!-- trains -->`` says that it takes long: `make docs` runs it.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

import agentlightning
from agentlightning.train.config import FILE, build
from agentlightning.train.run_file import rewrite
from agentlightning.types import UsageError
from agl_examples.init import run_config_schema

sys.path.insert(0, str(Path(__file__).parent))
import reference
import shells

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^( *)```(\w*)([^\n]*)\n(.*?)^\1```", re.M | re.S)
NOTES = re.compile(r"((?:^ *<!-- [^\n]*? -->\n)*)\Z", re.M)
"""The comments right above a block."""
OUTPUT = frozenset({"text", "console"})
SHELL = ("sh", "bash")
OTHER = {
    "json": "data",
    "js": "for Node: `make test-node` and the reader's own programs",
    "nginx": "for nginx",
    "toml": "a part of a manifest",
}
"""Languages that nothing here runs → why."""
ELSEWHERE = {
    "README.md": "make readme",
    "README.zh.md": "make readme: the blocks are those of README.md",
    "docs/coming-from.md": "tests/docs/test_coming_from.py, those of other projects aside",
    "docs/first-hour.md": "make first-hour",
    "docs/first-hour.zh.md": "make first-hour: the commands are those of first-hour.md",
    "docs/contributing/write-an-adapter.md": "tests/examples/adapter_template: the blocks are its files",
}
"""Page → what runs its Python and YAML blocks."""
SECONDS, LONG = 600, 1800


class Block(NamedTuple):
    """A block of a page. ``notes``: the comments above it."""

    page: Path
    line: int
    language: str
    text: str
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def place(self) -> str:
        """The page's path in the repository."""
        return self.page.relative_to(ROOT).as_posix()

    def noted(self, name: str) -> list[str]:
        """What the comments of a name say."""
        found = (note.partition(":") for note in self.notes)
        return [text.strip() for key, _, text in found if key.strip() == name]


class Checked(NamedTuple):
    """How many blocks were run, checked, only shown; and what is wrong, each with its place."""

    run: int
    checked: int
    outputs: int
    needs: dict[str, int]
    """What was missing or who runs it → blocks."""
    wrong: list[str]


def blocks() -> Iterator[Block]:
    """Yield the blocks of README and pages."""
    for page in (*sorted(ROOT.glob("README*.md")), *sorted((ROOT / "docs").rglob("*.md"))):
        text = page.read_text(encoding="utf-8")
        for found in BLOCK.finditer(text):
            indent = len(found.group(1))
            body = "".join(line[indent:] for line in found.group(4).splitlines(keepends=True))
            above = NOTES.search(text[: found.start()])
            notes = tuple(re.findall(r"<!-- (.*?) -->", above.group(1) if above else ""))
            yield Block(page, text[: found.start()].count("\n") + 1, found.group(2), body, notes)


def check(train: bool = False) -> Checked:
    """Run and check all blocks; with ``train`` those that train, too."""
    run = checked = outputs = 0
    needs: Counter[str] = Counter()
    wrong: list[str] = []
    for block in blocks():
        if block.language in OUTPUT:
            outputs += 1
            continue
        problem, ran = _look(block, train)
        why = ELSEWHERE.get(block.place) or next(iter(block.noted("needs")), "") or OTHER.get(block.language)
        late = block.language in SHELL or "trains" in block.notes
        why = why or ("make docs" if late and not train else "")
        if not (ran or why):
            problem = problem or "it is neither run nor marked <!-- needs: … -->"
        if why and not ran:
            needs[why] += 1
        run, checked = run + ran, checked + 1
        wrong += [f"{block}: {problem}"] if problem else []
    shells.forget()
    return Checked(run, checked, outputs, dict(needs), wrong)


def _look(block: Block, train: bool = False) -> tuple[str, bool]:
    """What is wrong with a block, and whether it was run."""
    if block.language == "python":
        return _python(block, train)
    if block.language == "yaml":
        return _yaml(block)
    return _shell(block, train) if block.language in SHELL else ("", False)


# --------------------------------------------------------------------------------------------------- Python
def _python(block: Block, train: bool) -> tuple[str, bool]:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        tree: Any = compile(block.text, str(block), "exec", flags | ast.PyCF_ONLY_AST)
    except SyntaxError as error:
        return f"{error.msg} in line {error.lineno}", False
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and (problem := _import(node)):
            return problem, False
        of = node.value if isinstance(node, ast.Attribute) else None
        if isinstance(of, ast.Name) and of.id == "agl" and not hasattr(agentlightning, node.attr):
            return f"there is no agl.{node.attr}", False
    if block.place in ELSEWHERE or block.noted("needs") or ("trains" in block.notes and not train):
        return "", False
    problem = _execute(block)
    return problem, not problem


def _import(node: ast.Import | ast.ImportFrom) -> str:
    """What is wrong with an import of the suite."""
    names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
    for name in names:
        if name.split(".")[0] not in ("agentlightning", "agl_local"):
            continue
        try:
            there = importlib.util.find_spec(name) is not None
        except (ImportError, ValueError):
            there = False
        if not there:
            return f"there is no module {name}"
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(name)
            for alias in node.names:
                if (
                    not hasattr(module, alias.name)
                    and importlib.util.find_spec(f"{name}.{alias.name}") is None
                ):
                    return f"{name} has no {alias.name}"
    return ""


CELL = """
import ast, asyncio, inspect, sys
space = {"__name__": "__main__"}
async def cell():
    code = compile(sys.stdin.read(), "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    found = eval(code, space)
    if inspect.isawaitable(found):
        await found
asyncio.run(cell())
"""


def _execute(block: Block) -> str:
    """Run a block in a folder of its own; return the last line of what it said if it failed."""
    text = "\n".join([*block.noted("setup"), block.text])
    cell, seconds = "cell" in block.notes, LONG if "trains" in block.notes else SECONDS
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "AGL_EMIT_OUTSIDE": "ignore", "AGL_LOG": ""}
        script = Path(folder) / "block.py"
        script.write_text(CELL if cell else text, encoding="utf-8")
        try:
            done = subprocess.run(
                [sys.executable, str(script)], cwd=folder, env=environment, capture_output=True,
                encoding="utf-8", timeout=seconds, input=text if cell else None,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"not done after {seconds} seconds"
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it failed"])[-1]


# ----------------------------------------------------------------------------------------------------- YAML
def _yaml(block: Block) -> tuple[str, bool]:
    """Load a block as a run's file; it need not be whole. Other YAML is only parsed."""
    try:
        found = yaml.safe_load(block.text)
    except yaml.YAMLError as error:
        return f"no YAML: {error}", False
    schema = run_config_schema()
    if not isinstance(found, dict):
        return "a run's file holds sections", False
    try:
        rewrite(found, block)  # keys of early versions become present ones
        if problem := next(_unknown(found, schema, schema), ""):
            return problem, False
        build(found, str(block), context=FILE)
    except UsageError as error:
        return str(error), False
    return "", True


def _unknown(found: dict[str, Any], section: dict[str, Any], schema: dict[str, Any]) -> Iterator[str]:
    properties = section.get("properties", {})
    for key, value in found.items():
        if key not in properties:
            if section.get("additionalProperties") is False:
                yield f"a run's file has no key {key!r} here"
            continue
        about = properties[key]
        refs = [one["$ref"] for one in [about, *about.get("anyOf", [])] if "$ref" in one]
        if isinstance(value, dict) and len(refs) == 1:
            yield from _unknown(value, schema["$defs"][refs[0].rpartition("/")[2]], schema)


# ---------------------------------------------------------------------------------------------------- shell
def _shell(block: Block, train: bool) -> tuple[str, bool]:
    problem = _commands(block)
    if problem or not train or block.place in ELSEWHERE or block.noted("needs"):
        return problem, False
    until = next(iter(block.noted("until")), "")
    problem = shells.run(list(shells.commands(block.text)), block.noted("setup"), until)
    return problem, not problem


def _commands(block: Block) -> str:
    """What is wrong with the commands and options of ``agl`` in a block."""
    known = dict(reference.tree())
    text = block.text.replace("\\\n", " ")
    for line in text.splitlines():
        try:
            words = shlex.split(line.replace(";", " ; "), comments=True)
        except ValueError:
            continue
        for at, word in enumerate(words):
            called = (word == "agl" or word.endswith("/agl")) and (
                at == 0 or words[at - 1] in (";", "&&") or "=" in words[at - 1]
            )
            if called and (problem := _command(words[at + 1 :], known)):
                return f"{line.strip()}: {problem}"
    return ""


def _command(words: list[str], known: dict[tuple[str, ...], Any]) -> str:
    path: tuple[str, ...] = ("agl",)
    rest = list(words)
    while rest and (*path, rest[0]) in known:
        path = (*path, rest.pop(0))
    command = known[path]
    if path == ("agl",) and rest and not rest[0].startswith("-"):
        return f"there is no command {rest[0]}"
    options = {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help", "-h"}
    for word in rest:
        if word in ("--", "|", "&&", ";", ">", "&"):
            break
        if word.startswith("--") and word.split("=")[0] not in options:
            return f"{' '.join(path)} has no option {word}"
    return ""
