"""Reward functions of decorated classes that work inside another agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import pytest
from contract.capturing import Recording

from agentlightning import capture, semconv
from agentlightning.decorator import agent
from agentlightning.decorator.reward_function import BadReward, RewardFailed
from agentlightning.types.record import reward_of


@pytest.fixture(autouse=True)
def recording() -> Iterator[Recording]:
    capture.install()
    recording = Recording("score", None)
    recording.context.task = {"gold": "abc"}
    with recording.active():
        yield recording
    capture.uninstall()


def rewards(recording: Recording) -> list[tuple[float, str | None]]:
    """Value and agent of each reward; none of them is the rollout's."""
    found = [reward for span in recording.spans if (reward := reward_of(span))]
    assert not [reward for reward in found if reward.final]
    return [(reward.value, reward.agent) for reward in found]


def inside_scope(reward: Callable[..., Any]) -> Any:
    @agent(name="mine", reward=reward)
    class Mine:
        def run(self, answer: Any) -> Any:
            return answer

        async def arun(self, answer: Any) -> Any:
            await asyncio.sleep(0)
            return self.run(answer)

        def __call__(self, answer: Any) -> Any:
            return super().__call__(answer)  # type: ignore[misc]

    return Mine()


class Judge:
    def __call__(self, result: str) -> float:
        return len(result)

    def score(self, *, agent: Any, task: Any, result: str) -> float:
        return float(result == task["gold"] and type(agent).__name__ == "Mine")


@pytest.mark.parametrize(
    ("reward", "value"),
    [
        (lambda result: len(result), 3.0),
        (lambda answer: len(answer), 3.0),
        (lambda answer, /: len(answer), 3.0),
        (lambda result, task: result == task["gold"], 1.0),
        (lambda agent: float(type(agent).__name__ == "Mine"), 1.0),
        (lambda task: len(task["gold"]), 3.0),
        (lambda task, result, weight=2: weight, 2.0),
        (lambda *, result: len(result), 3.0),
        (lambda **known: len(known), 3.0),
        (lambda *known: len(known), 1.0),
        (Judge(), 3.0),
        (Judge().score, 1.0),
        (partial(lambda weight, result: weight, 0.5), 0.5),
        (len, 3.0),
    ],
)
async def test_a_reward_function_gets_what_it_names(
    recording: Recording, reward: Callable[..., Any], value: float
) -> None:
    assert inside_scope(reward).run("abc") == "abc"
    assert await inside_scope(reward).arun("abc") == "abc"
    assert rewards(recording) == [(value, "mine")] * 2, "an entry inside the object's own is a part of it"


async def test_none_is_a_missing_reward(recording: Recording) -> None:
    assert await inside_scope(lambda result: None).arun("abc") == "abc"
    assert rewards(recording) == []


async def test_coroutines_are_awaited_where_that_is_possible(recording: Recording) -> None:
    async def score(result: str) -> float:
        await asyncio.sleep(0)
        return len(result) / 2

    await inside_scope(score).arun("abc")
    assert await asyncio.to_thread(inside_scope(score).run, "abc") == "abc"
    assert rewards(recording) == [(1.5, "mine")] * 2
    with pytest.raises(RewardFailed, match=r"score\(\) of agent 'mine' cannot be called: it is a coroutine"):
        inside_scope(score).run("abc")
    assert len(recording.context.errors) == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "much", [1.0], {"a": 1.0}])
async def test_a_result_that_is_no_number_fails_the_attempt(recording: Recording, value: Any) -> None:
    with pytest.raises(
        BadReward, match=r"<lambda>\(\) of agent 'mine' returned .*return a finite number, or None"
    ):
        await inside_scope(lambda result: value).arun("abc")
    assert rewards(recording) == [] and isinstance(recording.context.errors[0], BadReward)


