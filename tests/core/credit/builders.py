"""Records for the tests of credit: made by hand, or drawn as whole worlds of agents that take turns."""

from __future__ import annotations

import itertools
import math
from random import Random
from typing import Any

from hypothesis import HealthCheck, settings, strategies as st

from agentlightning import semconv
from agentlightning.types import Attempt, Call, Record, Reward, Rollout, RolloutStatus, Span
from agentlightning.types.tokens import tokens_digest

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""For every property test: a slow machine is no failure."""


def make_call(
    call_id: str,
    prompt: list[int] | None,
    response: list[int] | None,
    /,
    sequence: int = 0,
    rollout_id: str = "r0",
    **fields: Any,
) -> Call:
    """A call as the gateway records it: counts and logprobs agree unless ``fields`` says otherwise."""
    sampling = fields.pop("sampling", {"temperature": fields.pop("temperature", 1.0)})
    known: dict[str, Any] = {
        "attempt_id": f"{rollout_id}-a",
        "policy_version": 0,
        "logprobs": None if response is None else [-0.5 - 0.01 * i for i in range(len(response))],
        "prompt_tokens": None if prompt is None else len(prompt),
        "completion_tokens": None if response is None else len(response),
    }
    return Call(
        call_id=call_id,
        rollout_id=rollout_id,
        sequence=sequence,
        prompt_ids=prompt,
        response_ids=response,
        sampling=sampling,
        **{**known, **fields},
    )


def make_record(
    rollout_id: str = "r0",
    calls: list[Call] | None = None,
    reward: float | None = None,
    rewards: list[Reward] | None = None,
    status: RolloutStatus = RolloutStatus.SUCCEEDED,
    group: str | None = "g",
    sample: int = 0,
    wire: list[Span] | None = None,
    **rollout: Any,
) -> Record:
    """A finished rollout. ``reward``: its final reward, before ``rewards``."""
    emitted = [] if reward is None else [Reward(value=reward)]
    return Record(
        rollout=Rollout(rollout_id=rollout_id, status=status, group_id=group, sample=sample, **rollout),
        attempt=Attempt(attempt_id=f"{rollout_id}-a", rollout_id=rollout_id),
        calls=calls if calls is not None else [one_call(rollout_id)],
        rewards=[*emitted, *(rewards or [])],
        wire=wire or [],
    )


def one_call(rollout_id: str = "r0", n: int = 2, sequence: int = 0, **fields: Any) -> Call:
    """A call with n response tokens that merges with no other."""
    return make_call(
        f"{rollout_id}-c{sequence}", [90 + sequence, 1], [2] * n, sequence, rollout_id=rollout_id, **fields
    )


def make_wire(call: Call, **attributes: Any) -> Span:
    """The wire layer's span of a call: same ids, same tags, unless ``attributes`` says otherwise."""
    known: dict[str, Any] = {f"{semconv.TAG_PREFIX}{k}": v for k, v in call.tags.items()}
    known[semconv.CHOICE] = call.choice
    if call.response_id:
        known[semconv.RESPONSE_ID] = call.response_id
    if call.prompt_ids is not None and call.response_ids is not None:
        known[semconv.TOKENS_DIGEST] = tokens_digest(call.prompt_ids, call.response_ids)
    return Span(
        rollout_id=call.rollout_id,
        attempt_id=call.attempt_id,
        name=semconv.CALL_SPAN,
        trace_id=call.trace_id or "",
        span_id=call.span_id or "",
        attributes={k: v for k, v in {**known, **attributes}.items() if v is not None},
    )


# ------------------------------------------------------------------------------------- worlds for hypothesis
def world(random: Random, *, vocabulary: int = 4, clean: bool = False) -> list[Record]:
    """A step's records: groups of rollouts whose agents interleave, branch, sample in parallel and fail.

    The vocabulary is tiny on purpose: prefixes that match by accident happen all the time. ``clean``: every
    call can be trained and every rollout has a reward.
    """
    records: list[Record] = []
    for group in range(random.randint(1, 3)):
        for sample in range(random.randint(1, 3)):
            rollout_id = f"g{group}s{sample}"
            calls = _calls(random, rollout_id, vocabulary, clean)
            statuses = [RolloutStatus.SUCCEEDED] * (1 if clean else 6) + [RolloutStatus.FAILED] * (not clean)
            records.append(
                make_record(
                    rollout_id,
                    calls,
                    rewards=_rewards(random, calls, clean),
                    status=random.choice(statuses),
                    group=f"g{group}",
                    sample=sample,
                )
            )
    return records


