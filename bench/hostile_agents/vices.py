"""Every way in which an agent has ended a run, or might: what it does, and how a run has to explain it."""

from __future__ import annotations

import asyncio
import ctypes
import math
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from fractions import Fraction
from typing import Any, NamedTuple

import httpx
import numpy as np
from opentelemetry import trace

import agentlightning as agl
from agentlightning import LLM, semconv
from agentlightning.capture.context import current_attempt
from agentlightning.types import Rollout, Span
from agl_v03.triplet import Triplet

Act = Callable[[LLM, Rollout], Awaitable[Any]]
BAD, REWARD, RAISED, ASIDE, FINE = "bad-record", "bad-reward", "agent-raised", "set-aside", "fine"
"""How a misdeed may be explained: by a kind of failure, by a span that is set aside, or it did no harm."""


class Vice(NamedTuple):
    """One way to misbehave, and what must be on record of it."""

    act: Act
    explained: tuple[str, ...]


VICES: dict[str, Vice] = {}


def vice(*explained: str) -> Callable[[Act], Act]:
    """Register a misdeed under its name, in words."""

    def register(act: Act) -> Act:
        VICES[act.__name__.replace("_", " ")] = Vice(act, explained)
        return act

    return register


class Evil:
    """Raises whatever is asked of it."""

    shape = ()

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("do not touch")

    def __str__(self) -> str:
        raise ValueError("no words")

    __repr__ = __str__

    def __float__(self) -> float:
        raise ZeroDivisionError("no number")


def ring() -> list[Any]:
    """A list that holds itself, twice."""
    found: list[Any] = []
    found += [found, {"again": found}]
    return found


def deep() -> Any:
    """A list, 100,000 levels deep."""
    found: Any = 0
    for _ in range(100_000):
        found = [found]
    return found


# ----------------------------------------------------------------------------------------------- returns
RETURNED: dict[str, Callable[[], Any]] = {
    "nan": lambda: math.nan,
    "infinity": lambda: -math.inf,
    "1e308": lambda: 1e308,
    "an integer beyond floats": lambda: 10**400,
    "a fraction beyond floats": lambda: Fraction(10**400, 3),
    "text": lambda: "1.0",
    "a generator": lambda: (n for n in range(3)),
    "an object that raises": Evil,
    "a ring": ring,
    "a deep list": deep,
    "an array": lambda: np.array([1.0, 2.0]),
}


def _returning(name: str, make: Callable[[], Any]) -> None:
    async def act(llm: LLM, rollout: Rollout) -> Any:
        return make()

    VICES[f"returns {name}"] = Vice(act, (REWARD, BAD, RAISED))


for _name, _make in RETURNED.items():
    _returning(_name, _make)

TRIPLETS: dict[str, Callable[[], dict[str, Any]]] = {
    "a negative id": lambda: {"response_ids": [-1, 2]},
    "a huge id": lambda: {"response_ids": [2**40, 2]},
    "an id outside the vocabulary": lambda: {"response_ids": [2**31 - 1, 2]},
    "a bool as id": lambda: {"response_ids": [True, 2]},
    "a float as id": lambda: {"prompt_ids": [1.5]},
    "an empty prompt": lambda: {"prompt_ids": []},
    "an empty response": lambda: {"response_ids": [], "logprobs": None},
    "too few logprobs": lambda: {"logprobs": [-0.5]},
    "a logprob of nan": lambda: {"logprobs": [-0.5, math.nan]},
    "a logprob above 0": lambda: {"logprobs": [-0.5, 3.0]},
    "the call of another rollout": lambda: {"call_id": "at-1-0.0"},
    "an unknown policy": lambda: {"metadata": {"policy": "somebody"}},
    "a version beyond the file": lambda: {"metadata": {"policy_version": 2**70}},
    "tags that are no text": lambda: {"tags": {"agent": 1}},
    "a hundred thousand tags": lambda: {"tags": {str(n): "x" for n in range(100_000)}},
    "a reward of 1e308": lambda: {"reward": 1e308},
    "metadata that raises": lambda: {"metadata": {"x": Evil()}},
}


