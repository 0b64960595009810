"""The agent: a rollout of an environment, asked of the run's policy and scored by its rubric."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from openai import AsyncOpenAI

import agentlightning as agl
from agl_verifiers.client import GatewayClient
from agl_verifiers.environments import load
from agl_verifiers.scoring import scoring_errors

PRIMARY = "reward"
"""The reward that is trained: the weighted sum of the rubric's functions."""


class EnvironmentFailed(RuntimeError):
    """A rollout that the environment could not finish, or whose reward functions failed."""


@agl.rollout
async def play(task: Mapping[str, Any], llm: agl.LLM) -> None:
    """Run a task of :func:`agl_verifiers.tasks` and emit its rewards: ``reward``, and each function of the
    rubric by its name, before its weight. Raise :class:`EnvironmentFailed` where verifiers goes on with 0.0.
    """
    environment = await asyncio.to_thread(load, task["environment"], task["arguments"])
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        with scoring_errors() as errors:
            output = await environment.run_rollout(
                dict(task["input"]), GatewayClient(client), llm.model, dict(environment.sampling_args)
            )
    if output["error"] is not None:
        raise EnvironmentFailed(f"environment {task['environment']!r}: {output['error']}")
    if errors:
        raise EnvironmentFailed(f"reward functions of {task['environment']!r} failed: {'; '.join(errors)}")
    for name, value in named_rewards(output["reward"], output["metrics"]).items():
        agl.emit_reward(value, name=name)


def named_rewards(reward: float, metrics: Mapping[str, float]) -> dict[str, float]:
    """All rewards by name. A function of the rubric that is itself called ``reward`` is ``rubric.reward``."""
    named = {f"rubric.{name}" if name == PRIMARY else name: value for name, value in metrics.items()}
    return {PRIMARY: reward, **named}
