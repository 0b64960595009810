"""The plugin ``dashboard``: registers the commands ``agl dashboard`` and ``agl top``."""

from __future__ import annotations

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import CommandSpec, lazily


@hookimpl
def agl_commands() -> list[CommandSpec]:
    """The commands that show what a store holds while it is written."""
    return [
        CommandSpec("dashboard", lazily("agl_dashboard.command:register"), "open runs in a browser"),
    ]
