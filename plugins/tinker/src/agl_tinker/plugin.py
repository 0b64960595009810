"""Registers the driver ``tinker`` and the command ``agl tinker``. Nothing heavy is imported until one is used."""

from __future__ import annotations

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import CommandSpec, lazily


@hookimpl
def agl_commands() -> list[CommandSpec]:
    return [CommandSpec("tinker", lazily("agl_tinker.command:register"), "serve the Tinker API on this machine")]
