"""A finished game as plain JSON: what :mod:`werewolf.replay` shows.

With ``"record": true`` in its task a rollout leaves this as an object span, so that the games of a run can be
looked at later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from werewolf.engine import Game
from werewolf.players.asking import Account

KEY = "werewolf"
"""The key under which a recorded game is known among the objects of a rollout."""


def record(
    game: Game,
    players: Mapping[int, str],
    account: Account | None = None,
    rewards: Mapping[str, float] | None = None,
    language: str = "zh",
) -> dict[str, Any]:
    """``players``: seat → kind; ``rewards``: response id → reward of a call."""
    rewards = rewards or {}
    decisions = [
        {
            "seat": d.seat,
            "kind": d.kind,
            "calls": len(d.calls),
            "valid": d.valid,
            "reward": sum(rewards.get(call, 0.0) for call in d.calls),
        }
        for d in (account.decisions if account else ())
    ]
    outcome = game.outcome
    return {
        "preset": game.rules.name,
        "language": language,
        "roles": {str(seat): role.value for seat, role in game.state.roles.items()},
        "players": {str(seat): kind for seat, kind in players.items()},
        "dead": {str(seat): cause for seat, cause in game.state.dead.items()},
        "outcome": {
            "winner": outcome.winner.value if outcome and outcome.winner else None,
            "reason": outcome.reason if outcome else None,
            "days": outcome.days if outcome else 0,
        },
        "events": [
            {
                "what": event.what.value,
                "day": event.day,
                "phase": event.phase,
                "seat": event.seat,
                "target": event.target,
                "data": _plain(event.data),
                "audience": sorted(event.audience) if event.audience is not None else None,
            }
            for event in game.events
        ],
        "decisions": decisions,
    }


def _plain(value: Any) -> Any:
    """With the keys of JSON."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value
