"""Presets: which roles are dealt and which rules hold.

``mini5``, ``mini7`` and ``classic9`` end by parity: wolves win when they are at least half of the living.
``zh12`` ends by 屠边: wolves win when all gods or all villagers are dead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from werewolf.engine.roles import Role

Power = Literal["guard", "wolves", "witch", "seer"]


class UnknownPreset(ValueError):
    """No preset has that name."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """One variant of the game."""

    name: str
    roles: tuple[Role, ...]
    """One for each seat; who gets which is dealt by the seed."""
    night: tuple[Power, ...]
    """The order in which powers act."""
    victory: Literal["parity", "side"]
    wolf_passes: int = 3
    """Rounds of talk among the wolves before they vote, at most."""
    wolf_vote: Literal["together", "in_turn"] = "together"
    """``together``: hidden until all have voted, plurality, ties by lot. ``in_turn``: each sees the proposals
    before; differing proposals are decided by lot."""
    self_kill: bool = False
    """Wolves may name one of themselves (自刀), or nobody (空刀)."""
    witch_saves_herself: bool = False
    sheriff: bool = False
    explosion: bool = False
    """An ordinary wolf may show itself by day and end it (自爆)."""
    tie: Literal["nobody", "pk"] = "nobody"
    """What becomes of a tied exile vote."""
    abstain: bool = True
    last_words: bool = False
    speech: Literal["free", "statement"] = "free"
    """``statement``: what is said by day is one of a few statements."""
    max_days: int = 30

    @property
    def seats(self) -> int:
        return len(self.roles)


_VILLAGERS3 = (Role.VILLAGER,) * 3

CLASSIC9 = Rules(
    name="classic9",
    roles=((Role.WOLF,) * 3 + _VILLAGERS3 + (Role.SEER, Role.WITCH, Role.HUNTER)),
    night=("wolves", "witch", "seer"),
    victory="parity",
    last_words=True,
)
MINI7 = Rules(
    name="mini7",
    roles=((Role.WOLF,) * 2 + _VILLAGERS3 + (Role.SEER, Role.WITCH)),
    night=("wolves", "seer", "witch"),
    victory="parity",
    wolf_passes=0,
    wolf_vote="in_turn",
    witch_saves_herself=True,
    abstain=False,
    speech="statement",
)
MINI5 = replace(MINI7, name="mini5", roles=(Role.WOLF, Role.VILLAGER, Role.VILLAGER, Role.SEER, Role.WITCH))
ZH12 = Rules(
    name="zh12",
    roles=(
        (Role.WOLF,) * 3
        + (Role.WOLF_KING,)
        + (Role.VILLAGER,) * 4
        + (Role.SEER, Role.WITCH, Role.HUNTER, Role.GUARD)
    ),
    night=("guard", "wolves", "witch", "seer"),
    victory="side",
    self_kill=True,
    sheriff=True,
    explosion=True,
    tie="pk",
    last_words=True,
)
PRESETS: dict[str, Rules] = {rules.name: rules for rules in (MINI5, MINI7, CLASSIC9, ZH12)}


def preset(name: str) -> Rules:
    """The preset of that name."""
    if name not in PRESETS:
        raise UnknownPreset(f"there is no preset {name!r}; choose one of {', '.join(PRESETS)}")
    return PRESETS[name]
