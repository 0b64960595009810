"""The plugin ``apo``: registers the algorithms ``apo`` and ``gepa``, and the command ``agl prompts``."""

from __future__ import annotations

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import AlgorithmSpec, CommandSpec, lazily


@hookimpl
def agl_algorithms() -> list[AlgorithmSpec]:
    return [
        AlgorithmSpec("apo", lazily("agl_apo.beam:APO"), "prompts by textual gradients, arXiv 2305.03495"),
    ]


@hookimpl
def agl_commands() -> list[CommandSpec]:
    return [CommandSpec("prompts", lazily("agl_apo.command:register"), "the candidates of a prompt search")]
