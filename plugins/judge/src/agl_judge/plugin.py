"""Registers the field ``group_reward``, what gives rewards by it, and ``agl judge``."""

from __future__ import annotations

from typing import Any

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import CommandSpec, GroupReward, SectionSpec, StoreOperationSpec, lazily, lazy_type


@hookimpl
def agl_sections() -> list[SectionSpec]:
    return [SectionSpec("group reward", "", lazy_type("agl_judge.section:GroupRewardRun"))]


@hookimpl
def agl_group_rewards(config: Any) -> GroupReward | None:
    # A description that was read without this plugin has no such field.
    if (given := getattr(config, "group_reward", None)) is None:
        return None
    from agl_judge.grading import Grading
    from agl_judge.section import make_grader

    return Grading(make_grader(given, config.path(".")))


@hookimpl
def agl_store_operations() -> list[StoreOperationSpec]:
    operation = lazy_type("agl_judge.store:add_group_rewards")
    return [StoreOperationSpec("add_group_rewards", operation, "POST", "/rewards/groups", "trainer")]


@hookimpl
def agl_commands() -> list[CommandSpec]:
    return [CommandSpec("judge", lazily("agl_judge.command:register"), "measure a judge on labelled pairs")]


@hookimpl
def agl_names() -> dict[str, str]:
    relative, rubric = "agl_judge.graders.relative", "agl_judge.graders.rubric"
    return {
        "Agree": f"{relative}:Agree",
        "BadVerdict": "agl_judge.client:BadVerdict",
        "Criterion": f"{rubric}:Criterion",
        "Group": "agl_judge.group:Group",
        "Rank": f"{relative}:Rank",
        "Rubric": f"{rubric}:Rubric",
        "Tournament": f"{relative}:Tournament",
        "group_reward": "agl_judge.group:group_reward",
    }
