"""Count the calls of a contract test and those that were found exact. A test with an inexact call fails.

Invariant: a call is exact only if the test compared each of its choices, token for token, with the log of the
server. A test excludes answers that no adapter can record: it was off, or no client received them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from agl_testing import Exchange, ScriptedModelServer


class Tally:
    """The calls of one test."""

    def __init__(self) -> None:
        self.servers: list[ScriptedModelServer] = []
        self._found: set[tuple[int, int]] = set()
        self._aside: set[int] = set()
        self._others = [0, 0]

    def clear(self) -> None:
        """Begin the counts of another test."""
        self.__init__()  # type: ignore[misc]

    def found(self, exchange: Exchange, choice: int) -> None:
        """Count a choice of an answer that was recorded token for token."""
        self._found.add((id(exchange), choice))

    def aside(self, exchanges: Iterable[Exchange]) -> None:
        """Exclude answers that no adapter can record: it was off, or no client received them."""
        self._aside.update(map(id, exchanges))

    def elsewhere(self, made: int, exact: int) -> None:
        """Count calls of another server than the scripted one."""
        self._others[0] += made
        self._others[1] += exact

    def answered(self) -> Iterator[Exchange]:
        """Yield the exchanges of the test's servers that count."""
        for server in self.servers:
            yield from (x for x in server.answered() if x.answers and id(x) not in self._aside)

    def exact(self, exchange: Exchange) -> bool:
        """Return whether all choices of an answer were found."""
        return all((id(exchange), choice) in self._found for choice in range(len(exchange.answers)))

    def counts(self) -> tuple[int, int]:
        """Return the number of calls made and of calls found exact."""
        answered = list(self.answered())
        return len(answered) + self._others[0], sum(map(self.exact, answered)) + self._others[1]


TALLY = Tally()
"""The counts of the running test."""


class CountedServer(ScriptedModelServer):
    """A scripted server that adds its exchanges to the counts."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        TALLY.servers.append(self)
