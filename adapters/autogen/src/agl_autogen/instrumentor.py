"""AutoGen adapters: every model call of an app is recorded with the agent that made it.

One is for ``autogen-agentchat``, the other for programs of ``autogen-core`` alone, whose agents are handlers
of messages. AutoGen's own OpenTelemetry spans (``create_agent``, ``invoke_agent``, ``execute_tool``) name
agents and tools. The adapters complete them; core's wire layer records the token ids. Invariant:
``uninstrument`` leaves AutoGen as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from opentelemetry import trace

from agentlightning.capture.adapter import AdapterInstrumentor
from agentlightning.capture.delivery import COUNTS, IGNORED_SCOPES
from agl_autogen.handlers import on_message
from agl_autogen.package import CORE, INSTRUMENTS
from agl_autogen.teams import TEAMS, remember_team
from agl_autogen.tools import execute
from agl_autogen.turns import entries_of, on_messages

PLUMBING = ("autogen SingleThreadedAgentRuntime", "autogen Worker Runtime")
"""Scopes of the message runtimes: hundreds of spans per run, none of an agent, a model or a tool."""


class AutoGenCoreInstrumentor(AdapterInstrumentor):
    """Instruments the agents of ``autogen-core``; switches core's capture on unless it is on."""

    instruments = CORE

    def begin(self) -> None:
        """Name the agents that handle messages."""
        _instrument_runtime(self)


class AutoGenInstrumentor(AdapterInstrumentor):
    """Instruments AutoGen; switches core's capture on unless it is on."""

    instruments = INSTRUMENTS

    def begin(self) -> None:
        """Complete AutoGen's own spans, and tag the members of its teams."""
        from autogen_agentchat.agents import AssistantAgent, BaseChatAgent
        from autogen_agentchat.teams import BaseGroupChat

        self.patch(BaseGroupChat, "__init__", remember_team)
        self.undo(TEAMS.clear)
        self.patch_overrides(BaseChatAgent, entries_of, on_messages)
        missing = "autogen-tool-details-unavailable"  # tool spans go on without arguments and results
        self.patch_private(AssistantAgent, "_execute_tool_call", execute, missing)
        _instrument_runtime(self)


def _instrument_runtime(adapter: AdapterInstrumentor) -> None:
    """Name the agents of the message runtime, and skip its own spans. Where both adapters do so, the second
    adds nothing to the first.
    """
    from autogen_core import BaseAgent

    added = set(PLUMBING) - IGNORED_SCOPES
    IGNORED_SCOPES.update(added)
    adapter.undo(IGNORED_SCOPES.difference_update, added)
    adapter.patch(BaseAgent, "on_message", on_message)
    try:
        from autogen_core._telemetry import TraceHelper

        adapter.patch(TraceHelper, "trace_block", _trace_block)
    except (ImportError, AttributeError):
        COUNTS.add("autogen-plumbing-not-skipped")  # costs time, loses nothing: the scopes are quiet


def _trace_block(
    wrapped: Callable[..., Any], helper: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Skip the runtime's spans if only we would record them. A user's own provider still gets them."""
    from agentlightning.capture.installation import DefaultTracerProvider

    ours = isinstance(trace.get_tracer_provider(), DefaultTracerProvider)
    if ours and isinstance(helper.tracer_provider, DefaultTracerProvider | trace.ProxyTracerProvider):
        return nullcontext(trace.INVALID_SPAN)
    return wrapped(*args, **kwargs)
