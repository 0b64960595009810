"""The reward function of a rescoring: imported by name, checked, called once for a rollout or for each call.

Invariant: an error of the function becomes an entry, with the traceback of what it raised, never the end of
the rescoring.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, Literal

from agentlightning.algorithms.provenance import git_state, installed, source_digest
from agentlightning.decorator.reward_function import AgentError, BadReward, RewardFailed, RewardFunction
from agentlightning.runner.tracebacks import format_traceback
from agentlightning.train.configured import import_target
from agentlightning.types import Record, Reward, UsageError
from agl_audit.history.rescoring.trace import RolloutTrace, TracedCall
from agl_audit.store.reward_versions import ORIGINAL, Rescored, RewardVersion

Per = Literal["rollout", "call"]
NAMES: dict[Per, tuple[str, ...]] = {
    "rollout": ("task", "result"),
    "call": ("task", "result", "call"),
}
"""Parameters that the function may have, by what it gives a reward to."""
_DISTRIBUTIONS = ("agl-core", "agl-audit", "agl-local", "agl-verifiers")


class RescoreFunction:
    """The function at ``target``, ``module:function``. Raise :class:`UsageError` if it cannot be used."""

    def __init__(self, target: str, per: Per = "rollout", agent: str | None = None) -> None:
        if per not in NAMES:
            raise UsageError(f"--per {per}: it is rollout or call")
        if agent is not None and per == "rollout":
            raise UsageError("--agent names whose calls get a reward: give it with --per call")
        self.target, self.per, self.agent = target, per, agent
        try:
            self._function = RewardFunction(import_target(target, "--reward"), agent or "", NAMES[per])
        except AgentError as error:
            raise UsageError(f"--reward {target}: {str(error).removeprefix('@agl.agent: ')}") from None
        self._function.label = f"the reward function {target}"

    def version(self, run_id: str, name: str | None) -> RewardVersion:
        """Return the version that this function makes. ``name``: default ``<function>@<digest>``."""
        source = source_digest(self._function.function)
        digest = source.both
        if digest is None:
            raise UsageError(
                f"--reward {self.target}: its source cannot be read, so that a changed function could not be "
                "told from this one; give a function that is written in Python"
            )
        if name == ORIGINAL:
            raise UsageError(f"--name {ORIGINAL}: these are the rewards that the rollouts ended with")
        repository = git_state(source.path) if source.path else {}
        versions = {one: found for one in _DISTRIBUTIONS if (found := installed(one)) is not None}
        return RewardVersion(
            run_id=run_id,
            name=name or f"{self.target.rpartition(':')[2]}@{digest[:8]}",
            function=self.target,
            digest=digest,
            per=self.per,
            agent=self.agent,
            code={"source": source.function, **repository, "versions": versions},
        )

    async def score(self, record: Record, trace: RolloutTrace, version: str) -> Rescored:
        """Return the entry of one rollout."""
        entry = Rescored(rollout_id=record.rollout.rollout_id, version=version)
        try:
            if self.per == "rollout":
                value = await self._call(record.rollout.input, trace)
                entry.rewards = [] if value is None else [Reward(value=value)]
            else:
                mine = [one for one in trace.calls if self.agent in (None, one.agent)]
                values = [(one, await self._call(record.rollout.input, trace, one)) for one in mine]
                entry.rewards = [
                    Reward(value=value, call_id=one.call_id, final=False)
                    for one, value in values
                    if value is not None
                ]
        except (RewardFailed, BadReward) as error:
            entry.error = str(error)
            entry.traceback = None if error.__cause__ is None else format_traceback(error.__cause__)
        return entry

    async def _call(self, task: Any, trace: RolloutTrace, call: TracedCall | None = None) -> float | None:
        more = {"task": task} if call is None else {"task": task, "call": call}
        given: Any = call if self._takes_call_alone() else trace
        value = await asyncio.to_thread(self._function.call, given, None, **more)
        return await value if inspect.isawaitable(value) else value

    def _takes_call_alone(self) -> bool:
        """With ``per: call``, a function of one parameter gets the call."""
        return self.per == "call" and self._function.takes_result_alone
