"""The players of the AgentScope that is installed: 2, or 1.0."""

from __future__ import annotations

from typing import Any

import agentscope.agent

from werewolf.players.base import Player

if hasattr(agentscope.agent, "AgentBase"):
    from werewolf.players import scope1 as installed
else:
    from werewolf.players import scope2 as installed  # type: ignore[no-redef]


def board_player(*args: Any) -> Player:
    """The small policy's player: a board, guided choice."""
    return installed.BoardPlayer(*args)


def speaking_player(*args: Any) -> Player:
    """A real model's player: memory, free speech, a finish tool."""
    return installed.SpeakingPlayer(*args)
