"""A game is played: every player observes what its seat may know, and answers what it is asked.

Asks that the engine puts at once are answered at once. Invariant: a player's answer that is not legal is an
error of the player; the table does not correct it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from werewolf.engine import Game, Outcome
from werewolf.players.base import LocalPlayer, Player


class Hub:
    """Broadcasts each event once, to the seats that may know it, in the order of the events."""

    def __init__(self, game: Game, players: Mapping[int, Player]) -> None:
        self.game = game
        self.players = players
        self._told = 0

    def tell(self) -> None:
        """Tell of the events since the last time."""
        events = self.game.events
        for event in events[self._told :]:
            for seat, player in self.players.items():
                if event.known_to(seat):
                    player.observe(event)
        self._told = len(events)


async def play(game: Game, players: Mapping[int, Player]) -> Outcome:
    """Play to the end."""
    hub = Hub(game, players)
    hub.tell()
    while game.asks:
        if len(game.asks) == 1:
            answers = [await players[game.asks[0].seat].answer(game.asks[0])]
        else:
            answers = await asyncio.gather(*(players[ask.seat].answer(ask) for ask in game.asks))
        game.answer(answers)
        hub.tell()
    assert game.outcome is not None
    return game.outcome


def play_local(game: Game, players: Mapping[int, LocalPlayer]) -> Outcome:
    """The same without waiting for anybody: thousands of games in seconds."""
    hub = Hub(game, players)
    hub.tell()
    while game.asks:
        game.answer([players[ask.seat].choose(ask) for ask in game.asks])
        hub.tell()
    assert game.outcome is not None
    return game.outcome
