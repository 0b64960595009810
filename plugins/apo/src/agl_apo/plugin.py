"""The plugin ``apo``: registers searches of prompts, their public names, and the command ``agl prompts``."""

from __future__ import annotations

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import AlgorithmSpec, CommandSpec, lazily


@hookimpl
def agl_algorithms() -> list[AlgorithmSpec]:
    return [
        AlgorithmSpec("gepa", lazily("agl_apo.reflective:GEPA"), "prompts by reflection, arXiv 2507.19457"),
        AlgorithmSpec("alternate", lazily("agl_apo.alternate:Alternate"), "weights and prompts in one loop"),
        AlgorithmSpec("apo", lazily("agl_apo.beam:APO"), "prompts by textual gradients, arXiv 2305.03495"),
    ]


@hookimpl
def agl_names() -> dict[str, str]:
    return {
        "APO": "agl_apo.beam:APO",
        "Alternate": "agl_apo.alternate:Alternate",
        "GEPA": "agl_apo.reflective:GEPA",
    }


@hookimpl
def agl_commands() -> list[CommandSpec]:
    return [CommandSpec("prompts", lazily("agl_apo.command:register"), "the candidates of a prompt search")]
