"""The methods of AutoGen's classes that ``@agl.agent`` wraps."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def entry_methods(cls: type) -> Sequence[str]:
    """What runs AutoGen's agents: every team and ``run_stream`` pass through ``on_messages_stream``; ``run``
    and ``on_messages`` leave that stream at its answer, so their end is another method's.
    """
    if "autogen_agentchat" not in sys.modules:
        return ()
    from autogen_agentchat.agents import BaseChatAgent

    return ("on_messages", "on_messages_stream") if issubclass(cls, BaseChatAgent) else ()
