"""Public fakes for tests of agents, adapters and plugins.

- :class:`~agl_testing.scripted.ScriptedModelServer`: an OpenAI-compatible server with scripted
  answers. It returns token ids and logprobs, fails on demand, and logs every exchange.
- :class:`~agl_testing.replies.Reply`: an answer with a status, headers, a delay or a fault.
- :mod:`agl_testing.template`: the server's chat template and tokenizer.
- :mod:`agl_testing.contract`: the contract of framework adapters, as pytest tests to inherit.

These names are stable; names that begin with an underscore are not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentlightning._lazy import lazy_names

if TYPE_CHECKING:
    from agl_testing.replies import Reply, tool_call
    from agl_testing.scripted import Exchange, ScriptedModelServer

__all__ = ["Exchange", "Reply", "ScriptedModelServer", "tool_call"]
_HOMES = {
    "Reply": "replies",
    "tool_call": "replies",
    "Exchange": "scripted",
    "ScriptedModelServer": "scripted",
}
__getattr__ = lazy_names(__name__, _HOMES)  # each start of agl loads this package's plugin, and no server
