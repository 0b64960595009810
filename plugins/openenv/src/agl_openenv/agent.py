"""The agent: one episode of an environment, each of its actions asked of the run's policy."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion

import agentlightning as agl
from agl_openenv.conversation import action_of, asked_form, shown, text_field
from agl_openenv.serving import url_of
from agl_openenv.session import EnvironmentFailed, RefusedAction, Session, Step

Message = Any
"""A message of a conversation, as the SDK takes it."""


@agl.rollout
async def play(task: Mapping[str, Any], llm: agl.LLM) -> None:
    """Play a task of :func:`agl_openenv.tasks.tasks` and emit its rewards.

    ``reward`` is the sum over the episode. Each step's reward belongs to the call that chose its action
    (``step``). ``steps`` counts the actions, ``refused`` those that the environment's schema did not allow,
    and ``done`` is 0 for an episode that ``max_steps`` ended. Raise :class:`EnvironmentFailed` if the server
    fails, or gives no reward: a missing reward is not zero.
    """
    url = await asyncio.to_thread(url_of, task["environment"])
    async with Session(url) as session, AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        episode = await Episode.begin(session, client, llm.model, task)
        while not episode.done and episode.steps < task["max_steps"]:
            await episode.act()
    if episode.total is None:
        raise EnvironmentFailed(f"{url} gave no reward in {episode.steps} steps of episode {task['reset']}")
    agl.emit_reward(episode.total)
    for name in ("steps", "refused", "done"):
        agl.emit_reward(float(getattr(episode, name)), name=name, final=False)


class Episode:
    """The conversation with the policy on one side, the session with the environment on the other."""

    def __init__(self, session: Session, client: AsyncOpenAI, model: str, task: Mapping[str, Any]) -> None:
        self._session, self._client, self._model, self._task = session, client, model, task
        self._messages: list[Message] = []
        self._field: str | None = task["action"]
        self._form: dict[str, Any] = {}
        self.steps = self.refused = 0
        self.total: float | None = None
        """The sum of the rewards so far; None before the first."""
        self.done = False

    @classmethod
    async def begin(
        cls, session: Session, client: AsyncOpenAI, model: str, task: Mapping[str, Any]
    ) -> Episode:
        """Reset the environment, and show the policy what it observes."""
        episode = cls(session, client, model, task)
        if episode._field is None:
            schema = await session.action_schema()
            episode._field = text_field(schema)
            if episode._field is None:
                episode._form = {"response_format": asked_form(schema)}
        if task["instructions"]:
            episode._messages.append({"role": "system", "content": task["instructions"]})
        episode._take(await session.reset(**task["reset"]))
        return episode

    async def act(self) -> None:
        """Ask for an action and take it. One that is refused is told to the policy, and counts as a step."""
        answer: ChatCompletion = await self._client.chat.completions.create(
            model=self._model, messages=list(self._messages), **self._form
        )
        text = answer.choices[0].message.content or ""
        self._messages.append({"role": "assistant", "content": text})
        self.steps += 1
        try:
            step = await self._session.step(action_of(text, self._field))
        except RefusedAction as error:
            self.refused += 1
            self._messages.append({"role": "user", "content": f"This action is not allowed: {error}"})
            return
        if step.reward is not None:
            agl.emit_reward(step.reward, name="step", call=answer)
        self._take(step)

    def _take(self, step: Step) -> None:
        self.done = step.done
        if step.reward is not None:
            self.total = (self.total or 0.0) + step.reward
        text = shown(step.observation, self._task["observation"])
        self._messages.append({"role": "user", "content": text})
