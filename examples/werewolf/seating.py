"""The opponent pool: who plays a side, seat by seat.

A side is played by one of

- ``policy``: the policy of the rollout, with boards (``mini7``);
- ``policy:NAME``: another policy of the same gateway by name, e.g. a frozen snapshot, with boards;
- ``model``, ``model:NAME``: the same with free speech and a finish tool, for real models;
- ``llm:NAME``: an endpoint among the rollout's resources, with free speech: an external model;
- ``random``, ``half``, ``scripted``, ``oracle``: local players;

or by a mixture, ``{"policy": 0.8, "scripted": 0.2}``, drawn for each seat by the game's seed. What was drawn
is recorded with the game.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentlightning.types import LLM
from werewolf.engine import Game
from werewolf.players.asking import Account, Endpoint
from werewolf.players.base import Player
from werewolf.players.local import NAMES, local_player
from werewolf.wording import Wording

Mixture = str | Mapping[str, float]


class BadSeating(ValueError):
    """A seat that nobody can be found for."""


@dataclass(frozen=True)
class Table:
    """What players are made with."""

    game: Game
    llm: LLM | None
    resources: Mapping[str, Any]
    http: Any
    """The HTTP client that the models share; none: each its own."""
    account: Account
    words: Wording
    seed: str


def draw(sides: Mapping[str, Mixture], game: Game, seed: str) -> dict[int, str]:
    """Seat → kind of player. A side that is not named plays by the script."""
    out = {}
    for seat, role in game.state.roles.items():
        mixture = sides.get(role.side.value, "scripted")
        if isinstance(mixture, str):
            out[seat] = mixture
            continue
        if not mixture or min(mixture.values()) < 0 or sum(mixture.values()) <= 0:
            raise BadSeating(f"side {role.side.value}: the shares {dict(mixture)} must be positive")
        chance = random.Random(f"werewolf:seat:{seed}:{seat}")
        out[seat] = chance.choices(list(mixture), list(mixture.values()))[0]
    return out


def sit(kinds: Mapping[int, str], table: Table) -> dict[int, Player]:
    """The players."""
    return {seat: _player(kind, seat, table) for seat, kind in kinds.items()}


def _player(kind: str, seat: int, table: Table) -> Player:
    if kind in NAMES:
        return local_player(kind, table.game, seat, table.seed, table.words)
    sort, _, name = kind.partition(":")
    if sort not in ("policy", "model", "llm"):
        raise BadSeating(f"{kind!r} is no player: use policy, model, llm:NAME or {', '.join(NAMES)}")
    endpoint = _endpoint(sort, name, table)
    chance = random.Random(f"werewolf:default:{table.seed}:{seat}")
    from werewolf.players import scope

    make = scope.board_player if sort == "policy" else scope.speaking_player
    return make(seat, table.game.rules, endpoint, table.http, table.account, table.words, chance)


def _endpoint(sort: str, name: str, table: Table) -> Endpoint:
    if sort == "llm":
        found = table.resources.get(name)
        if not isinstance(found, LLM):
            raise BadSeating(f"llm:{name}: there is no such endpoint among {sorted(table.resources)}")
        return found
    if table.llm is None:
        raise BadSeating(f"{sort}: the rollout has no model endpoint (resource llm)")
    return LLM(endpoint=table.llm.endpoint, api_key=table.llm.api_key, model=name or table.llm.model)
