"""The base of converters, the ancestors of a span, and one span for each call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

from agentlightning import semconv
from agentlightning.capture.emit import NAME
from agentlightning.types import Span

T = TypeVar("T")
CALL_ID = "agl.call_id"


class Converter(Generic[T]):
    """Converts spans to something else. Subclass it to write a converter of your own."""

    def adapt(self, spans: Sequence[Span], /) -> T:
        """Convert these spans."""
        raise NotImplementedError(f"{type(self).__name__} does not define adapt(spans)")

    def __call__(self, spans: Sequence[Span], /) -> T:
        return self.adapt(spans)


class Ancestry:
    """Parent lookup over ``spans``."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._by_id = {(s.attempt_id, s.span_id): s for s in spans if s.span_id}

    def ancestors(self, span: Span) -> Iterator[Span]:
        """Yield the ancestors of ``span``, nearest first. Stop where a cycle of parents closes."""
        seen = {(span.attempt_id, span.span_id)}
        while (above := (span.attempt_id, span.parent_id or "")) in self._by_id and above not in seen:
            seen.add(above)
            span = self._by_id[above]
            yield span

    def agent(self, span: Span) -> str:
        """Return the name of the span's agent: its own, else its nearest ancestor's, else ``""``."""
        for one in (span, *self.ancestors(span)):
            name = one.attributes.get(semconv.AGENT_NAME) or one.attributes.get(f"{semconv.TAG_PREFIX}agent")
            if name:
                return str(name)
        return ""


def is_reward_computation(span: Span) -> bool:
    """Return whether it is a reward, or an operation named ``reward``, whose inner spans judge the agent."""
    named: Any = span.attributes.get(NAME, span.name)
    return span.name == semconv.REWARD_SPAN or str(named).lower() == "reward"


def deduplicate(calls: Sequence[Span]) -> list[Span]:
    """Return ``calls`` with one span for each answer, in their order.

    Other instrumentations (AgentOps and the like) make spans of their own around the SDK, under the same
    name: a span below one of ours is the same call, and so are spans with the same response and choice. The
    span with token ids stays, else ours, else the first.
    """
    around = {(call.attempt_id, call.parent_id) for call in calls if _rank(call)}
    found: dict[Any, Span] = {}
    for index, call in enumerate(calls):
        if not _rank(call) and (call.attempt_id, call.span_id) in around:
            continue
        response, choice = (call.attributes.get(name) for name in (semconv.RESPONSE_ID, semconv.CHOICE))
        key = (str(response), str(choice or 0)) if response else index
        if key not in found or _rank(call) > _rank(found[key]):
            found[key] = call
    return list(found.values())


def _rank(call: Span) -> int:
    """Rank the spans of one call: 2 with token ids, 1 for ours without, 0 for another's."""
    if semconv.RESPONSE_IDS in call.attributes:
        return 2
    return int(semconv.LAYER in call.attributes or CALL_ID in call.attributes)