async def test_a_function_that_raises_says_where(recording: Recording) -> None:
    def score(result: str, task: Any) -> float:
        return float(task["golden"] == result)

    with pytest.raises(
        RewardFailed, match=r"score\(\) of agent 'mine' raised KeyError: 'golden' \(test_reward_function"
    ) as e:
        await inside_scope(score).arun("abc")
    assert isinstance(e.value.__cause__, KeyError) and recording.context.errors == [e.value]


async def test_of_a_stream_the_last_item_counts_when_it_is_read_to_its_end(recording: Recording) -> None:
    @agent(name="mine", reward=lambda result: result, methods=["stream", "steps", "returns"])
    class Mine:
        async def stream(self) -> AsyncIterator[float]:
            yield 1.0
            yield 2.0

        def steps(self) -> Iterator[float]:
            yield 3.0
            yield 4.0

        def returns(self) -> Any:
            yield 5.0
            return 6.0

    assert [item async for item in Mine().stream()] == [1.0, 2.0]
    assert [*Mine().steps(), *Mine().returns()] == [3.0, 4.0, 5.0]
    given_up = Mine().stream()
    assert await anext(given_up) == 1.0
    await given_up.aclose()
    assert rewards(recording) == [(2.0, "mine"), (4.0, "mine"), (6.0, "mine")]


def test_unfinished_work_cannot_be_rewarded(recording: Recording) -> None:
    class Later:
        def __await__(self) -> Any:
            yield

    with pytest.raises(RewardFailed, match=r"run\(\) returned a Later, whose work is still to be done"):
        inside_scope(len).run(Later())


def test_outside_an_attempt_nothing_is_scored() -> None:
    from agentlightning.capture.context import attempt_context

    with attempt_context(None):  # type: ignore[arg-type]
        assert inside_scope(lambda result: 1 / 0).run("abc") == "abc"


def test_the_nearest_class_that_gives_a_reward_function(recording: Recording) -> None:
    @agent(name="base", reward=lambda result: 1.0)
    class Base:
        def run(self) -> str:
            return "abc"

    @agent(name="child")
    class Child(Base):
        pass

    @agent(reward=lambda result: 2.0)
    class Other(Base):
        def run(self) -> str:
            return super().run()

    for one in (Base(), Child(), Other()):
        one.run()
    assert rewards(recording) == [(1.0, "base"), (1.0, "child"), (2.0, "Other")]


async def test_calls_of_the_reward_function_itself_are_never_trained(recording: Recording) -> None:
    from agentlightning.capture import caller_tags
    from agentlightning.capture.identity import selects_call

    seen: list[Any] = []

    async def judge(result: str) -> float:
        seen.append((caller_tags(), selects_call(caller_tags(), "span")))
        return 1.0

    await inside_scope(judge).arun("abc")
    assert seen == [({"agent": "reward", "role": "reward"}, False)]
    assert [semconv.REWARD_SPAN_ID in span.attributes for span in recording.spans] == [False]


async def test_a_task_that_outlives_its_entry_is_rewarded_by_itself(recording: Recording) -> None:
    @agent(name="team", reward=lambda result: result)
    class Team:
        worker: asyncio.Task[Any] | None = None

        async def run(self, value: float, later: asyncio.Event | None = None) -> float:
            if later is not None:
                self.worker = asyncio.create_task(self._serve(later))
            return value

        async def _serve(self, later: asyncio.Event) -> float:
            await later.wait()
            return await self.run(0.5)

    team, later = Team(), asyncio.Event()
    await team.run(0.25, later)
    later.set()
    assert team.worker is not None
    await team.worker
    assert rewards(recording) == [(0.25, "team"), (0.5, "team")]


class Odd:
    def item(self, place: int) -> int:
        return place


@pytest.mark.parametrize("value", [10**400, Odd()], ids=["large", "odd"])
def test_a_value_that_cannot_be_a_number_is_a_bad_reward(recording: Recording, value: Any) -> None:
    with pytest.raises(BadReward, match="return a finite number"):
        inside_scope(lambda result: value).run("abc")