def worlds(**options: Any) -> st.SearchStrategy[list[Record]]:
    """Worlds as a strategy."""
    return st.randoms(use_true_random=False).map(lambda random: world(random, **options))


def _calls(random: Random, rollout_id: str, vocabulary: int, clean: bool) -> list[Call]:
    """What the agents of one rollout did: each goes on from its own past, from an older point, or anew."""
    ids = itertools.count()
    past: dict[str, list[list[int]]] = {"A": [[]], "B": [[]]}
    calls: list[Call] = []
    for sequence in range(random.randint(0 if not clean else 1, 7)):
        agent = random.choice("AAB")
        start = past[agent][-1] if random.random() < 0.7 else random.choice(past[agent])
        prompt = start + _tokens(random, vocabulary, 1, 3)
        temperature = random.choice([1.0, 1.0, 1.0, 0.5])
        policy = random.choice(["p", "p", "p", "q"])
        choices = random.choice([1, 1, 1, 2])
        made = [
            make_call(
                f"{rollout_id}c{next(ids)}",
                list(prompt),
                _tokens(random, vocabulary, 1, 3),
                sequence,
                rollout_id=rollout_id,
                choice=choice,
                temperature=temperature,
                policy=policy,
                policy_version=random.randint(0, 2),
                tags={"agent": agent},
            )
            for choice in range(choices)
        ]
        for call in made:
            call.completion_tokens = sum(len(c.response_ids or ()) for c in made)
        past[agent].append(prompt + (made[0].response_ids or []))
        calls += made if clean else [_spoil(random, call) for call in made]
    return calls


def _spoil(random: Random, call: Call) -> Call:
    """Now and then: one of the ways in which a call cannot be trained."""
    flaw = random.choice(
        [""] * 12 + ["status", "masked", "selected", "ids", "empty", "count", "retry", "logprobs"]
    )
    if flaw == "status":
        call.status = random.choice(["error", "cancelled"])
    elif flaw == "masked":
        call.masked = "off-policy-sampling"
    elif flaw == "selected":
        call.selected = False
    elif flaw == "ids":
        call.prompt_ids = call.response_ids = call.logprobs = None
    elif flaw == "empty":
        call.response_ids, call.logprobs, call.completion_tokens = [], [], 0
    elif flaw == "count":
        call.prompt_tokens = 99
    elif flaw == "retry":
        call.span_id, call.retry = "again", random.randint(0, 1)
    elif flaw == "logprobs":
        call.logprobs = None
    return call


def _rewards(random: Random, calls: list[Call], clean: bool) -> list[Reward]:
    def value() -> float:
        return random.choice([0.0, 1.0, -0.5] if clean else [0.0, 1.0, -0.5, math.nan, math.inf])

    rewards = [Reward(value=value())] if clean or random.random() < 0.8 else []
    rewards += [Reward(value=value(), call_id=c.call_id) for c in calls if clean or random.random() < 0.5]
    return rewards + [Reward(value=value(), agent=a) for a in "AB" if random.random() < 0.3]


def _tokens(random: Random, vocabulary: int, low: int, high: int) -> list[int]:
    return [random.randrange(vocabulary) for _ in range(random.randint(low, high))]


def walk(name: str, states: list[str], reward: float | None, group: str = "g", **more: object) -> Record:
    """A rollout that passes through states, one call in each; its prompts hold its whole history."""
    calls = [
        make_call(f"{name}-c{i}", [1, *range(50, 50 + i), ord(state[0])], [2, 3], i, rollout_id=name,
                  tags={"state": state})
        for i, state in enumerate(states)
    ]  # fmt: skip
    return make_record(name, calls, reward, group=group, **more)
