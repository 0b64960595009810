"""The hook of this plugin's own, and what it registers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentlightning.hookspecs import hookspec


@dataclass(frozen=True, slots=True)
class TaskSetSpec:
    """Tasks by name: ``factory()`` returns a task set, which has ``train`` and ``val``."""

    name: str
    factory: Callable[[], Any]
    about: str = ""


@hookspec
def agl_task_sets() -> list[TaskSetSpec]:  # type: ignore[empty-body]
    """Sets of tasks with exact graders, which ``environment.eval_tasks`` and ``evaluation.sets`` name."""