def _supplying(name: str, odd: Callable[[], dict[str, Any]]) -> None:
    async def act(llm: LLM, rollout: Rollout) -> Any:
        good = {"prompt_ids": [1, 2], "response_ids": [3, 4], "logprobs": [-0.5, -0.5], "reward": 1.0}
        return [Triplet(**good), Triplet(**{**good, **odd()})]

    VICES[f"hands in a triplet with {name}"] = Vice(act, (BAD, REWARD))


for _name, _odd in TRIPLETS.items():
    _supplying(_name, _odd)


def span(**fields: Any) -> Span:
    """A span of the present attempt."""
    context = current_attempt()
    assert context is not None
    own = {"rollout_id": context.rollout_id, "attempt_id": context.attempt_id, "name": "n"}
    return Span(**{**own, **fields})


SPANS: dict[str, Callable[[], Any]] = {
    "an odd choice": lambda: span(attributes={semconv.LAYER: "wire", semconv.CHOICE: "abc"}),
    "a time of nan": lambda: span(start_time=math.nan),
    "a negative time": lambda: span(end_time=-5.0),
    "ids of another": lambda: span(attempt_id="at-somebody"),
    "attributes that are none": lambda: span(attributes=None),
    "a reward for a list": lambda: span(
        name=semconv.REWARD_SPAN,
        attributes={semconv.REWARD_VALUE: 1.0, semconv.REWARD_AGENT: ["a"]},
    ),
    "token ids that are junk": lambda: span(attributes={semconv.PROMPT_IDS: "!", semconv.RESPONSE_IDS: "!"}),
}


def _spans(name: str, make: Callable[[], Any]) -> None:
    async def returned(llm: LLM, rollout: Rollout) -> Any:
        return [make()]

    async def slipped(llm: LLM, rollout: Rollout) -> float:
        context = current_attempt()
        assert context is not None
        context.sink(make())
        return 1.0

    VICES[f"returns a span with {name}"] = Vice(returned, (BAD, REWARD))
    VICES[f"slips in a span with {name}"] = Vice(slipped, (ASIDE, BAD))


for _name, _span in SPANS.items():
    _spans(_name, _span)


# ------------------------------------------------------------------------------------------------- emits
@vice(BAD)
async def emits_for_a_list_of_agents(llm: LLM, rollout: Rollout) -> None:
    agl.emit_reward(1.0, agent=["a", "b"])  # type: ignore[arg-type]


@vice(REWARD)
async def emits_an_integer_beyond_floats(llm: LLM, rollout: Rollout) -> None:
    agl.emit_reward(10**400)


@vice(BAD)
async def emits_under_no_name(llm: LLM, rollout: Rollout) -> None:
    agl.emit_reward(1.0, name="")


@vice(FINE)
async def emits_what_has_no_form(llm: LLM, rollout: Rollout) -> float:
    for made in (Evil(), ring(), deep(), "x" * 20_000_000, "half \ud800", "nul \0", range(10**12)):
        agl.emit_object(made)
    agl.emit_message(Evil())  # type: ignore[arg-type]
    return 1.0


@vice(ASIDE)
async def traces_a_reward_that_is_none(llm: LLM, rollout: Rollout) -> float:
    given = {semconv.REWARD_VALUE: "high", semconv.REWARD_AGENT: ["a"]}
    with trace.get_tracer("hostile").start_as_current_span(semconv.REWARD_SPAN, attributes=given):
        pass
    return 1.0


@vice(FINE)
async def emits_the_same_span_twice(llm: LLM, rollout: Rollout) -> float:
    context = current_attempt()
    assert context is not None
    for _ in range(2):
        context.sink(span(span_id="00000000000000aa", trace_id="f" * 32))
    return 1.0


