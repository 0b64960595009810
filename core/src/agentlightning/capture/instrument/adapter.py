"""The base of every framework adapter's instrumentor.

An OpenTelemetry ``BaseInstrumentor``: ``instrument()`` switches capture on where that is not done yet, then
calls :meth:`AdapterInstrumentor.begin`. Invariant: each step is undone in reverse order, by
``uninstrument()`` and also where a later step of ``instrument()`` fails; nothing is left half applied.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, MutableSequence
from contextlib import ExitStack
from typing import Any, TypeVar

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from agentlightning.capture.counts import COUNTS
from agentlightning.capture.install import install, installed, uninstall
from agentlightning.capture.instrument.patching import Patch, Wrapper

Item = TypeVar("Item")


class AdapterInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Set ``instruments`` and implement :meth:`begin`; the rest is done."""

    instruments: Collection[str] = ()
    """The tested range as requirements, e.g. ``("langgraph >= 1.1.5, < 2",)``: another version is refused
    with a message. Empty: any."""
    _steps = ExitStack()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._instance = None  # one object a class: without this, a subclass would get its parent's

    def begin(self) -> None:
        """Patch the framework, by the methods below. Import the framework here, and nowhere earlier."""
        raise NotImplementedError(
            f"{type(self).__name__} has no begin(): implement it to patch the framework"
        )

    def patch(self, owner: Any, name: str, wrapper: Wrapper) -> None:
        """Wrap ``owner.name``. ``AttributeError`` names an attribute that does not exist."""
        self.undo(Patch(owner, name, wrapper).undo)

    def patch_private(self, owner: Any, name: str, wrapper: Wrapper, missing: str) -> None:
        """As :meth:`patch` for an attribute that a later version of the framework may lack: its absence is
        counted as ``missing``, and the rest goes on."""
        if hasattr(owner, name):
            self.patch(owner, name, wrapper)
        else:
            COUNTS.add(missing)

    def add(self, registry: MutableSequence[Item], item: Item) -> None:
        """Put ``item`` into a list, of core's (``CALLER_SOURCES``) or of yours."""
        registry.append(item)
        self.undo(registry.remove, item)

    def undo(self, callback: Callable[..., Any], *args: Any) -> None:
        """Call ``callback(*args)`` when the adapter is switched off."""
        self._steps.callback(callback, *args)

    def instrumentation_dependencies(self) -> Collection[str]:
        """The tested range."""
        return self.instruments

    def _instrument(self, **kwargs: Any) -> None:
        with ExitStack() as steps:
            self._steps = steps
            if not installed():
                self.undo(uninstall)
            install(kwargs.get("tracer_provider"))
            self.begin()
            self._steps = steps.pop_all()

    def _uninstrument(self, **kwargs: Any) -> None:
        self._steps.close()
