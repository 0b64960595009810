"""The examples as files, with views of their rollouts, a small agent with task sets, and faces that need no
settings.
"""

from __future__ import annotations

from typing import Any

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import CommandSpec, SectionSpec, lazily
from agl_examples import hookspecs
from agl_examples.hookspecs import TaskSetSpec

_SETS = {
    "math": ("math:math", "word problems, with a calculator"),
    "reasoning": ("reasoning:reasoning", "orders of people from comparisons"),
    "sql-generation": ("sql_generation:sql_generation", "questions about a small database"),
    "coding": ("coding:coding", "small Python functions, run in a process with limits"),
}
_FACES = ("APOTrainer", "GRPOTrainer", "RLConfig", "RLOOTrainer", "SFTTrainer")


@hookimpl
def agl_commands() -> list[CommandSpec]:
    return [
        CommandSpec("example", lazily("agl_examples.command:register"), "list, copy and run the examples"),
        CommandSpec("init", lazily("agl_examples.init:register"), "write a project that trains as it is"),
    ]


@hookimpl
def agl_hookspecs() -> list[Any]:
    return [hookspecs]


@hookimpl
def agl_sections() -> list[SectionSpec]:
    return [
        SectionSpec("early_keys", rewrite=lazily("agl_examples.early_keys:expand")),
        SectionSpec("misplaced keys", rewrite=lazily("agl_examples.misplaced_keys:refuse")),
    ]


@hookimpl
def agl_task_sets() -> list[TaskSetSpec]:
    return [
        TaskSetSpec(name, lazily(f"agl_examples.bundled.{place}"), about)
        for name, (place, about) in _SETS.items()
    ]


@hookimpl(optionalhook=True)
def agl_rollout_views() -> list[Any]:
    """Asked by agl-dashboard, which alone needs to be installed for them."""
    from agl_examples.views import views

    return views()


@hookimpl
def agl_names() -> dict[str, str]:
    faces = {name: f"agl_examples.faces:{name}" for name in _FACES}
    return {"Agent": "agl_examples.bundled.agent:Agent", **faces}
