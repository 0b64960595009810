"""Hostile agents by the hundred: a strategy of what an agent can hand over, and the agent that does it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import aiohttp
import msgspec
from hypothesis import strategies as st
from opentelemetry import trace

import agentlightning as agl
from agentlightning import LLM, semconv
from agentlightning.capture.context import current_attempt
from agentlightning.types import Span
from agl_v03.triplet import Triplet

Deed = tuple[str, Any]
"""What the agent does, and with what."""


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

    def __iter__(self) -> Any:
        raise OSError("no end")


def _ring() -> list[Any]:
    ring: list[Any] = [1]
    ring += [ring, {"ring": ring}]
    return ring


def _nested() -> Any:
    found: Any = 0
    for _ in range(2_000):
        found = [found]
    return found


MADE: tuple[Callable[[], Any], ...] = (
    Evil, _ring, _nested, lambda: (n for n in range(3)), lambda: "x" * 20_000, lambda: {Evil: 1}, object,
    lambda: dict.fromkeys(map(str, range(3_000)), 1), lambda: type, lambda: 10**400,
    lambda: bytearray(b"\xff"),
)  # fmt: skip
"""Objects that only code can make; each is made where it is used."""

plain = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-(10**30), 10**30), st.floats(), st.text(max_size=8),
    st.sampled_from(["", "abc", "\ud800", "a\0b", "x\ny", "1e999", "-1", 1e308, -1e308, 2**63, -1, math.nan]),
)  # fmt: skip
junk = st.one_of(
    plain,
    st.sampled_from(MADE),
    st.lists(plain, max_size=3),
    st.dictionaries(st.text(max_size=4), plain, max_size=3),
    st.binary(max_size=5),
)
names = st.sampled_from(
    sorted(v for k, v in vars(semconv).items() if k.isupper() and v.startswith(("agl.", "gen_ai.")))
)
attributes = st.dictionaries(names | st.text(min_size=1, max_size=4), junk, max_size=4)
ids = st.lists(st.integers(0, 20), max_size=4) | st.lists(st.integers() | junk, max_size=4) | junk
FIELDS = ("value", "name", "primary_key", "call", "agent", "final", "attributes")
GOOD = {"prompt_ids": [1, 2], "response_ids": [3, 4], "reward": 1.0, "logprobs": [-0.5, -1.0]}
METADATA = ("policy", "policy_version", "model", "sampling", "x")
odd_fields = st.fixed_dictionaries(
    {},
    optional={
        "prompt_ids": ids,
        "response_ids": ids,
        "reward": junk,
        "logprobs": junk | st.lists(st.floats() | junk, min_size=2, max_size=2),
        "call_id": junk,
        "tags": st.dictionaries(st.text(max_size=3), st.text(max_size=3) | junk, max_size=2),
        "metadata": st.dictionaries(st.sampled_from(METADATA), junk, max_size=2),
    },
)
triplet = odd_fields.map(lambda odd: {**GOOD, **dict(list(odd.items())[:1])})
"""A good one, with one field that may not be."""
SPAN_FIELDS = tuple(Span.__struct_fields__)
span = st.dictionaries(st.sampled_from(SPAN_FIELDS), junk, max_size=3).flatmap(
    lambda given: attributes.map(lambda a: {"attributes": a, **given})
)
spans = st.one_of(span, attributes.map(lambda a: {"name": semconv.REWARD_SPAN, "attributes": a}))
SPAN_NAMES = (semconv.REWARD_SPAN, semconv.CALL_SPAN, "n")
REQUEST = (
    "n", "temperature", "top_p", "logprobs", "max_tokens", "stop", "tools", "agl.choice", "metadata", "seed",
    "guided_choice", "response_format", "user",
)  # fmt: skip
deed: st.SearchStrategy[Deed] = st.one_of(
    st.tuples(st.just("emit"), st.dictionaries(st.sampled_from(FIELDS), junk, max_size=3)),
    st.tuples(st.just("object"), junk),
    st.tuples(st.just("message"), junk),
    st.tuples(st.just("annotation"), junk),
    st.tuples(st.just("operation"), junk),
    st.tuples(st.just("otel"), st.tuples(st.sampled_from(SPAN_NAMES), attributes)),
    st.tuples(st.just("sink"), junk | spans),
    st.tuples(st.just("tagged"), st.dictionaries(st.text(min_size=1, max_size=4), junk, max_size=3)),
    st.tuples(st.just("ask"), st.dictionaries(st.sampled_from(REQUEST), plain, max_size=3)),
)  # fmt: skip
ending: st.SearchStrategy[Deed] = st.one_of(
    st.just(("return", 1.0)),
    st.tuples(st.just("return"), junk),
    st.tuples(st.just("triplets"), st.lists(triplet, min_size=1, max_size=3)),
    st.tuples(st.just("spans"), st.lists(spans, min_size=1, max_size=3)),
    st.tuples(
        st.just("raise"),
        st.sampled_from(
            [KeyboardInterrupt, SystemExit, GeneratorExit, RecursionError, MemoryError, StopIteration]
        ),
    ),
)
program = st.tuples(st.lists(deed, max_size=3), ending, st.booleans())
"""Deeds, how it ends, and whether it bears what its deeds raise."""


def made(value: Any) -> Any:
    """A value of the strategy with the objects in the place of their makers."""
    if isinstance(value, list):
        return [made(one) for one in value]
    if isinstance(value, dict):
        return {key: made(one) for key, one in value.items()}
    return value() if value in MADE and callable(value) else value


async def ask(llm: LLM, more: dict[str, Any]) -> None:
    """One call to the gateway; refusals are the gateway's right."""
    body = {"model": llm.model, "messages": [{"role": "user", "content": "hello"}], **more}
    try:
        data = msgspec.json.encode(body)
    except (UnicodeEncodeError, OverflowError):
        return
    headers = {"Authorization": f"Bearer {llm.api_key}", "Content-Type": "application/json"}
    url = f"{llm.endpoint}/chat/completions"
    async with aiohttp.ClientSession() as http, http.post(url, data=data, headers=headers) as response:
        await response.read()


