"""A talk of the desk with a customer, over a shop of its own: what the desk has heard, done and said.

It has no model and no customer in it: the agent asks both over the network, and what teaches and evaluates
the small policy has them in its hands. Invariant: the messages are what a model is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from desk.customer import scripted
from desk.shop import Shop
from desk.tasks import Task

POLICY = (Path(__file__).parent / "policy.md").read_text(encoding="utf-8").strip()
REPLIES, CALLS = 4, 6
"""The desk's replies in a talk, and its model calls for one of them."""
Message = dict[str, Any]
Script = Callable[[Sequence[Mapping[str, Any]]], Message]
"""Messages so far → the desk's next message."""


class Talk:
    """A talk that begins over a database with ``orders``; close it."""

    def __init__(self, orders: Sequence[Mapping[str, Any]]) -> None:
        self.shop = Shop(orders)
        self.messages: list[Any] = [{"role": "system", "content": POLICY}]
        self.replies: list[str] = []
        """What the desk said to the customer so far."""
        self._left = 0

    def close(self) -> None:
        """Close the shop."""
        self.shop.close()

    @property
    def wants_reply(self) -> bool:
        """Whether the customer waits for the desk."""
        return self._left > 0

    @property
    def full(self) -> bool:
        """Whether the desk has said all that it may."""
        return len(self.replies) == REPLIES

    def hear(self, said: str) -> None:
        """The customer says something."""
        self.messages.append({"role": "user", "content": said})
        self._left = CALLS

    def take(self, message: Mapping[str, Any]) -> None:
        """The desk's next message: it calls tools, which answer at once, or replies. A desk that calls and
        calls has replied nothing in the end.
        """
        self.messages.append(dict(message))
        self._left -= 1
        calls = message.get("tool_calls") or ()
        for call in calls:
            function = call["function"]
            said = self.shop.call(function["name"], function["arguments"])
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": said})
        if not calls or not self._left:
            self.replies.append("" if calls else message.get("content") or "")
            self._left = 0


def advance(talk: Talk, task: Task) -> bool:
    """Let the scripted customer speak if it is their turn; whether the desk is wanted then."""
    if not talk.wants_reply and not talk.full:
        said = scripted(task["customer"], talk.replies)
        if said is not None:
            talk.hear(said)
    return talk.wants_reply


def conduct(task: Task, desk: Script) -> tuple[list[Any], list[tuple[Any, ...]]]:
    """The messages of a scripted desk's talk with a scripted customer, and the database at its end."""
    with closing(Talk(task["orders"])) as talk:
        while advance(talk, task):
            talk.take(desk(talk.messages))
        return talk.messages, talk.shop.state()
