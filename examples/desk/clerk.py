"""A scripted desk that sees the talk and what the tools said, and nothing else.

:func:`reply` keeps the rules of the policy. One that does not know some of them is a baseline, and the small
policy's teacher.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

from desk.customer import WISH
from desk.shop import NO_ORDER
from desk.tasks import DAYS, STATUS, WHOSE, broken, change

ASK, DONE = "What is your email address?", "It is done."
REFUSALS = {
    STATUS: "I am sorry: the status of the order does not allow it.",
    DAYS: "I am sorry: the order was delivered more than 30 days ago.",
    WHOSE: "I am sorry: this is not an order of that address.",
}
PROMISES = "promises"
"""The slip of a desk that says a locker is changed and does not change it."""


def reply(messages: Sequence[Mapping[str, Any]], slips: Collection[str] = ()) -> dict[str, Any]:
    """Return the desk's next message. ``slips``: rules that it does not know, and :data:`PROMISES`."""
    heard = [str(one["content"]) for one in messages if one["role"] == "user"]
    told = [str(one["content"]) for one in messages if one["role"] == "tool"]
    wish, order_id, locker = understood(heard[0])
    if len(heard) == 1:
        return says(ASK)
    email = heard[1].removeprefix("It is ").removesuffix(".")
    if not told:
        return calls("look_up", {"email": email, "order_id": order_id})
    if len(told) > 1:
        return says(DONE)
    order = {"id": order_id} if told[0] == NO_ORDER else json.loads(told[0])
    for rule in [WHOSE] if told[0] == NO_ORDER else broken(order, wish, email):
        if rule not in slips:
            return says(REFUSALS[rule])
    if PROMISES in slips and wish == "locker":
        return says(DONE)
    return calls(*change(order, wish, locker))


def understood(said: str) -> tuple[str, str, int]:
    """Return wish, order and locker of a scripted customer's first words; ``ValueError`` for other text."""
    for wish, pattern in _patterns():
        if found := pattern.search(said):
            return wish, found["order"], int(found.groupdict().get("locker") or 0)
    raise ValueError(f"this is no wish of the example: {said!r}")


@cache
def _patterns() -> list[tuple[str, re.Pattern[str]]]:
    named = {"order": r"(?P<order>\w+)", "locker": r"(?P<locker>\d+)"}
    return [(wish, re.compile(form.replace(".", r"\.").format(**named))) for wish, form in WISH.items()]


def says(text: str) -> dict[str, Any]:
    """Return the message of a reply to the customer."""
    return {"role": "assistant", "content": text}


def calls(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message of a call of a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": f"call_{name}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}
