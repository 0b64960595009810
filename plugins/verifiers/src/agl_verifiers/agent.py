"""The agent: a rollout of an environment, asked of the run's policy and scored by its task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import verifiers.v1 as vf

import agentlightning as agl
from agl_verifiers.client import GatewayClient
from agl_verifiers.environments import served

PRIMARY = "reward"
"""The reward that is trained: the weighted sum of the task's reward functions."""


class EnvironmentFailed(RuntimeError):
    """A rollout that the environment could not finish, or whose reward functions failed."""


@agl.rollout
async def play(task: Mapping[str, Any], llm: agl.LLM) -> None:
    """Run a task of :func:`agl_verifiers.tasks` and emit its rewards: ``reward``, each reward function by its
    name, before its weight, and each metric. Raise :class:`EnvironmentFailed` for an error of the
    environment, and where a reward function gave nothing: a missing reward is not zero. A rollout whose turns
    are used up is scored as it stands.
    """
    name = task["environment"]
    context = agl.current_attempt()
    assert context is not None
    client = GatewayClient(llm, context)
    async with served(name, task["arguments"], task["max_turns"]) as own:
        kind = type(own.taskset).task_type()
        played = kind(kind.data_type().model_validate(task["input"]), own.taskset.config.task)
        clients, known = own._interception.clients, client.config.model_dump_json()
        clients[known] = client
        try:
            asked = vf.ModelContext(model=llm.model, client=client.config)
            episode = await own.run_episode(played, asked)
        finally:
            del clients[known]
            await client.close()
    errors = [error for one in (episode, *episode.traces) for error in one.errors]
    if errors or not episode.ok:
        said = "; ".join(f"{error.type}: {error.message}" for error in errors) or "it did not complete"
        raise EnvironmentFailed(f"environment {name!r}: {said}")
    (trace,) = episode.traces
    missing = [key for key, value in trace.rewards.items() if value is None]
    if missing or not trace.rewards:
        raise EnvironmentFailed(
            f"environment {name!r} gave no reward ({', '.join(missing) or 'it has none'})"
        )
    scores = {key: value.score for key, value in trace.rewards.items()}
    metrics = {key: value for key, value in trace.metrics.items() if value is not None}
    for key, value in named_rewards(trace.reward, {**metrics, **scores}).items():
        agl.emit_reward(value, name=key)


def named_rewards(reward: float, others: Mapping[str, float]) -> dict[str, float]:
    """All rewards by name. A function of the task that is itself called ``reward`` is ``task.reward``."""
    named = {f"task.{name}" if name == PRIMARY else name: value for name, value in others.items()}
    return {PRIMARY: reward, **named}
