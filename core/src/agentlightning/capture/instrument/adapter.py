"""The base of every framework adapter's instrumentor.

It is an OpenTelemetry ``BaseInstrumentor``: ``instrument()`` switches capture on unless it is on, then calls
:meth:`AdapterInstrumentor.begin`. Invariant: ``uninstrument()`` undoes each step in reverse order, and so
does ``instrument()`` when a later step fails; nothing is left half applied.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, MutableSequence
from contextlib import ExitStack
from typing import Any, TypeVar

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from agentlightning.capture.counts import COUNTS
from agentlightning.capture.instrument.installation import install, installed, uninstall
from agentlightning.capture.instrument.patching import Patch, Wrapper

Item = TypeVar("Item")


class AdapterInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Set ``instruments`` and implement :meth:`begin`."""

    instruments: Collection[str] = ()
    """The tested range as requirements, e.g. ``("langgraph >= 1.1.5, < 2",)``. ``instrument()`` refuses other
    versions with a message. Empty: any version."""
    _steps = ExitStack()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._instance = None  # one instrumentor per class; without this, a subclass would get its parent's

    def begin(self) -> None:
        """Patch the framework, with the methods below. Import the framework here, and nowhere earlier."""
        raise NotImplementedError(
            f"{type(self).__name__} has no begin(): implement it to patch the framework"
        )

    def patch(self, owner: Any, name: str, wrapper: Wrapper) -> None:
        """Wrap ``owner.name``. Raise AttributeError when ``owner`` has no such attribute."""
        self.undo(Patch(owner, name, wrapper).undo)

    def patch_private(self, owner: Any, name: str, wrapper: Wrapper, missing: str) -> None:
        """Wrap an attribute that a later version of the framework may lack; count ``missing`` where it is
        absent."""
        if hasattr(owner, name):
            self.patch(owner, name, wrapper)
        else:
            COUNTS.add(missing)

    def patch_overrides(self, base: type, names: Callable[[type], Collection[str]], wrapper: Wrapper) -> None:
        """Wrap methods in ``base`` and every class below it: those that exist, and others once they have an
        instance. ``names``: the methods among a class's own attributes. Use it for methods that users'
        classes define and their programs call.
        """
        done: set[type] = set()

        def cover(cls: type) -> None:
            for one in set(cls.__mro__) - done:
                if issubclass(one, base):
                    done.add(one)
                    for name in names(one):
                        self.patch(one, name, wrapper)

        def made(
            wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> Any:
            cover(type(instance))
            return wrapped(*args, **kwargs)

        waiting = [base]
        while waiting:
            cover(known := waiting.pop())
            waiting += known.__subclasses__()
        self.patch(base, "__init__", made)

    def add(self, registry: MutableSequence[Item], item: Item) -> None:
        """Append ``item`` to a list of core's (``CALLER_SOURCES``) or of yours."""
        registry.append(item)
        self.undo(registry.remove, item)

    def undo(self, callback: Callable[..., Any], *args: Any) -> None:
        """Call ``callback(*args)`` when the adapter is switched off."""
        self._steps.callback(callback, *args)

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the tested range."""
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
