"""Convert the spans of model calls to triplets: the engine's own ids, and the reward of each call.

A reward that names its call belongs to that call; the others are matched. Invariants: the ids are those of
the spans, never tokenised again; a reward belongs to one call at most, and a call without a reward has
``None``.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from agentlightning import semconv
from agentlightning.capture.emit import find_reward_spans, get_reward_value
from agentlightning.store import codec
from agentlightning.types import Span, Tags, UsageError
from agentlightning.types.record import by_precedence
from agl_v03.converters.base import (
    CALL_ID,
    Ancestry,
    Converter,
    deduplicate,
    is_reward_computation,
)
from agl_v03.triplet import Triplet

Select = str | Sequence[str] | Callable[[Tags], bool] | None
_METADATA = {
    "response_id": semconv.RESPONSE_ID,
    "model": semconv.REQUEST_MODEL,
    "policy": "agl.policy",
    "policy_version": "agl.policy_version",
    "masked": "agl.masked",
}


class RewardMatch(StrEnum):
    """How a reward that names no call finds its call."""

    FIRST_OCCURRENCE = "first_occurrence"
    """It belongs to the last call before it, in time, that has no reward yet."""
    FIRST_SIBLING = "first_sibling"
    """As ``FIRST_OCCURRENCE``, among the calls with the reward's own parent."""


class TracerTraceToTriplet(Converter[list[Triplet]]):
    """Makes one triplet of each model call, in order of start.

    ``llm_call_match`` and ``agent_match``: regular expressions to search for in the span's name and in the
    name of the agent (its own, or that of the nearest span above). ``exclude_llm_call_in_reward``: leave out
    calls below a reward or an ``operation("reward")``. ``dedup``: keep one of the spans with the same
    response and choice: the one with token ids, else the first of ours, else the first (AgentOps makes one).
    ``skip_empty``: leave out calls without ids, which otherwise have empty lists.
    """

    def __init__(
        self,
        *,
        agent_match: str | None = None,
        llm_call_match: str = r"openai\.chat\.completion",
        exclude_llm_call_in_reward: bool = True,
        reward_match: RewardMatch | str = RewardMatch.FIRST_OCCURRENCE,
        dedup: bool = True,
        skip_empty: bool = False,
    ) -> None:
        self.agent_match = _pattern("agent_match", agent_match)
        self.llm_call_match = _pattern("llm_call_match", llm_call_match)
        self.exclude_llm_call_in_reward = exclude_llm_call_in_reward
        try:
            self.reward_match = RewardMatch(str(reward_match).lower())
        except ValueError:
            known = ", ".join(RewardMatch)
            raise UsageError(f"reward_match is {reward_match!r}; use one of {known}") from None
        self.dedup, self.skip_empty = dedup, skip_empty

    def adapt(self, spans: Sequence[Span], /) -> list[Triplet]:
        """Return the triplets of one attempt's spans."""
        tree = Ancestry(spans)
        calls = [s for s in sorted(spans, key=self._order) if self._wanted(s, tree)]
        calls = deduplicate(calls) if self.dedup else calls
        emitted = sorted(find_reward_spans(spans), key=lambda span: span.sequence_id)
        rewards = self._rewards(calls, by_precedence(emitted), tree)
        found = [_triplet(call, rewards.get(index), tree) for index, call in enumerate(calls)]
        return [t for t in found if t.response_ids or not self.skip_empty]

    def selects(self, tags: Tags) -> bool:
        """Return whether ``agent_match`` trains calls with these tags. The gateway asks."""
        return self.agent_match is None or self.agent_match.search(tags.get("agent", "")) is not None

    def _order(self, span: Span) -> tuple[float, int]:
        return span.start_time, span.sequence_id

    def _wanted(self, span: Span, tree: Ancestry) -> bool:
        """Return whether it is a call (not a reward's judge) of a selected agent."""
        if self.llm_call_match is not None and not self.llm_call_match.search(span.name):
            return False
        if self.agent_match is not None and not self.agent_match.search(tree.agent(span)):
            return False
        return not (self.exclude_llm_call_in_reward and any(map(is_reward_computation, tree.ancestors(span))))

    def _rewards(self, calls: list[Span], rewards: list[Span], tree: Ancestry) -> dict[int, float]:
        """Return the rewards by the index of their call; those that name their call come first. ``rewards``
        are in the store's order, which decides; clocks only tell which calls came before a reward.
        """
        found: dict[int, Span] = {}
        for reward in filter(_names_a_call, rewards):
            found |= {index: reward for index, call in enumerate(calls) if _names_call(reward, call)}
        for reward in rewards:
            if _names_a_call(reward):
                continue
            before = (i for i in reversed(range(len(calls))) if i not in found)
            place = next((i for i in before if self._may_get(calls[i], reward, tree)), None)
            if place is not None:
                found[place] = reward
        return {index: value for index, r in found.items() if (value := get_reward_value(r)) is not None}

    def _may_get(self, call: Span, reward: Span, tree: Ancestry) -> bool:
        if not self._before(call, reward):
            return False
        agent = reward.attributes.get(semconv.REWARD_AGENT)
        if agent is not None and tree.agent(call) != agent:
            return False
        return self.reward_match is RewardMatch.FIRST_OCCURRENCE or call.parent_id == reward.parent_id

    def _before(self, call: Span, reward: Span) -> bool:
        return call.end_time <= reward.start_time


