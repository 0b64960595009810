"""Spans, model calls and rewards of an attempt, and the record that credit reads. Every component reads
rewards from spans, and chooses the one that counts, by the functions here.

Rewards count in the order in which the store received them, whatever the senders' clocks say. A reward that
the agent *returned* overrides those it *emitted*. Of an agent that is not trusted, emitted ones do not count
at all where a judge gave the rewards (:func:`is_judged`).

Invariant: a reward span without a number is a reward of NaN, for the failure table to decide; it is never
ignored and never 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from agentlightning import semconv
from agentlightning.types.arrays import Floats, Ints, make_arrays
from agentlightning.types.base import LogprobsMode, Model, Tags
from agentlightning.types.tokens import TokenIds, neighbours
from agentlightning.types.work import Attempt, AttemptStatus, Rollout

_PACKED = (semconv.PROMPT_IDS, semconv.RESPONSE_IDS, semconv.LOGPROBS)


class Span(Model):
    """An OpenTelemetry span of an attempt."""

    rollout_id: str
    attempt_id: str
    name: str
    trace_id: str = ""
    span_id: str = ""
    parent_id: str | None = None
    sequence_id: int = 0
    """Order of arrival within the attempt, given by the store."""
    kind: str = "internal"
    status: Literal["unset", "ok", "error"] = "unset"
    status_message: str | None = None
    attributes: dict[str, Any] = {}
    events: list[dict[str, Any]] = []
    links: list[dict[str, Any]] = []
    resource: dict[str, Any] = {}
    start_time: float = 0.0
    end_time: float = 0.0
    returned: bool = False
    """The runner wrote it from the agent's return value. Only the store sets it."""

    def __repr__(self) -> str:
        """The fields; packed arrays (float32 and int32 in base64) as their lengths."""
        shown = {
            name: f"<{len(value) * 3 // 16} values>" if name in _PACKED else value
            for name, value in self.attributes.items()
        }
        rest = ", ".join(f"{n}={getattr(self, n)!r}" for n in self.__struct_fields__ if n != "attributes")
        return f"Span({rest}, attributes={shown!r})"


class Grammar(Model):
    """The grammar that a response was sampled under: the library makes the same masks from it again."""

    library: str
    """``llguidance``."""
    version: str
    """Version of the library that made the masks."""
    text: str
    """The whole grammar, in the library's language."""


ASKED_SELECTED = "selected"
"""Key of ``Call.asked``: false where the request asked not to be trained (``x-agl-selected: 0``)."""


