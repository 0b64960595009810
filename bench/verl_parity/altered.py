"""Recorded rollouts as if their calls had been sampled by other weights, another engine or other settings.

Their logprobs are moved as the other distribution would have them, by up to :data:`MOVED` a token, so that
importance weights lie on both sides of 1, and some beyond the cap.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import msgspec

from agentlightning.types import Call, Record

MOVED = 0.5


def aged(records: Sequence[Record]) -> list[Record]:
    """Return the records with every second call a version behind: of version 0, while 1 is trained."""
    return _changed(records, _of_version_one, lambda call: _moved(call, policy_version=0))


def mismatched(records: Sequence[Record]) -> list[Record]:
    """Return the records as an engine with other kernels would have sampled them, by the same weights."""
    return _changed(records, _moved, _moved)


def shaped(records: Sequence[Record]) -> list[Record]:
    """Return the records with every second call sampled at a temperature of its own, whose probabilities the
    engine reports.
    """
    return _changed(records, lambda call: call, _at_another_temperature)


def _changed(
    records: Sequence[Record], even: Callable[[Call], Call], odd: Callable[[Call], Call]
) -> list[Record]:
    count = 0
    found = []
    for record in records:
        calls = []
        for call in record.calls:
            calls.append(odd(call) if count % 2 else even(call))
            count += 1
        found.append(msgspec.structs.replace(record, calls=calls))
    return found


def _of_version_one(call: Call) -> Call:
    return msgspec.structs.replace(call, policy_version=1)


def _at_another_temperature(call: Call) -> Call:
    return _moved(call, sampling={**call.sampling, "temperature": 0.7}, logprobs_mode="processed")


def _moved(call: Call, **fields: object) -> Call:
    draw = random.Random(f"{call.prompt_ids} {call.response_ids}")
    logprobs = [min(0.0, p + draw.uniform(-MOVED, MOVED)) for p in call.logprobs or ()]
    return msgspec.structs.replace(call, logprobs=logprobs, **fields)
