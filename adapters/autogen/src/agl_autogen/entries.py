"""The methods of AutoGen's classes that ``@agl.agent`` wraps."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def entry_methods(cls: type) -> Sequence[str]:
    """``on_messages_stream``, which every team and ``run_stream`` call, and ``on_messages``, which ``run``
    calls: it leaves the stream at its answer, before the stream's end.
    """
    if "autogen_agentchat" not in sys.modules:
        return ()
    from autogen_agentchat.agents import BaseChatAgent

    return ("on_messages", "on_messages_stream") if issubclass(cls, BaseChatAgent) else ()
