"""Pages of the reference that are made from code, and what code leaves undocumented.

Each function returns a page in Markdown. :func:`undocumented` names every key, option, command, hook,
variable and public name without a text.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

import agentlightning
from agentlightning import hookspecs
from agentlightning.cli import app
from agl_examples.init import run_config_schema

sys.path.insert(0, str(Path(__file__).parent))
import catalogues
import metrics

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = {
    "local": ("agl_local.options", "Options"),
    "tinker": ("agl_tinker.options", "Options"),
    "verl": ("agl_verl.config.settings", "Options"),
}
"""Driver → module and class of its options."""
VARIABLES = Path(__file__).parent / "environment.txt"
"""The section on environment variables, below the commands."""
INTERNAL = frozenset(
    [
        "AGL_ARG_",
        "AGL_COMPLETE",
        "AGL_CURRENT_ROLE",
        "AGL_EMITTER_DEBUG",
        "AGL_HERE",
        "AGL_LOCAL_ADMIN_TOKEN",
        "AGL_MANAGED_STORE",
        "AGL_PROGRAM",
        "AGL_SERVER_HOST",
        "AGL_SERVER_PORT",
        "AGL_VERL_CHANNEL",
        "AGL_VERL_SECRET",
        "AGL_VERL_TAP",
        "AGL_VISIBLE_CPUS",
        "AGL_WATCH",
    ]
)
"""Variables that our own processes set for each other, that shells set, or that v0.3 named."""


def plain(text: str | None) -> str:
    """Return a docstring's text as one paragraph of Markdown, in which the names of pages are links."""
    text = re.sub(r":\w+:`[.~]?([^`]*)`", r"`\1`", inspect.cleandoc(text or ""))
    text = re.sub(r"\s+", " ", text).replace("``", "`").replace("|", "\\|").strip()
    return re.sub(r"`docs/((?:[\w-]+/)?([\w-]+)\.md)`", r"[\2](../\1)", text)


# -------------------------------------------------------------------------------------------- configuration
def configuration() -> str:
    """The keys of a run's file, those of a recipe and of each driver among them."""
    schema = run_config_schema()
    lines = [
        "# Configuration",
        "",
        "Keys of the YAML file that `agl train --config`, `agl eval` and `agl doctor` read. Editors complete",
        "and check it by [its schema](../run_config.schema.json): let the file's first line be",
        "`# yaml-language-server: $schema=run_config.schema.json`. `--set training.steps=20` sets a key on",
        "the command line.",
        "",
        *_keys(schema, schema),
    ]
    for name, key in sorted(_places(schema).items(), key=lambda place: place[1]):
        section = schema["$defs"][name]
        lines += ["", f"## {key}", "", plain(section.get("description")), "", *_keys(section, schema)]
    return "\n".join([*lines, "", catalogues.recipes(), options()]) + "\n"


def _places(schema: dict[str, Any]) -> dict[str, str]:
    """Section → the key that holds it, from the top of the file; the shortest, if several do."""
    found: dict[str, str] = {}
    todo = [("", schema)]
    while todo:
        key, section = todo.pop(0)
        for name, about in section.get("properties", {}).items():
            for ref in re.findall(r"#/\$defs/(\w+)", json.dumps(about)):
                if ref not in found and schema["$defs"][ref].get("properties"):
                    found[ref] = f"{key}.{name}".removeprefix(".")
                    todo.append((found[ref], schema["$defs"][ref]))
    return found


def _meaning(about: dict[str, Any], schema: dict[str, Any]) -> str:
    """Return the text of a key: its own, else that of the section which it is."""
    refs = [one["$ref"] for one in [about, *about.get("anyOf", [])] if "$ref" in one]
    section = schema["$defs"][refs[0].rpartition("/")[2]] if len(refs) == 1 else {}
    return plain(about.get("description") or section.get("description"))


