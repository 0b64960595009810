"""The episodes of an environment as tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Task = dict[str, Any]


def tasks(
    environment: str,
    count: int | None = None,
    first_seed: int = 0,
    resets: Sequence[Mapping[str, Any]] | None = None,
    instructions: str = "",
    action: str | None = None,
    observation: str | None = None,
    max_steps: int = 16,
) -> list[Task]:
    """Return the episodes of an environment, each with the arguments of its reset.

    ``environment``: the address of its server, or ``module:app`` of one that the run serves itself.
    ``count``: so many episodes, whose resets get the seeds from ``first_seed`` on; hold out others by other
    seeds. ``resets``: instead, the arguments of each reset. ``instructions``: the system message.
    ``action``: the field of an action that an answer's text fills; by default the only field if it is text,
    else the answer is asked for as JSON by the action's schema. ``observation``: the field that the model
    sees. ``max_steps``: the actions of an episode, at most. ValueError if there is not exactly one of
    ``count`` and ``resets``.
    """
    if (count is None) == (resets is None):
        raise ValueError("tasks of an OpenEnv environment need either count or resets")
    if max_steps < 1:
        raise ValueError(f"max_steps is {max_steps}; an episode has at least one step")
    given = resets if resets is not None else [{"seed": first_seed + i} for i in range(count or 0)]
    how = {"instructions": instructions, "action": action, "observation": observation, "max_steps": max_steps}
    return [{"environment": environment, "reset": dict(reset), **how} for reset in given]
