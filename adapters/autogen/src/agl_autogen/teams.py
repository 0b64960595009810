"""Tag the members of a team: its participants, and the manager of a group chat.

AutoGen's ``invoke_agent`` spans name every agent, and core reads them. They name neither the agent's team nor
the manager of a group chat, which chooses the next speaker with a model call of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

from agentlightning.types import Tags

TEAMS: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""Team id → team, of the teams that were made while the adapter was active."""

_MANAGERS = ("GroupChatManager", "GraphManager", "MagenticOneOrchestrator")
"""Names of AutoGen's own managers, to recognise them in teams that are not in :data:`TEAMS`."""
_MEMBER = re.compile(r"(.+)_([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
"""The type of a team's handlers: name and team id."""


def remember_team(
    wrapped: Callable[..., Any], team: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Wraps ``BaseGroupChat.__init__``."""
    wrapped(*args, **kwargs)
    TEAMS[team._team_id] = team


def member_tags(handler: str) -> Tags | None:
    """The tags of a team's member, by the type of its handler; ``None`` for an agent of no team."""
    if (member := _MEMBER.fullmatch(handler)) is None:
        return None
    name, team = member[1], TEAMS.get(member[2])
    manages = name == team._group_chat_manager_name if team is not None else name.endswith(_MANAGERS)
    return {
        "agent": name,
        **({} if team is None else {"team": str(team.name)}),
        **({"role": "manager"} if manages else {}),
    }
