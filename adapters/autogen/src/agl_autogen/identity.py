"""Who is calling, in AutoGen's own terms.

AutoGen's ``invoke_agent`` spans name every agent, and core reads them. Two things they do not say: which team
the agent speaks in, and that a group chat's manager picks the next speaker with a model call of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

from agentlightning.capture.identity import span_agent
from agentlightning.types import Tags

TEAMS: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""Team id → team, for teams made while the adapter is active."""

_MANAGERS = ("GroupChatManager", "GraphManager", "MagenticOneOrchestrator")
"""How AutoGen's own managers are called; the name decides only for teams that are not in :data:`TEAMS`."""


def identity() -> Tags:
    """``team``, and for a manager ``agent`` and ``role``; empty outside a team."""
    from autogen_core import MessageHandlerContext

    try:
        handler = MessageHandlerContext.agent_id().type
    except RuntimeError:  # no message is being handled: a single agent, or no agent at all
        return {}
    name, _, team_id = handler.rpartition("_")
    team = TEAMS.get(team_id)
    tags: Tags = {"team": team.name} if team is not None else {}
    manages = name == team._group_chat_manager_name if team is not None else name.endswith(_MANAGERS)
    span_name = span_agent()
    if manages and span_name != name:
        tags |= {"agent": name, "role": "manager"}
    elif span_name is None:  # the user's provider samples the spans away, or OpenTelemetry is switched off
        tags["agent"] = name
    return tags


def entry_methods(cls: type) -> Sequence[str]:
    """What runs AutoGen's agents: every team and ``run_stream`` pass through ``on_messages_stream``; ``run``
    and ``on_messages`` leave that stream at its answer, so their end is another method's.
    """
    if "autogen_agentchat" not in sys.modules:
        return ()
    from autogen_agentchat.agents import BaseChatAgent

    return ("on_messages", "on_messages_stream") if issubclass(cls, BaseChatAgent) else ()
