"""The hook of this plugin's own, and what it registers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from agentlightning.hookspecs import hookspec
from agentlightning.types import Rollout


@dataclass(frozen=True, slots=True)
class RolloutViewSpec:
    """A view of rollouts of some kind: ``await render(run, rollout)`` returns a whole HTML page without
    scripts. ``run`` is an ``audit.run.OpenRun``. Raise ``UsageError`` where a rollout has nothing to show.
    """

    name: str
    title: str
    applies: Callable[[Rollout], bool]
    """Whether a rollout is of the kind, by its task; called for each rollout that is opened."""
    render: Callable[[Any, Rollout], Awaitable[str]]


@hookspec
def agl_rollout_views() -> list[RolloutViewSpec]:  # type: ignore[empty-body]
    """Views of a rollout that know its task, such as the replay of a game; ``agl dashboard`` shows them."""
