"""What every command has: short help, a description, ``--json`` where it prints, and completion."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence

import click
import pytest
import typer
from typer.testing import CliRunner

from agentlightning.cli import app
from agentlightning.plugins import manager

SERVERS = {"store", "runner", "gateway", "serve"}
"""They print an address and go on until they are ended."""


def commands(plugins: Sequence[object] = ()) -> dict[str, click.Command]:
    """Every command of core and of ``plugins`` by its words."""
    with pytest.MonkeyPatch.context() as patch:
        loaded = manager.build(plugins, discover=False)
        patch.setattr("agentlightning.cli.load_plugins", lambda: loaded)
        root = typer.main.get_command(app())
    return dict(_leaves(root, ()))


def _leaves(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield " ".join(words), command
        return
    for name, one in inner.items():
        yield from _leaves(one, (*words, name))


COMMANDS = commands()


def test_all_are_looked_at() -> None:
    assert set(COMMANDS) >= {"train", "plugins"}


@pytest.mark.parametrize("words", sorted(COMMANDS))
def test_it_describes_itself_and_prints_json_where_it_prints(words: str) -> None:
    describes_itself(words, COMMANDS[words])


def describes_itself(words: str, command: click.Command) -> None:
    """The command has a description, and each of its parameters; it has ``--json`` if it prints."""
    options = {name for parameter in command.params for name in parameter.opts}
    assert command.help and len(command.help.split()) >= 3
    assert "--json" in options or words in SERVERS
    undescribed = [p.name for p in command.params if not getattr(p, "help", None)]
    assert not undescribed


@pytest.mark.parametrize("words", sorted(COMMANDS))
def test_short_help_is_help(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    says_short_help(words, (), monkeypatch)


def says_short_help(words: str, plugins: Sequence[object], monkeypatch: pytest.MonkeyPatch) -> None:
    """``-h`` is help, for the command and its group."""
    loaded = manager.build(plugins, discover=False)
    monkeypatch.setattr("agentlightning.cli.load_plugins", lambda: loaded)
    line = [*words.split(), "-h"]
    said = CliRunner().invoke(app(line), line)
    assert said.exit_code == 0 and "--help" in said.output, said.output


def test_plugins_as_json() -> None:
    import json

    said = CliRunner().invoke(app(["plugins"]), ["plugins", "--json"])
    found = json.loads(said.output)
    assert "grpo" in found["recipes"] and "train" in found["commands"] and found["broken"] == {}


def test_it_is_a_module_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agentlightning", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("agl ")
