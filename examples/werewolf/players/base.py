"""What the table needs of a player."""

from __future__ import annotations

import random
from typing import Protocol

from werewolf.engine import Answer, Ask, Event, Say, Statement
from werewolf.wording import Wording


class Player(Protocol):
    """A seat's player."""

    def observe(self, event: Event) -> None:
        """Something happened that the seat may know."""

    async def answer(self, ask: Ask) -> Answer:
        """Decide. What is not legal is refused by the engine, so a player sees to it itself."""


class LocalPlayer:
    """A player without a model: it decides at once."""

    def __init__(self, seat: int, chance: random.Random, wording: Wording) -> None:
        self.seat = seat
        self.chance = chance
        self.wording = wording

    def observe(self, event: Event) -> None:
        """By default nothing is remembered."""

    def choose(self, ask: Ask) -> Answer:
        """The decision."""
        raise NotImplementedError

    async def answer(self, ask: Ask) -> Answer:
        return self.choose(ask)

    def say(self, ask: Ask, statement: Statement, agree: bool = True) -> Say:
        """A statement in words."""
        return Say(self.wording.statement(statement), statement, agree)


class RandomPlayer(LocalPlayer):
    """Any legal answer, all alike."""

    def choose(self, ask: Ask) -> Answer:
        choice = self.chance.choice(ask.options)
        if ask.spoken:
            assert isinstance(choice, Statement)
            return self.say(ask, choice, self.chance.random() < 0.5)
        return choice


def legal_default(ask: Ask, chance: random.Random) -> Answer:
    """What stands in for an answer that could not be had: nothing, where that is legal, else any."""
    words = [o for o in ask.options if o in ("skip", "no", "tear")]
    if ask.spoken:
        return Say()
    return words[0] if words else chance.choice(ask.options)
