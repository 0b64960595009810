"""Tag the members of a team: its participants, and the manager of a group chat.

AutoGen's ``invoke_agent`` spans name every agent, and core reads them. They name neither the agent's team nor
the manager of a group chat, which chooses the next speaker with a model call of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

from agentlightning.capture.context import current_attempt
from agentlightning.capture.identity import agent_tags
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


async def on_message(
    wrapped: Callable[..., Any], handler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Wraps ``BaseAgent.on_message``: a participant or a manager handles one message."""
    member = _MEMBER.fullmatch(handler.id.type) if current_attempt() is not None else None
    if member is None:
        return await wrapped(*args, **kwargs)
    with agent_tags(**_tags(member[1], TEAMS.get(member[2]))):
        return await wrapped(*args, **kwargs)


def _tags(name: str, team: Any) -> Tags:
    manages = name == team._group_chat_manager_name if team is not None else name.endswith(_MANAGERS)
    return {
        "agent": name,
        **({} if team is None else {"team": str(team.name)}),
        **({"role": "manager"} if manages else {}),
    }
