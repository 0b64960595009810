"""The plugin ``examples``: registers the command ``agl example``."""

from __future__ import annotations

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import CommandSpec, lazily


@hookimpl
def agl_commands() -> list[CommandSpec]:
    return [
        CommandSpec("example", lazily("agl_examples.command:register"), "list, copy and run the examples")
    ]
