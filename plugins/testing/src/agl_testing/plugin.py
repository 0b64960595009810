"""Registers ``agl doctor``, and serves scripted policies."""

from __future__ import annotations

from typing import Any

from agentlightning import specs
from agentlightning.hookspecs import hookimpl
from agentlightning.specs import lazily


@hookimpl
def agl_commands() -> list[specs.CommandSpec]:
    command = lazily("agl_testing.doctor.command:register")
    return [specs.CommandSpec("doctor", command, "look a run over before it costs anything")]


@hookimpl
def agl_serve_script(script: Any, model: str) -> Any:
    from agl_testing.scripted import ScriptedModelServer

    return ScriptedModelServer(script, model=model, ids="always")
