"""Roles and sides."""

from __future__ import annotations

from enum import StrEnum


class Side(StrEnum):
    """Who wins together."""

    WOLVES = "wolves"
    TOWN = "town"


class Role(StrEnum):
    """What a seat is dealt."""

    VILLAGER = "villager"
    SEER = "seer"
    WITCH = "witch"
    HUNTER = "hunter"
    GUARD = "guard"
    WOLF = "wolf"
    WOLF_KING = "wolf_king"

    @property
    def side(self) -> Side:
        return Side.WOLVES if self in WOLVES else Side.TOWN

    @property
    def god(self) -> bool:
        """A town role with a power (神职)."""
        return self in GODS

    @property
    def gun(self) -> bool:
        """Takes somebody along when it dies, unless it was poisoned."""
        return self in (Role.HUNTER, Role.WOLF_KING)


WOLVES = frozenset({Role.WOLF, Role.WOLF_KING})
GODS = frozenset({Role.SEER, Role.WITCH, Role.HUNTER, Role.GUARD})
