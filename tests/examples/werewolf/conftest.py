"""A game driven by a script of answers, for tests of single rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from werewolf.engine import Ask, Event, Game, Happening, Kind, Role, Say


class Driven:
    """A game whose asks are answered by ``script``: kind, or (kind, seat), to an answer, a list of answers in
    turn, or a function of the ask. What is not in it gets nothing (skip, no, an empty speech), else the first
    option."""

    def __init__(self, preset: str, deal: int = 0, chance: Any = 0, **script: Any) -> None:
        self.game = Game(preset, deal, chance)
        self.script: dict[Any, Any] = {Kind(kind): answer for kind, answer in script.items()}

    def seat(self, role: Role, n: int = 0) -> int:
        return self.game.state.seats(role)[n]

    def __setitem__(self, key: tuple[Kind, int] | Kind, answer: Any) -> None:
        self.script[key] = answer

    def one(self, ask: Ask) -> Any:
        key = (ask.kind, ask.seat) if (ask.kind, ask.seat) in self.script else ask.kind
        answer = self.script.get(key)
        if isinstance(answer, list):
            answer = answer.pop(0) if answer else None
        if callable(answer):
            answer = answer(ask)
        if answer is None:
            words = [o for o in ask.options if o in ("skip", "no", "tear")]
            answer = Say() if ask.spoken else words[0] if words else ask.options[0]
        return answer

    def asked(self, kind: Kind) -> list[Ask]:
        return [ask for ask, _ in self.game.answers if ask.kind is kind]

    def happened(self, what: Happening) -> list[Event]:
        return [event for event in self.game.events if event.what is what]

    def until(
        self, stop: Callable[[Game], bool] | Kind | Happening | None = None, limit: int = 2000
    ) -> Driven:
        """Play until an ask of a kind is open, something happened, or ``stop`` is true; else to the end."""
        for _ in range(limit):
            game = self.game
            if not game.asks:
                break
            if isinstance(stop, Kind):
                if game.asks[0].kind is stop:
                    break
            elif isinstance(stop, Happening):
                if self.happened(stop):
                    break
            elif stop is not None and stop(game):
                break
            game.state.check()
            game.answer([self.one(ask) for ask in game.asks])
        return self

    def step(self) -> Driven:
        """Answer what is asked now."""
        self.game.answer([self.one(ask) for ask in self.game.asks])
        return self


@pytest.fixture
def driven() -> type[Driven]:
    return Driven


@pytest.fixture
def votes() -> Callable[[Mapping[int, int]], Callable[[Ask], Any]]:
    """A script of a ballot: voter → candidate, others abstain."""
    return lambda ballots: lambda ask: ballots.get(ask.seat, "skip")
