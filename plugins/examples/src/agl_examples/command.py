"""``agl example``: list, copy and run the examples of an installed suite."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from agentlightning.terminal import Console
from agentlightning.types import UsageError
from agl_examples.catalogue import Example, catalogue, copy_example, find_example

_WIDE = 110
"""Columns of the list where stdout is no terminal."""
Name = Annotated[str, typer.Argument(metavar="NAME", help="A name of `agl example list`.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON in place of text.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})
    group.command("list")(list_examples)
    group.command("copy")(copy)
    group.command("run", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(run)
    app.add_typer(group, name="example", help="List, copy and run the examples.")


def list_examples(as_json: AsJson = False) -> None:
    """List the examples: what each shows, and what it needs that is not installed."""
    if as_json:
        for name, example in catalogue().items():
            missing = example.missing()
            print(json.dumps({"name": name, "about": example.about, "run": example.run, "missing": missing}))
        return
    table = Table("example", "what it shows", "runs here")
    for name, example in catalogue().items():
        table.add_row(name, example.about, _state(example))
    console = Console()
    if not console.is_terminal:
        console.width = _WIDE
    console.print(table)
    console.print("run one: agl example run NAME", highlight=False)


def copy(
    name: Name,
    folder: Annotated[Path | None, typer.Argument(metavar="[DIR]", help="Where to; default: ./NAME.")] = None,
    as_json: AsJson = False,
) -> None:
    """Copy an example, with what it imports, to DIR/examples."""
    target = folder or Path(name)
    copied = copy_example(name, target)
    if as_json:
        print(json.dumps({"example": name, "folder": str(target), "files": [str(path) for path in copied]}))
        return
    example = find_example(name)
    print(f"copied {len(copied)} files to {target / 'examples'}")
    if example.missing():
        print(f"needed: {_needed(example)}")
    if example.run:
        print(f"run it: cd {shlex.quote(str(target))} && PYTHONPATH=examples {shlex.join(example.run)}")


def run(
    context: typer.Context,
    name: Name,
    folder: Annotated[Path | None, typer.Option("--dir", help="Where to copy it; default: ./NAME.")] = None,
) -> None:
    """Copy an example and run it there; what follows NAME is given to its command.

    For one that trains, agl example run calc_x --set training.steps=6 is a shorter run.
    """
    example = find_example(name)
    if not example.run:
        raise UsageError(f"{name} is no program; copy it and read its README: agl example copy {name}")
    if example.missing():
        raise UsageError(f"{name} cannot run here yet. Needed: {_needed(example)}")
    target = folder or Path(name)
    copy_example(name, target)
    command = [*example.run, *context.args]
    print(f"in {target}: {shlex.join(command)}", file=sys.stderr)
    paths = [str((target / "examples").resolve()), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run([_program(command[0]), *command[1:]], cwd=target, env=environment)
    raise typer.Exit(done.returncode if done.returncode >= 0 else 128 - done.returncode)


def _program(word: str) -> str:
    """Return the program of this very installation: its Python, or the script beside it."""
    if word == "python":
        return sys.executable
    beside = Path(sys.executable).with_name(word)
    return str(beside) if beside.exists() else shutil.which(word) or word


def _needed(example: Example) -> str:
    """Return what is missing, with the command that installs what pip can.

    No package index under our control has the suite's distributions: the command names a place of wheels.
    """
    missing = example.missing()
    installable = [shlex.quote(one) for one in example.requires if one in missing]
    wheels = " --find-links WHEELS" if any(one.strip("'").startswith("agl-") for one in installable) else ""
    parts = [f"pip install{wheels} {' '.join(installable)}"] if installable else []
    if wheels:
        parts[0] += " (WHEELS: the folder or address that agl-core was installed from)"
    parts += [f"the environment variable {one[1:]}" for one in missing if one.startswith("$")]
    parts += [f"the program {one}" for one in missing if one == example.program]
    return "; ".join(parts)


def _state(example: Example) -> Text:
    missing = example.missing()
    if missing:
        return Text("needs " + ", ".join(missing), "yellow")
    return Text("yes", "green") if example.run else Text("to copy and read")
