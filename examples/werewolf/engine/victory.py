"""Who has won. Wolves are looked at first: if both sides end at once, they win."""

from __future__ import annotations

from werewolf.engine.roles import GODS, Role, Side
from werewolf.engine.state import State


class GameOver(Exception):
    """Raised inside the flow as soon as a removal decides the game."""


def winner(state: State) -> Side | None:
    """The side that has won, if any has."""
    wolves = len(state.wolves)
    if state.rules.victory == "parity":
        won = wolves > 0 and 2 * wolves >= len(state.alive)
    else:
        gods = state.living(state.seats(*GODS))
        villagers = state.living(state.seats(Role.VILLAGER))
        won = not gods or not villagers
    if won:
        return Side.WOLVES
    return Side.TOWN if wolves == 0 else None


def settle(state: State) -> None:
    """To be called after every removal."""
    if winner(state) is not None:
        raise GameOver
