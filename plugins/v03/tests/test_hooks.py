"""A hook gets its arguments by name or by position."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

from agentlightning import Rollout
from agentlightning.capture.context import AttemptContext
from agl_v03.hooks import Hook, HookCalls, HookedAgent
from agl_v03.lit_agent import LitAgent

ROLLOUT = Rollout(rollout_id="ro-1", input="task")


def hook_calls(agent: Any, *hooks: Hook) -> tuple[HookCalls, AttemptContext, Counter[str]]:
    context = AttemptContext(rollout_id="ro-1", attempt_id="at-1", sink=lambda span: None)
    counts: Counter[str] = Counter()
    return HookCalls(HookedAgent(agent, hooks), ROLLOUT, context, counts), context, counts


class Own(LitAgent[str]):
    """Hooks whose parameters have other names."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def on_rollout_start(self, t: str, r: Rollout) -> None:
        self.heard.append((t, r.rollout_id))

    def on_trace_start(self, *everything: Any) -> None:
        self.heard.append(everything)

    def on_rollout_end(self, task: str, **named: Any) -> None:
        self.heard.append((task, sorted(named)))


async def test_names_of_its_own_are_filled_by_position() -> None:
    agent = Own()
    told, _, _ = hook_calls(agent)
    await told.start()
    await told.end(1.0, None)
    rest = ["agent", "error", "result", "rollout", "runner", "spans", "tracer"]
    assert agent.heard == [("task", "ro-1"), ("task", ROLLOUT), ("task", rest)]


async def test_nobody_listens_and_nothing_is_in_the_way() -> None:
    told, context, _ = hook_calls(LitAgent[str]())
    assert told.context is context


async def test_end_hooks_that_fail_are_counted_each() -> None:
    class Failing(Hook):
        def on_trace_end(self, **known: Any) -> None:
            raise ValueError

        async def on_rollout_end(self, **known: Any) -> None:
            raise ValueError

    told, _, counts = hook_calls(LitAgent[str](), Failing(), Failing())
    await told.end(1.0, None)
    assert counts == {"end-hook-failed": 4}


def test_hooks_are_sent_without_the_runner() -> None:
    hooked = HookedAgent(LitAgent[str](), [Hook()])
    hooked.runner = lambda: None
    assert pickle.loads(pickle.dumps(hooked)).runner is None


def test_without_hooks_the_agent_runs_as_itself() -> None:
    agent = Own()
    assert HookedAgent(agent).agent is agent
