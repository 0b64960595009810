"""OpenAI Agents SDK adapter: every model call of an ``openai-agents`` app is recorded with its agent.

Native door: a ``TracingProcessor`` added beside the user's own; with tracing disabled, the no-op spans that
the SDK makes in the same places. Core's wire layer has the token ids. Invariant: ``uninstrument`` leaves the
SDK as it was.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from agentlightning.capture.identity import IDENTITY
from agentlightning.capture.install import install, installed, uninstall
from agentlightning.capture.patching import Patch
from agl_openai_agents.identity import entry_methods, identity
from agl_openai_agents.package import INSTRUMENTS

_LOG = logging.getLogger(__name__)

__all__ = ["OpenAIAgentsInstrumentor", "entry_methods", "identity"]


class OpenAIAgentsInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Instruments the SDK; switches core's capture on where that is not done yet.

    While it is on, models named by a string use chat completions: the SDK's own default, the Responses API,
    gives no token ids. A model object of the user's keeps the API it was made for.
    """

    _patches: tuple[Patch, ...] = ()
    _switched_on = False
    _switched_api = False

    def instrumentation_dependencies(self) -> Collection[str]:
        """The tested range."""
        return INSTRUMENTS

    def _instrument(self, **kwargs: Any) -> None:
        from agents import add_trace_processor, set_default_openai_api
        from agents.models._openai_shared import get_use_responses_by_default

        from agl_openai_agents.bridge import BRIDGE
        from agl_openai_agents.untraced import patches

        self._switched_on = not installed()
        install(kwargs.get("tracer_provider"))
        self._switched_api = get_use_responses_by_default()
        if self._switched_api:
            set_default_openai_api("chat_completions")
            _LOG.info(
                "while this adapter is on, models named by a string use chat completions, not Responses"
            )
        BRIDGE.active = True
        add_trace_processor(BRIDGE)
        self._patches = patches()
        IDENTITY.append(identity)

    def _uninstrument(self, **kwargs: Any) -> None:
        from agents import set_default_openai_api
        from agents.models._openai_shared import get_use_responses_by_default

        from agl_openai_agents.bridge import BRIDGE
        from agl_openai_agents.untraced import leave

        IDENTITY.remove(identity)
        for patch in reversed(self._patches):
            patch.undo()
        self._patches = ()
        BRIDGE.active = False
        leave()
        if self._switched_api and not get_use_responses_by_default():
            set_default_openai_api("responses")
        if self._switched_on:
            uninstall()
