"""LangChain adapter: every model call of a LangChain app is recorded with the agent that made it.

Native doors: LangChain's callbacks see agents and tools, its run configuration says which of them is calling;
core's wire layer has the token ids. Nothing of LangChain is patched. Invariant: ``uninstrument`` leaves
LangChain as it was.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from agentlightning.capture.install import install, installed, uninstall
from agl_langchain.identity import entry_methods, identity
from agl_langchain.package import INSTRUMENTS

__all__ = ["LangChainInstrumentor", "entry_methods", "identity"]


class LangChainInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Instruments LangChain; switches core's capture on where that is not done yet."""

    _switched_on = False

    def instrumentation_dependencies(self) -> Collection[str]:
        """The tested range."""
        return INSTRUMENTS

    def _instrument(self, **kwargs: Any) -> None:
        from agl_langchain.handler import open_door

        self._switched_on = not installed()
        install(kwargs.get("tracer_provider"))
        open_door()

    def _uninstrument(self, **kwargs: Any) -> None:
        from agl_langchain.handler import close_door

        close_door()
        if self._switched_on:
            uninstall()
