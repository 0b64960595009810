"""What every command has: short help, a description, ``--json`` where it prints, and completion."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import agl_programs.plugin
import agl_testing.plugin
import click
import pytest
import typer
from typer.testing import CliRunner

import agl_audit.plugin
import agl_cluster.plugin
import agl_local.plugin
from agentlightning.cli import app
from agentlightning.plugins import manager

SERVERS = {"store", "runner", "gateway", "serve"}
"""They print an address and go on until they are ended."""


PLUGINS = [
    agl_local.plugin,
    agl_audit.plugin,
    agl_cluster.plugin,
    agl_programs.plugin,
    agl_testing.plugin,
]


def commands() -> dict[str, click.Command]:
    """Every command by its words, those of agl-local too."""
    with pytest.MonkeyPatch.context() as patch:
        loaded = manager.build(PLUGINS, discover=False)
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
EXPECTED = {
    "train", "run", "eval", "store", "gateway", "runner", "doctor", "runs", "top", "rollouts", "logs",
    "compare", "trace", "explain", "verify", "export", "rescore", "serve", "plugins", "sft", "policy fetch",
    "policy list", "policy clear",
    "policy new", "policy info", "policy check", "token",
}  # fmt: skip


def test_all_are_looked_at() -> None:
    assert set(COMMANDS) >= EXPECTED


@pytest.mark.parametrize("words", sorted(COMMANDS))
def test_it_describes_itself_and_prints_json_where_it_prints(words: str) -> None:
    command = COMMANDS[words]
    options = {name for parameter in command.params for name in parameter.opts}
    assert command.help and len(command.help.split()) >= 3
    assert "--json" in options or words in SERVERS
    undescribed = [p.name for p in command.params if not getattr(p, "help", None)]
    assert not undescribed


@pytest.mark.parametrize("words", sorted(COMMANDS))
def test_short_help_is_help(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = manager.build(PLUGINS, discover=False)
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
