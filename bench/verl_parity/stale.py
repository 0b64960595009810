"""Recorded rollouts as if half of their calls were a version behind.

Those calls keep version 0, and their logprobs are moved as other weights would have them, by up to
:data:`MOVED` a token; the rest are of version 1, which is trained. So importance weights lie on both sides of
1, and some beyond the cap.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from agentlightning.types import Call, Record

MOVED = 0.5


def aged(records: Sequence[Record]) -> list[Record]:
    """The same records, every second call of them of the version before."""
    count = 0
    found = []
    for record in records:
        calls = []
        for call in record.calls:
            fresh = msgspec.structs.replace(call, policy_version=1)
            calls.append(behind(call) if count % 2 else fresh)
            count += 1
        found.append(msgspec.structs.replace(record, calls=calls))
    return found


def behind(call: Call) -> Call:
    """``call`` as version 0 would have sampled it."""
    draw = random.Random(f"{call.prompt_ids} {call.response_ids}")
    moved = [min(0.0, p + draw.uniform(-MOVED, MOVED)) for p in call.logprobs or ()]
    return msgspec.structs.replace(call, policy_version=0, logprobs=moved)
