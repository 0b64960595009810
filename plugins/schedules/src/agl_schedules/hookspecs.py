"""The hook of this plugin's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentlightning.hookspecs import hookspec

if TYPE_CHECKING:
    from agl_schedules.specs import CurriculumSpec


@hookspec
def agl_curricula() -> list[CurriculumSpec]:  # type: ignore[empty-body]
    """Curricula, which ``training.curriculum`` names: they choose the tasks of each step."""
