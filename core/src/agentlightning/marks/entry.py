"""One run of a marked class's entry method: its mark while it works, and its reward when it returns.

Invariant: of the entry methods that one object has at work inside each other, only the outermost is rewarded;
and the object that a runner runs is rewarded by the runner, so that each result is worth one reward.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from agentlightning import semconv
from agentlightning.capture.context import Mark, current_attempt
from agentlightning.capture.emitters import emit_reward
from agentlightning.capture.marks import enter, marked
from agentlightning.marks.score import Score
from agentlightning.types.select import Predicate

MARKS = "__agl_marks__"
"""Attribute of a marked class: its own entry methods → :class:`Word`."""


@dataclass(frozen=True, slots=True)
class Word:
    """What ``@agl.agent`` says of a class."""

    name: str
    selects: Predicate | None = None
    score: Score | None = None


def entries_of(cls: type) -> list[str]:
    """The entry methods of a class that are marked, its own or inherited."""
    return list(dict.fromkeys(entry for base in cls.__mro__ for entry in vars(base).get(MARKS, ())))


def word_of(owner: Any, entry: str) -> Word | None:
    """What is said of an object, or of a class, when it runs ``entry``: the name by its nearest marked class,
    the rest by the nearest that gives it. ``None``: nothing is.
    """
    said: list[Word] = []
    for base in (owner if isinstance(owner, type) else type(owner)).__mro__:
        marks: dict[str, Word] | None = vars(base).get(MARKS)
        if marks:
            said.append(marks.get(entry) or next(iter(marks.values())))
    if not said:
        return None
    selects = next((word.selects for word in said if word.selects is not None), None)
    return Word(said[0].name, selects, next((word.score for word in said if word.score is not None), None))


class Entry:
    """``entry`` of ``owner`` at work."""

    def __init__(self, owner: Any, word: Word, entry: str) -> None:
        self.owner, self.word, self.entry = owner, word, entry
        self._mark: Mark | None = None

    @contextmanager
    def on(self) -> Iterator[None]:
        """Code within the block is the method's own."""
        if self._mark is None:
            self._mark = enter(self.word.name, self.owner, self.word.selects)
        self._mark.over = False
        try:
            with marked(self._mark):
                yield
        finally:
            self._mark.over = True

    def returned(self, result: Any) -> None:
        """A plain method returned ``result``."""
        if (score := self._score()) is None:
            return
        if inspect.isawaitable(result) or hasattr(result, "__anext__") or hasattr(result, "__aiter__"):
            raise score.refused(
                f"{self.entry}() returned a {type(result).__name__}, whose work is still to be done; mark "
                "the method that does it, with methods=[…]"
            )
        value = score.ask(result, self.owner, self._hurry())
        self._give(value if value is None or isinstance(value, float) else asyncio.run(value))

    async def came(self, result: Any) -> None:
        """What was awaited or read came to ``result``."""
        if (score := self._score()) is not None:
            self._give(await score.asked(result, self.owner))

    def _score(self) -> Score | None:
        attempt, mark = current_attempt(), self._mark
        if attempt is None or mark is None or not mark.first or self._is(attempt.scored):
            return None
        return self.word.score

    def _is(self, scored: Any) -> bool:
        """Whether the runner's object is the one at work here; methods without one are of its class."""
        return scored is self.owner or (isinstance(self.owner, type) and isinstance(scored, self.owner))

    def _hurry(self) -> str:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return ""
        return (
            f"{self.entry}() is a plain method that ran on the event loop, which cannot wait: make the "
            "reward a plain function, or mark an async method"
        )

    def _give(self, value: float | None) -> None:
        """A reward of the calls that the agent made itself, each, and of the agent."""
        attempt = current_attempt()
        if attempt is None or self._mark is None:
            return
        if attempt.worth is not None and self._mark.outer is None:  # as where a runner runs it
            attempt.worth[:] = [value]
            return
        if value is None:
            return
        said = {semconv.AGENT_NAME: self.word.name}
        for span_id in self._mark.calls:
            emit_reward(value, final=False, attributes={**said, semconv.REWARD_SPAN_ID: span_id})
        emit_reward(value, agent=self.word.name, attributes=said)