def _keys(section: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    rows, places = ["| key | type | default | meaning |", "|---|---|---|---|"], _places(schema)
    for key, about in section.get("properties", {}).items():
        section = isinstance(about.get("default"), dict) and about["default"]
        default = f"`{about['default']!r}`" if "default" in about and not section else ""
        rows.append(f"| `{key}` | {_type(about, places)} | {default} | {_meaning(about, schema)} |")
    return rows


def _type(about: dict[str, Any], places: dict[str, str]) -> str:
    """Return the type of a value in words."""
    if "$ref" in about:
        key = places.get(about["$ref"].rpartition("/")[2])
        return f"[{key}](#{key.replace('.', '')})" if key else "text"
    if "anyOf" in about:
        return " or ".join(dict.fromkeys(_type(one, places) for one in about["anyOf"]))
    if "enum" in about:
        return ", ".join(f"`{value}`" for value in about["enum"])
    if about.get("type") == "array":
        return f"list of {_type(about.get('items', {}), places)}"
    return str(about.get("type", "any"))


# ------------------------------------------------------------------------------------------------- commands
def commands() -> str:
    """All commands with their options."""
    lines = [
        "# Commands",
        "",
        "`agl COMMAND --help` prints the same. `agl` and `agent-lightning` are one command.",
        "[Environment variables](#environment-variables) stand at the end.",
        "",
    ]
    for path, command in tree():
        lines += [
            f"## {' '.join(path)}",
            "",
            plain(command.help),
            "",
            "| option | meaning | default |",
            "|---|---|---|",
        ]
        for option in command.params:
            if option.name not in ("help", "install_completion", "show_completion"):
                default = option.get_default(_context(command))
                shown = "" if default in (None, False, ()) or callable(default) else f"`{default}`"
                lines.append(f"| `{_names(option)}` | {plain(getattr(option, 'help', ''))} | {shown} |")
        lines.append("")
    return "\n".join([*lines, VARIABLES.read_text(encoding="utf-8")])


def tree() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command with the words that call it."""
    yield from _below(("agl",), typer.main.get_command(app()))


def _below(path: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, below in sorted(getattr(command, "commands", {}).items()):
        if not below.hidden:
            yield from _below((*path, name), below)


def _context(command: Any) -> Any:
    return command.context_class(command, info_name=command.name)


def _names(option: Any) -> str:
    if option.param_type_name == "argument":
        return str(option.metavar or option.name).upper()
    return ", ".join(sorted(option.opts, key=len))


# -------------------------------------------------------------------------------------------------- options
def options() -> str:
    """The keys of ``backend.options``, by driver."""
    lines = ["## backend.options", "", "By `backend.driver`.", ""]
    for driver in OPTIONS:
        lines += [f"### driver: {driver}", "", "| option | type | default | meaning |", "|---|---|---|---|"]
        for name, kind, default, text in fields(driver):
            lines.append(f"| `{name}` | `{kind}` | `{default}` | {plain(text)} |".replace("``", ""))
        lines.append("")
    return "\n".join(lines)


def fields(driver: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, type, default and text of a driver's options, read from its source."""
    module, name = OPTIONS[driver]
    source = ast.parse(inspect.getsource(importlib.import_module(module)))
    body = next(node for node in source.body if isinstance(node, ast.ClassDef) and node.name == name).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            text = after.value.value if said else ""  # type: ignore[union-attr]
            default = ast.unparse(node.value) if node.value else ""
            kind = ast.unparse(node.annotation).replace(" | ", " or ")
            yield node.target.id, kind, default, str(text)


# --------------------------------------------------------------------------------------------------- Python
def python() -> str:
    """The public names of ``agentlightning``."""
    lines = [
        "# Python",
        "",
        "`import agentlightning as agl`. Names of v0.3: see [from v0.3](../from-0x.md).",
        "",
    ]
    for name, value in public():
        lines += [f"## {name}", ""]
        if signature := _signature(name, value):
            lines += ["```python", signature, "```", ""]
        text = re.sub(r":\w+:`[.~]?([^`]*)`", r"`\1`", inspect.getdoc(value) or "").replace("``", "`")
        lines += [text, ""]
    return "\n".join(lines)


def public() -> Iterator[tuple[str, Any]]:
    """Yield the public names that are functions or classes of the suite."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # names of v0.3 say their successor
        for name in sorted(agentlightning.__all__):
            value = getattr(agentlightning, name)
            if callable(value) and str(getattr(value, "__module__", "")).startswith(
                ("agentlightning", "agl_")
            ):
                yield name, value


def _signature(name: str, value: Any) -> str:
    try:
        return f"{name}{inspect.signature(value)}"
    except (TypeError, ValueError):
        return ""


# ---------------------------------------------------------------------------------------------- undocumented
def undocumented() -> list[str]:
    """Return every key, option, hook, variable, field, error, metric and public name that has no text."""
    found: list[str] = []
    schema = run_config_schema()
    for name, section in [("", schema), *schema["$defs"].items()]:
        keys = section.get("properties", {}).items()
        found += [f"key {name}.{key}" for key, about in keys if not _meaning(about, schema)]
    for path, command in tree():
        words = " ".join(path)
        found += [] if command.help else [f"command {words}"]
        found += [
            f"option {words} {_names(option)}"
            for option in command.params
            if not getattr(option, "help", None) and option.name != "help"
        ]
    for driver in OPTIONS:
        found += [f"option {driver}.{name}" for name, _, _, text in fields(driver) if not text]
    for name, function in vars(hookspecs).items():
        if name.startswith("agl_") and not inspect.getdoc(function):
            found.append(f"hook {name}")
    known = VARIABLES.read_text(encoding="utf-8")
    found += [f"variable {name}" for name in sorted(variables() - INTERNAL) if f"`{name}`" not in known]
    found += [*catalogues.undocumented(), *metrics.undocumented()]
    return found + [f"name agl.{name}" for name, value in public() if not inspect.getdoc(value)]


def variables() -> set[str]:
    """Return the names of the environment variables that our code reads."""
    found: set[str] = set()
    for place in ("core", "plugins", "adapters"):
        for file in (ROOT / place).rglob("src/**/*.py"):
            found |= set(re.findall(r"""["'](AGL_[A-Z_]+)["']""", file.read_text(encoding="utf-8")))
    return found


PAGES = {
    "reference/configuration.md": configuration,
    "reference/commands.md": commands,
    "reference/errors.md": catalogues.errors,
    "reference/metrics.md": metrics.page,
    "reference/python.md": python,
}
"""Page → what makes it."""
