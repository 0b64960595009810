"""Checks the blocks of README and pages: Python runs or at least resolves, YAML and commands are known.

- A Python block that trains, serves or asks nothing is executed, in a folder of its own. Of the others the
  syntax, the imports of the suite and each ``agl.name`` are checked.
- A YAML block with sections of a run's file has only keys that the schema knows.
- A line of a shell block that calls ``agl`` names a command and options that there are.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

import agentlightning
from agentlightning.train.config_schema import run_config_schema
from agentlightning.train.early_keys import expand
from agentlightning.types import UsageError

sys.path.insert(0, str(Path(__file__).parent))
import reference

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^( *)```(\w+)[^\n]*\n(.*?)^\1```", re.M | re.S)
DOES = re.compile(
    r"sys\.argv|\.(fit|train|dev|run|serve|iter|step)\(|input\(|asyncio\.run|requests\.|open\(|await "
)
"""Calls that start something: their blocks are checked and not run."""
SECONDS = 60


class Block(NamedTuple):
    """A block of a page."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks() -> Iterator[Block]:
    """Yield the blocks of README and pages."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = page.read_text()
        for found in BLOCK.finditer(text):
            indent = len(found.group(1))
            body = "".join(line[indent:] for line in found.group(3).splitlines(keepends=True))
            yield Block(page, text[: found.start()].count("\n") + 1, found.group(2), body)


def check() -> tuple[int, int, list[str]]:
    """Return how many blocks were run and checked, and what is wrong, each with its place."""
    run = checked = 0
    wrong: list[str] = []
    for block in blocks():
        if block.language == "python":
            problem, ran = _python(block)
        elif block.language in ("yaml", "sh", "bash"):
            problem, ran = (_yaml if block.language == "yaml" else _shell)(block), False
        else:
            continue
        run, checked = run + ran, checked + 1
        wrong += [f"{block}: {problem}"] if problem else []
    return run, checked, wrong


def _python(block: Block) -> tuple[str, bool]:
    try:
        tree = ast.parse(block.text)
    except SyntaxError as error:
        return f"{error.msg} in line {error.lineno}", False
    foreign = False
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            problem, known = _import(node)
            if problem:
                return problem, False
            foreign = foreign or not known
        of = node.value if isinstance(node, ast.Attribute) else None
        if isinstance(of, ast.Name) and of.id == "agl" and not hasattr(agentlightning, node.attr):  # type: ignore[attr-defined]
            return f"there is no agl.{node.attr}", False  # type: ignore[attr-defined]
    if foreign or DOES.search(block.text) or "import" not in block.text or "..." in block.text:
        return "", False
    problem = _execute(block.text)
    if problem.startswith("NameError"):  # a part of a program, whose other names the page explains
        return "", False
    return problem, True


def _import(node: ast.Import | ast.ImportFrom) -> tuple[str, bool]:
    """What is wrong with an import of the suite, and whether all of it is installed."""
    names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
    for name in names:
        ours = name.split(".")[0].startswith(("agentlightning", "agl_"))
        try:
            there = importlib.util.find_spec(name) is not None
        except (ImportError, ValueError):
            there = False
        if not there and ours and name.split(".")[0] in ("agentlightning", "agl_local"):
            return f"there is no module {name}", False
        if not there:
            return "", False
        if ours and isinstance(node, ast.ImportFrom):
            module = importlib.import_module(name)
            for alias in node.names:
                if (
                    not hasattr(module, alias.name)
                    and importlib.util.find_spec(f"{name}.{alias.name}") is None
                ):
                    return f"{name} has no {alias.name}", False
    return "", True


def _execute(text: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "AGL_EMIT_OUTSIDE": "ignore"}
        done = subprocess.run(
            [sys.executable, "-c", text],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it failed"])[-1]


def _yaml(block: Block) -> str:
    try:
        found = yaml.safe_load(block.text)
    except yaml.YAMLError as error:
        return f"no YAML: {error}"
    schema = run_config_schema()
    if not isinstance(found, dict) or not set(found) & {"agent", "training", "environment", "backend"}:
        return ""
    try:
        expand(found, str(block))  # keys of early versions become present ones
    except UsageError as error:
        return str(error)
    return next(_unknown(found, schema, schema), "")


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


def _shell(block: Block) -> str:
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
