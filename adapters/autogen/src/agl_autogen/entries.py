"""The methods of AutoGen's classes that ``@agl.agent`` wraps."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def entry_methods(cls: type) -> Sequence[str]:
    """Return ``on_messages_stream``, which every team and ``run_stream`` call, and ``on_messages``, which
    ``run`` calls and which leaves the stream at its answer, before its end.
    """
    if "autogen_agentchat" not in sys.modules:
        return ()
    from autogen_agentchat.agents import BaseChatAgent

    return ("on_messages", "on_messages_stream") if issubclass(cls, BaseChatAgent) else ()


def core_entry_methods(cls: type) -> Sequence[str]:
    """Return the method that handles a message, which the message runtime calls."""
    if "autogen_core" not in sys.modules:
        return ()
    from autogen_core import BaseAgent

    return ("on_message_impl",) if issubclass(cls, BaseAgent) else ()
