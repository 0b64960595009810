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
"""The slip of a desk that says an address is changed and does not change it."""


def reply(messages: Sequence[Mapping[str, Any]], slips: Collection[str] = ()) -> dict[str, Any]:
    """Return the desk's next message. ``slips``: rules that it does not know, and :data:`PROMISES`."""
    heard = [str(one["content"]) for one in messages if one["role"] == "user"]
    told = [str(one["content"]) for one in messages if one["role"] == "tool"]
    wish, order_id, address = understood(heard[0])
    if len(heard) == 1:
        return says(ASK)
    if not told:
        return calls("look_up", {"order_id": order_id})
    if len(told) > 1:
        return says(DONE)
    if told[0] == NO_ORDER:
        return says(REFUSALS[WHOSE])
    order = json.loads(told[0])
    email = heard[1].removeprefix("It is ").removesuffix(".")
    for rule in broken(order, wish, email):
        if rule not in slips:
            return says(REFUSALS[rule])
    if PROMISES in slips and wish == "address":
        return says(DONE)
    return calls(*change(order, wish, address))


def understood(said: str) -> tuple[str, str, str]:
    """Return wish, order and address of a scripted customer's first words; ``ValueError`` for other text."""
    for wish, pattern in _patterns():
        if found := pattern.search(said):
            return wish, found["order"], found.groupdict().get("address") or ""
    raise ValueError(f"this is no wish of the example: {said!r}")


@cache
def _patterns() -> list[tuple[str, re.Pattern[str]]]:
    named = {"order": r"(?P<order>\w+)", "address": "(?P<address>[^.]+)"}
    return [(wish, re.compile(form.replace(".", r"\.").format(**named))) for wish, form in WISH.items()]


def says(text: str) -> dict[str, Any]:
    """Return the message of a reply to the customer."""
    return {"role": "assistant", "content": text}


def calls(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message of a call of a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": f"call_{name}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}
