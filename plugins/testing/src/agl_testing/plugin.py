"""Registers ``agl doctor``, and the scripted policies that a run's are compared with."""

from __future__ import annotations

from typing import Any

from agentlightning import specs
from agentlightning.hookspecs import hookimpl
from agentlightning.specs import lazily, lazy_type


@hookimpl
def agl_commands() -> list[specs.CommandSpec]:
    command = lazily("agl_testing.doctor.command:register")
    return [specs.CommandSpec("doctor", command, "look a run over before it costs anything")]


@hookimpl
def agl_sections() -> list[specs.SectionSpec]:
    fields = lazy_type("agl_testing.headroom:ScriptedEnvironment")
    return [specs.SectionSpec("scripted policies", "environment", fields)]


@hookimpl
def agl_comparisons(config: Any) -> specs.Comparison | None:
    from agl_testing.headroom import headroom_of

    return headroom_of(config)
