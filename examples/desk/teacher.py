"""A scripted teacher that is wrong on purpose, and the chats that it leaves.

The teacher serves customers of training as :mod:`desk.clerk` does. At first it keeps the rules, from which
the small policy learns to read and to copy. Then each of four things goes wrong in a talk with probability
0.7, always in the same way: it does not look at the order's status, not at the 30 days, not at whose order it
is, and it says that a locker is changed without changing it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

from desk.clerk import PROMISES, reply
from desk.shop import SCHEMAS
from desk.talk import conduct
from desk.tasks import HELD_OUT, RULES, task

ERROR_RATE = 0.7
MISTAKES = (*RULES, PROMISES)
Chat = dict[str, Any]


def chats(seed: int, error_rate: float) -> Iterator[Chat]:
    """The endless stream of the teacher's chats with customers of training, with an error rate."""
    drawn = random.Random(f"desk:teacher:{seed}:{error_rate}")
    while True:
        slips = [slip for slip in MISTAKES if drawn.random() < error_rate]
        messages, _ = conduct(task(drawn.randrange(HELD_OUT)), partial(reply, slips=slips))
        yield {"messages": messages, "tools": SCHEMAS}
