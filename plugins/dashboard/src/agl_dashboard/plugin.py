"""The plugin ``dashboard``: registers the command ``agl dashboard``, and specifies the hook of its views."""

from __future__ import annotations

from typing import Any

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import CommandSpec, lazily
from agl_dashboard import hookspecs


@hookimpl
def agl_commands() -> list[CommandSpec]:
    """The commands that show what a store holds while it is written."""
    return [
        CommandSpec("dashboard", lazily("agl_dashboard.command:register"), "open runs in a browser"),
    ]


@hookimpl
def agl_hookspecs() -> list[Any]:
    return [hookspecs]
