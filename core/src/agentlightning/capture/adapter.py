"""The base of every framework adapter's instrumentor, and the instrumentors of two client libraries.

An adapter is an OpenTelemetry ``BaseInstrumentor``: ``instrument()`` switches capture on unless it is on,
then calls :meth:`AdapterInstrumentor.begin`. Invariant: ``uninstrument()`` undoes each step in reverse order,
and so does ``instrument()`` when a later step fails; nothing is left half applied.

anthropic and LiteLLM are clients as the openai SDK is, under many frameworks: what sees their calls is the
wire layer (:mod:`.sdk`), so they come with core.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, MutableSequence
from contextlib import ExitStack
from importlib import import_module
from typing import Any, Final, TypeVar

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from agentlightning import capture  # its names load OpenTelemetry's SDK, which no start of agl needs
from agentlightning.capture.context import current_attempt
from agentlightning.capture.delivery import COUNTS
from agentlightning.capture.sdk import call_methods
from agentlightning.capture.sdk_call import is_gateway
from agentlightning.keys import CONTEXT_KEY

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

    def patch(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        """Wrap ``owner.name``. Raise AttributeError when ``owner`` has no such attribute."""
        from agentlightning.capture.installation import Patch

        self.undo(Patch(owner, name, wrapper).undo)

    def patch_private(self, owner: Any, name: str, wrapper: Callable[..., Any], missing: str) -> None:
        """Wrap an attribute that a later version of the framework may lack; count ``missing`` where it is
        absent."""
        if hasattr(owner, name):
            self.patch(owner, name, wrapper)
        else:
            COUNTS.add(missing)

    def patch_overrides(
        self, base: type, names: Callable[[type], Collection[str]], wrapper: Callable[..., Any]
    ) -> None:
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

        def made(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
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
            if not capture.installed():
                self.undo(capture.uninstall)
            capture.install(kwargs.get("tracer_provider"))
            self.begin()
            self._steps = steps.pop_all()

    def _uninstrument(self, **kwargs: Any) -> None:
        self._steps.close()


class AnthropicInstrumentor(AdapterInstrumentor):
    """Records the anthropic SDK's calls like those of the openai SDK: one code generator made both SDKs.

    Without it only the gateway records calls of the Messages API, under the client's own key. With it they
    carry the attempt's key, the caller's tags and span, and are verified.
    """

    instruments = ("anthropic >= 0.70, < 3",)

    def begin(self) -> None:
        """Patch the methods that carry its calls."""
        for owner, name, wrapper in call_methods("anthropic", *self.instruments):
            self.patch(owner, name, wrapper)


_OWN_CLIENT: Final = ("hosted_vllm/",)
_ENTRIES: Final = ("completion", "acompletion")


class LiteLLMInstrumentor(AdapterInstrumentor):
    """Makes LiteLLM ask the gateway through the openai SDK, where calls are recorded with caller and ids.

    LiteLLM asks the servers of ``hosted_vllm/…`` by an HTTP client of its own, without a key of the attempt.
    Inside an attempt, such a call to the run's gateway is made as ``openai/…``. Calls to other servers stay
    as they are.
    """

    instruments = ("litellm >= 1.83.14, < 2",)

    def begin(self) -> None:
        """Patch the functions that make a call."""
        litellm = import_module("litellm")
        for name in _ENTRIES:
            self.patch(litellm, name, _through_sdk)


def _through_sdk(
    wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call with the model named as one of the openai SDK, if it is at the gateway."""
    model, *rest = args or (kwargs.get("model"),)
    attempt, place = current_attempt(), kwargs.get("base_url") or kwargs.get("api_base")
    at_gateway = attempt is not None and isinstance(place, str) and is_gateway(place, attempt.gateway)
    if not at_gateway or not isinstance(model, str) or not model.startswith(_OWN_CLIENT):
        return wrapped(*args, **kwargs)
    given = {"api_key": CONTEXT_KEY, **{name: value for name, value in kwargs.items() if value is not None}}
    given["model"] = "openai/" + model.partition("/")[2]
    if args:
        return wrapped(given.pop("model"), *rest, **given)
    return wrapped(**given)