class Call(Model):
    """One choice of one model call, as the gateway recorded it. ``n`` choices make ``n`` records.

    ``prompt_ids`` and ``response_ids`` are the engine's own token ids, never re-tokenised; ``logprobs``
    are the natural-log probabilities of the response tokens under the distribution they were sampled from.
    ``None`` means that the engine did not say. A list that is given for one of them becomes an array.

    Calls from a store share token ids and the messages of their requests in memory. Do not change a message
    in place.
    """

    call_id: str
    rollout_id: str
    attempt_id: str
    sequence: int = 0
    """Order of arrival of the request within the attempt (0, 1, …), shared by its choices."""
    choice: int = 0
    api: Literal["chat", "completions", "supplied"] = "chat"
    """``supplied``: no recorded call, but a transition that the agent handed in (``docs/rollouts.md``)."""
    response_id: str | None = None
    trace_id: str | None = None
    span_id: str | None = None
    """Span id of the caller, from ``traceparent``: joins the wire layer's span."""
    retry: int = 0
    """The SDK's retry count; a later retry with the same ``span_id`` supersedes this call."""
    policy: str = "default"
    """The policy it was routed to."""
    model: str = ""
    """The model name the agent asked for."""
    policy_version: int | None = None
    """The version that sampled the response; its oldest, where there were several."""
    policy_versions: Ints | None = None
    """The version that sampled each response token. ``None``: ``policy_version`` sampled them all."""
    tags: Tags = {}
    selected: bool = True
    """Whether ``select`` chose this call for training (sampling was set to the run's values)."""
    request: dict[str, Any] | None = None
    """Messages, tools and the like, as the agent sent them."""
    response: dict[str, Any] | None = None
    """The choice without ids and logprobs: message or text."""
    prompt_ids: TokenIds | None = None
    response_ids: TokenIds | None = None
    logprobs: Floats | None = None
    sampling: dict[str, Any] = {}
    """Values that were used, e.g. ``{"temperature": 1.0, "top_p": 1.0, "seed": 7}``."""
    asked: dict[str, Any] = {}
    """Values the agent asked for, where they differ."""
    edited: dict[str, Any] = {}
    """Changes that the gateway made. ``over_length``: ``truncate``, with ``dropped``, the ranges of
    ``request["messages"]`` that were not sent, and ``tokens``, the prompt's length before and after; or
    ``error``, ``drop``: refused. ``reasoning``: ``split``. ``api``: ``responses``, ``messages``: the agent
    spoke that API, and ``request`` and ``response`` are its translation to chat completions. Of Responses
    also ``continues``: the answer or conversation whose messages come first; ``instructions``: the first
    message is of this request alone; ``stored``: false where no later request may refer to it."""
    allowed: list[list[int]] | None = None
    """Guided choice: the token sequences that were allowed."""
    grammar: Grammar | None = None
    """Structured output, forced tools: the grammar that the engine applied. The logprobs are of the
    distribution
    over the tokens that it allows."""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    """``usage.prompt_tokens`` as the engine reported it."""
    completion_tokens: int | None = None
    """``usage.completion_tokens`` as the engine reported it. Of several choices whose ids add up to it, each
    bears its own share; where they do not, each bears the sum as reported, and the verdict is
    ``mismatch``.
    """
    status: Literal["ok", "error", "cancelled"] = "ok"
    error: str | None = None
    masked: str | None = None
    """Why the call must not be trained as a sample of the run's policy, as known when it was recorded
    (``off-policy-sampling``, …). Credit trains an ``off-policy-sampling`` call whose ``logprobs_mode`` is
    ``processed``, by importance weights."""
    logprobs_mode: LogprobsMode | None = None
    """What ``logprobs`` are of, as the route declares it. ``processed``: the distribution that the tokens
    were drawn from, after grammar, temperature, ``top_p`` and the like. ``raw``: the model's own. ``None``:
    not declared, or the request shapes the distribution in a way that the engine's logprobs do not show."""
    start_time: float = 0.0
    end_time: float = 0.0

    def __post_init__(self) -> None:
        prompt: object = self.prompt_ids
        response: object = self.response_ids
        if isinstance(prompt, list) and isinstance(response, list):
            self.prompt_ids, self.response_ids = neighbours(prompt, response)
        make_arrays(self, prompt_ids=TokenIds, response_ids=TokenIds, logprobs=Floats, policy_versions=Ints)

    @property
    def has_ids(self) -> bool:
        """Whether the engine gave token ids for prompt and response."""
        return self.prompt_ids is not None and self.response_ids is not None

    def version_of_token(self, index: int) -> int | None:
        """The version that sampled a response token; of a call that reports too few, the call's own."""
        versions = self.policy_versions
        return versions[index] if versions is not None and index < len(versions) else self.policy_version


class Reward(Model):
    """A number for a call, for an agent's calls, or for the whole rollout."""

    value: float
    name: str = "reward"
    call_id: str | None = None
    """Set: the reward of this call."""
    span_id: str | None = None
    """Caller span of the call it belongs to, when the emitter did not know the call id."""
    agent: str | None = None
    """Set: the reward of this agent's calls."""
    final: bool = True
    """The reward of the rollout, unless ``call_id``, ``span_id`` or ``agent`` narrows it."""
    returned: bool = False
    """The agent returned it and its runner wrote it; otherwise the agent emitted it while it ran."""
    attributes: dict[str, Any] = {}
    time: float = 0.0


