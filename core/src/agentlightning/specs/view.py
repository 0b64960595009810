"""What a person sees: subcommands, and views of rollouts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

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


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """A subcommand of ``agl``: ``register(app)`` adds it."""

    name: str
    register: Callable[[Any], None]
    about: str = field(default="")