# ------------------------------------------------------------------------------------ calls and their tags
async def call(llm: LLM, **more: Any) -> int:
    """One call by plain HTTP."""
    body = {"model": llm.model, "messages": [{"role": "user", "content": "1 + 1"}], "max_tokens": 4, **more}
    headers = {"Authorization": f"Bearer {llm.api_key}"}
    async with httpx.AsyncClient(verify=False, timeout=60) as http:
        return (await http.post(f"{llm.endpoint}/chat/completions", json=body, headers=headers)).status_code


@vice(FINE)
async def calls_with_odd_fields(llm: LLM, rollout: Rollout) -> float:
    odd: list[dict[str, Any]] = [
        {"agl.choice": "abc"}, {"n": -1}, {"n": 10**30}, {"temperature": "hot"}, {"seed": 2**80}, {"stop": 7},
        {"tools": "all"}, {"messages": "hello"}, {"messages": [7]}, {"model": None}, {"metadata": {"x": [1]}},
    ]  # fmt: skip
    for more in odd:
        await call(llm, **more)
    return 1.0


@vice(FINE, RAISED)
async def tags_with_what_is_no_tag(llm: LLM, rollout: Rollout) -> float:
    with agl.tagged(agent="x\ny", **{f"t{n}": "v" for n in range(500)}):  # type: ignore[arg-type]
        await call(llm)
    with agl.tagged(agent=Evil()):  # type: ignore[arg-type]
        await call(llm)
    return 1.0


# -------------------------------------------------------------------------------------------------- ends
RAISES: dict[str, Callable[[], BaseException]] = {
    "an error": lambda: RuntimeError("the tool server is gone"),
    "an interrupt": lambda: KeyboardInterrupt(),
    "an exit": lambda: SystemExit(3),
    "the end of a generator": lambda: GeneratorExit(),
    "half a character": lambda: ValueError("half \ud800"),
    "ten million characters": lambda: ValueError("x" * 10_000_000),
    "a cancellation": lambda: asyncio.CancelledError(),
}


def _raising(name: str, make: Callable[[], BaseException]) -> None:
    async def act(llm: LLM, rollout: Rollout) -> Any:
        raise make()

    VICES[f"raises {name}"] = Vice(act, (RAISED,))


for _name, _error in RAISES.items():
    _raising(_name, _error)


@vice(RAISED)
async def recurses_without_end(llm: LLM, rollout: Rollout) -> None:
    await recurses_without_end(llm, rollout)


@vice(RAISED)
async def exits_hard(llm: LLM, rollout: Rollout) -> None:
    os._exit(7)


@vice(RAISED)
async def crashes_the_interpreter(llm: LLM, rollout: Rollout) -> None:
    ctypes.string_at(0)


@vice("timeout")
async def hangs(llm: LLM, rollout: Rollout) -> None:
    await asyncio.Event().wait()


@vice("timeout")
async def holds_the_interpreter(llm: LLM, rollout: Rollout) -> None:
    while True:
        pass


# ------------------------------------------------------------------------------------------ its surroundings
@vice(FINE)
async def closes_its_files(llm: LLM, rollout: Rollout) -> float:
    for stream in (sys.stdin, sys.stdout):
        stream.close()
    for number in (0, 1, 2):
        os.close(number)
        os.open(os.devnull, os.O_RDWR)  # or the next file that is opened takes its place
    return 1.0


@vice(FINE)
async def changes_folder_and_environment(llm: LLM, rollout: Rollout) -> float:
    os.chdir("/")
    os.environ.update(OPENAI_API_KEY="wrong", OPENAI_BASE_URL="http://127.0.0.1:9/v1", AGL_SECRET="x" * 32)
    return 1.0


@vice(FINE)
async def leaves_threads_behind(llm: LLM, rollout: Rollout) -> float:
    for _ in range(20):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    return 1.0


@vice(FINE, RAISED)
async def forks(llm: LLM, rollout: Rollout) -> float:
    os.fork()
    return 1.0  # so says the other process too