def tool_calls_of(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the tool calls of a message as agents and engines write it; what is no mapping is none."""
    found = message.get("tool_calls")
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list | tuple) else []


class EarlierAttempt(Model):
    """An attempt that was followed by another: its end, and the number of its recorded calls."""

    attempt_id: str
    status: AttemptStatus
    reason: str | None = None
    calls: int = 0


class Record(Model):
    """The input of credit for one finished rollout: calls and rewards of its last attempt."""

    rollout: Rollout
    attempt: Attempt | None = None
    calls: list[Call] = []
    rewards: list[Reward] = []
    wire: list[Span] = []
    """The wire layer's call spans, for the fidelity verdict."""
    earlier: list[EarlierAttempt] = []
    """Attempts before the last. They are not trained; the ledger counts their calls."""


# ---------------------------------------------------------------------------------------------------- rewards
PRIMARY = "reward"
"""Name of the reward that is trained."""
REWARD_FORMATS: list[Callable[[Span], Span]] = []
"""Functions of plugins that make rewards of other formats ours (hook ``agl_reward_formats``)."""
_OURS = frozenset(value for name, value in vars(semconv).items() if name.startswith("REWARD_"))
_NARROWED = (semconv.REWARD_CALL, semconv.REWARD_SPAN_ID, semconv.REWARD_AGENT)
Ranked = TypeVar("Ranked", Reward, Span)


def reward_of(span: Span) -> Reward | None:
    """Return a reward span as a :class:`Reward`; ``None`` for any other span."""
    if span.name != semconv.REWARD_SPAN:
        return None
    a = span.attributes
    value = _number(a.get(semconv.REWARD_VALUE))
    call_id, span_id, agent = (a.get(name) for name in _NARROWED)
    if not all(isinstance(target, str | None) for target in (call_id, span_id, agent)):
        # A store of another version may hold it: a number for nobody, which is counted and never trained.
        return Reward(value=math.nan, final=False, returned=span.returned, attributes=dict(a))
    return Reward(
        value=math.nan if value is None else value,
        name=str(a.get(semconv.REWARD_NAME, PRIMARY)),
        call_id=call_id,
        span_id=span_id,
        agent=agent,
        final=bool(a.get(semconv.REWARD_FINAL, call_id is None and span_id is None and agent is None)),
        returned=span.returned,
        attributes=dict(a) if value is None else {k: v for k, v in a.items() if k not in _OURS},
        time=span.end_time or span.start_time,
    )


def _number(raw: object) -> float | None:
    try:
        return float(raw) if isinstance(raw, int | float) else None
    except OverflowError:  # an integer beyond all floats
        return None


def by_precedence(given: Sequence[Ranked]) -> list[Ranked]:
    """Sort rewards: the store's order stays, and the ones of higher precedence come last."""
    return sorted(given, key=lambda one: one.returned)


def is_judged(record: Record) -> bool:
    """Return whether the runner's side judged the attempt: it wrote a reward, or it has a reward function or
    rule, which may have given none.
    """
    marked = record.attempt is not None and record.attempt.metadata.get(semconv.JUDGED) is True
    return marked or any(reward.returned for reward in record.rewards)


def by_agent_beside_judge(record: Record) -> list[Reward]:
    """Return the rewards that do not count because the agent, which is not trusted, gave them to itself, and
    a judge gave the others.
    """
    if record.rollout.config.trusted or not is_judged(record):
        return []
    return [reward for reward in record.rewards if not reward.returned]


def effective_reward(emitted: Sequence[Reward]) -> Reward:
    """Return the reward that counts for a target, from its rewards in the order of :func:`by_precedence`."""
    return next((r for r in reversed(emitted) if r.name == PRIMARY), emitted[-1])


def reward_target(span: Span) -> tuple[object, ...] | None:
    """Return target and name of a reward span, ``None`` for any other span. One of several spans with the
    same target and name counts.
    """
    r = reward_of(span)
    return None if r is None else (r.name, str(r.call_id), str(r.span_id), str(r.agent), r.final)


def is_rollout_reward(reward: Reward) -> bool:
    """Return whether the reward is for the whole rollout."""
    return reward.final and reward.call_id is reward.span_id is reward.agent is None
