"""Registers ``agl run``, ``agl gateway``, and the fields ``agent.command``, ``reward`` and ``program``."""

from __future__ import annotations

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import CommandSpec, SectionSpec, lazily, lazy_type


@hookimpl
def agl_commands() -> list[CommandSpec]:
    return [
        CommandSpec(
            "run", lazily("agl_programs.command:register"), "run a program and record its model calls"
        ),
        CommandSpec(
            "gateway",
            lazily("agl_programs.gateway_command:register"),
            "record the calls of programs that somebody else starts",
        ),
    ]


@hookimpl
def agl_sections() -> list[SectionSpec]:
    fields = lazy_type("agl_programs.commands.settings:CommandFields")
    return [SectionSpec("command", "agent", fields, lazily("agl_programs.commands.agent:configured_agent"))]


@hookimpl
def agl_names() -> dict[str, str]:
    return {
        "CommandAgent": "agl_programs.commands.agent:CommandAgent",
        "CommandResult": "agl_programs.commands.result:CommandResult",
        "Sandbox": "agl_programs.sandbox.box:Sandbox",
        "SandboxResult": "agl_programs.sandbox.box:SandboxResult",
    }