class TripletExporter(TracerTraceToTriplet):
    """:class:`TracerTraceToTriplet` by its name in 0.1. ``repair_hierarchy`` changes nothing: capture keeps
    the parents of calls.
    """

    def __init__(self, repair_hierarchy: bool = True, **settings: Any) -> None:
        super().__init__(**settings)

    def export(self, spans: Sequence[Span]) -> list[Triplet]:
        """Return the triplets of one attempt's spans."""
        return self.adapt(spans)


class LlmProxyTraceToTriplet(TracerTraceToTriplet):
    """For calls that only the gateway recorded: in order of arrival, without clocks and parents."""

    def __init__(self, *, dedup: bool = True, skip_empty: bool = False) -> None:
        super().__init__(exclude_llm_call_in_reward=False, dedup=dedup, skip_empty=skip_empty)

    def _order(self, span: Span) -> tuple[float, int]:
        return 0.0, span.sequence_id

    def _before(self, call: Span, reward: Span) -> bool:
        return call.sequence_id <= reward.sequence_id


def _pattern(name: str, text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise UsageError(f"{name}: {text!r} is not a regular expression: {error}") from None


def _names_a_call(reward: Span) -> bool:
    return any(
        k in reward.attributes for k in (semconv.REWARD_CALL, semconv.REWARD_SPAN_ID, semconv.RESPONSE_ID)
    )


def _names_call(reward: Span, call: Span) -> bool:
    a, b = reward.attributes, call.attributes
    if semconv.REWARD_CALL in a and a[semconv.REWARD_CALL] in (b.get(CALL_ID), b.get(semconv.RESPONSE_ID)):
        return True
    if semconv.REWARD_SPAN_ID in a and a[semconv.REWARD_SPAN_ID] == call.span_id:
        return True
    return semconv.RESPONSE_ID in a and a[semconv.RESPONSE_ID] == b.get(semconv.RESPONSE_ID)


def _triplet(call: Span, reward: float | None, tree: Ancestry) -> Triplet:
    a = call.attributes
    logprobs = codec.unpack_floats(_bytes(a, semconv.LOGPROBS))
    prefix = semconv.TAG_PREFIX
    tags = {name[len(prefix) :]: str(value) for name, value in a.items() if name.startswith(prefix)}
    if agent := tree.agent(call):
        tags.setdefault("agent", agent)
    metadata = {name: a[key] for name, key in _METADATA.items() if key in a}
    return Triplet(
        prompt_ids=list(codec.unpack_ids(_bytes(a, semconv.PROMPT_IDS)) or ()),
        response_ids=list(codec.unpack_ids(_bytes(a, semconv.RESPONSE_IDS)) or ()),
        reward=reward,
        logprobs=None if logprobs is None else list(logprobs),
        tags=tags,
        call_id=a.get(CALL_ID),
        metadata={**metadata, "agent_name": agent} if agent else metadata,
    )


def _bytes(a: Mapping[str, Any], name: str) -> bytes | None:
    """Return the bytes packed in an attribute; ``None`` if there are none that can be read."""
    try:
        data = base64.b64decode(a[name], validate=True) if name in a else None
    except (ValueError, TypeError):
        return None
    return data if data is None or len(data) % 4 == 0 else None


def selection(adapter: Any, select: Select) -> Any:
    """Return the agents that a converter selects, for the gateway: all that a recipe takes of a converter.

    Credit assigns rewards by its own rules. Raise UsageError for settings that recipes ignore.
    """
    plain = TracerTraceToTriplet()
    if not isinstance(adapter, TracerTraceToTriplet):
        raise UsageError(
            f"adapter={type(adapter).__name__}: a recipe trains on recorded calls, not on what a converter "
            "makes of spans; give TracerTraceToTriplet(agent_match=…), or your own algorithm (@agl.algo)"
        )
    ignored = sorted(
        name
        for name, value in vars(adapter).items()
        if name != "agent_match" and value != getattr(plain, name)
    )
    if ignored:
        raise UsageError(
            f"adapter: a recipe would ignore {', '.join(ignored)}; its credit rule gives rewards to calls"
        )
    if adapter.agent_match is None:
        return select
    if select is not None:
        raise UsageError(
            "select and the adapter's agent_match both choose the agents that are trained; give one"
        )
    return adapter.selects
