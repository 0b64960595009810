"""What every command of the suite has: short help, a description, and ``--json`` where it prints."""

from __future__ import annotations

import agl_programs.plugin
import agl_testing.plugin
import pytest
from core.cli.test_every_command import commands, describes_itself, says_short_help

import agl_audit.plugin
import agl_cluster.plugin
import agl_local.plugin

PLUGINS = [
    agl_local.plugin,
    agl_audit.plugin,
    agl_cluster.plugin,
    agl_programs.plugin,
    agl_testing.plugin,
]
COMMANDS = commands(PLUGINS)
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
    describes_itself(words, COMMANDS[words])


@pytest.mark.parametrize("words", sorted(COMMANDS))
def test_short_help_is_help(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    says_short_help(words, PLUGINS, monkeypatch)
