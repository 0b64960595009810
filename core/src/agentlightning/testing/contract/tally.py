"""Every call a contract test makes is counted, and must be found exact or the test fails.

Invariant: a call counts as exact only if a test compared each of its choices, token for token, with the log
of the server that answered it. Answers that nobody could record (the adapter was off, the caller had gone)
are set aside by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from agentlightning.testing import Exchange, ScriptedModelServer


class Tally:
    """The calls of one test."""

    def __init__(self) -> None:
        self.servers: list[ScriptedModelServer] = []
        self._found: set[tuple[int, int]] = set()
        self._aside: set[int] = set()
        self._others = [0, 0]

    def clear(self) -> None:
        """Begin another test."""
        self.__init__()  # type: ignore[misc]

    def found(self, exchange: Exchange, choice: int) -> None:
        """This choice of an answer is recorded token for token."""
        self._found.add((id(exchange), choice))

    def aside(self, exchanges: Iterable[Exchange]) -> None:
        """Answers that are none of the adapter's: it was off, or the caller had left."""
        self._aside.update(map(id, exchanges))

    def elsewhere(self, made: int, exact: int) -> None:
        """Calls of another server than the scripted one."""
        self._others[0] += made
        self._others[1] += exact

    def answered(self) -> Iterator[Exchange]:
        """What the test's servers answered."""
        for server in self.servers:
            yield from (x for x in server.answered() if x.answers and id(x) not in self._aside)

    def exact(self, exchange: Exchange) -> bool:
        """All choices of an answer were found."""
        return all((id(exchange), choice) in self._found for choice in range(len(exchange.answers)))

    def counts(self) -> tuple[int, int]:
        """Calls made, and calls found exact."""
        answered = list(self.answered())
        return len(answered) + self._others[0], sum(map(self.exact, answered)) + self._others[1]


TALLY = Tally()
"""The present test's."""


class CountedServer(ScriptedModelServer):
    """A scripted server whose answers are counted."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        TALLY.servers.append(self)