async def play(llm: LLM, deeds: list[Deed], end: Deed, bears: bool) -> Any:
    """Do the deeds, and end so."""
    await ask(llm, {})
    for what, given in deeds:
        try:
            await _do(what, given, llm)
        except Exception:
            if not bears:
                raise
    kind, given = end
    if kind == "triplets":
        return [Triplet(**made(one)) for one in given]
    if kind == "spans":
        return [_span(one) for one in given]
    if kind == "raise":
        raise given
    return made(given)


async def _do(what: str, given: Any, llm: LLM) -> None:
    value = made(given) if what not in ("otel", "sink", "ask") else given
    if what == "emit":
        agl.emit_reward(**{"value": 1.0, **value})
    elif what == "object":
        agl.emit_object(value)
    elif what == "message":
        agl.emit_message(value)
    elif what == "annotation":
        agl.emit_annotation(value)
    elif what == "operation":
        with agl.operation("op", given=value) as op:
            op.output = value
    elif what == "otel":
        name, found = value
        with trace.get_tracer("hostile").start_as_current_span(name, attributes=made(found)):
            pass
    elif what == "sink":
        context = current_attempt()
        assert context is not None
        context.sink(_span(given) if isinstance(given, dict) else made(given))
    elif what == "tagged":
        with agl.tagged(**value):
            await ask(llm, {})
    else:
        await ask(llm, given)


def _span(given: dict[str, Any]) -> Span:
    context = current_attempt()
    assert context is not None
    own = {"rollout_id": context.rollout_id, "attempt_id": context.attempt_id, "name": "n"}
    return Span(**{**own, **made(given)})
