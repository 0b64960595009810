"""Switch capture on and off for this process, and undo every change.

:func:`install` instruments the openai SDK, at once or when the process imports it. It adds our span processor
to the process's tracer provider: the user's, also one that is set later, else our own. It has the threads
that start inside an attempt carry its context. :func:`uninstall` removes what can be removed and makes the
rest inert. Both may be called any number of times; :func:`capturing` does both, for the length of a session.

``asyncio`` tasks inherit their context. Plain threads and thread pools do not, and agents' tools often run in
them. Invariant: a pool's worker keeps nothing between two jobs. ``opentelemetry-instrumentation-threading``
0.66b1 does not suffice: the worker of a pool stays in the context of the attempt that started it and keeps
that attempt alive, and callers that :data:`~agentlightning.capture.identity.CALLER_SOURCES` find do not reach
the thread.
"""

from __future__ import annotations

import concurrent.futures.thread as pool
import inspect
import logging
import os
import secrets
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from threading import Lock, RLock
from typing import Any

import wrapt
from opentelemetry import context as otel, trace
from opentelemetry.instrumentation.dependencies import get_dependency_conflicts
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from agentlightning.capture.context import attached, current_attempt
from agentlightning.capture.delivery import IGNORED_SCOPES
from agentlightning.capture.identity import thread_context
from agentlightning.capture.processor import AttemptProcessor
from agentlightning.capture.sdk import OPENAI, call_methods

_Proxy: Any = getattr(wrapt, "BaseObjectProxy", wrapt.ObjectProxy)
"""wrapt 2 gave its proxies a new base class."""

Wrapper = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]
"""``(wrapped, instance, args, kwargs) -> result``, as in wrapt; a method's ``instance`` is never ``None``."""


class Patch:
    """Wraps ``owner.name`` when it is made.

    Invariant: after :meth:`undo` our wrapper is out of the chain; below a foreign wrapper that hides it, it
    passes every call through unchanged. Wrappers that others put above ours stay in place.
    """

    def __init__(self, owner: Any, name: str, wrapper: Wrapper) -> None:
        self._owner, self._name = owner, name
        self._own = name in vars(owner)
        self._original: Any = vars(owner)[name] if self._own else getattr(owner, name)
        self._on = True
        bound = inspect.ismethod(self._original) or isinstance(self._original, staticmethod | classmethod)
        if inspect.isclass(owner) and not bound:
            wrapper = _of_method(wrapper)
        self._proxy = wrapt.FunctionWrapper(self._original, wrapper, enabled=lambda: self._on)
        setattr(owner, name, self._proxy)

    def undo(self) -> None:
        """Remove the wrapper. A second call does nothing."""
        self._on = False
        current = vars(self._owner).get(self._name)
        if current is self._proxy:
            if self._own:
                setattr(self._owner, self._name, self._original)
            else:
                delattr(self._owner, self._name)
            return
        while isinstance(current, _Proxy):  # a foreign wrapper above ours: bridge the gap below it
            if current.__wrapped__ is self._proxy:
                current.__wrapped__ = self._original
                return
            current = current.__wrapped__


def _of_method(wrapper: Wrapper) -> Wrapper:
    """Return ``wrapper`` for a method that may be called as a plain function, as ``@agl.agent`` does."""

    def bound(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if instance is None and args:
            instance, *rest = args
            wrapped, args = wrapped.__get__(instance, type(instance)), tuple(rest)
        return wrapper(wrapped, instance, args, kwargs)

    return bound


def _run_in(context: otel.Context, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with attached(context):
        return function(*args, **kwargs)


def patch_threads() -> tuple[Patch, ...]:
    """Patch ``Thread.start`` and ``ThreadPoolExecutor.submit``; the caller undoes the patches."""
    return Patch(threading.Thread, "start", _start), Patch(pool.ThreadPoolExecutor, "submit", _submit)


def _start(wrapped: Callable[..., Any], thread: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    is_worker = getattr(thread, "_target", None) is getattr(pool, "_worker", None)
    if current_attempt() is not None and not is_worker:  # a pool's worker outlives the attempt
        thread.run = partial(_run_in, thread_context(), thread.run)
    return wrapped(*args, **kwargs)


def _submit(wrapped: Callable[..., Any], executor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if current_attempt() is not None and args:
        args = (partial(_run_in, thread_context(), args[0]), *args[1:])
    return wrapped(*args, **kwargs)


_LOG = logging.getLogger(__name__)
_lock = RLock()
_processors: list[tuple[TracerProvider, AttemptProcessor]] = []
"""Our processor of each provider that it was ever added to: OpenTelemetry cannot remove it."""
_patches: list[Patch] = []
"""The patches in place, without those of the openai SDK; empty while capture is off."""
_openai_lock = RLock()
_openai_patches: list[Patch] = []
"""The patches of the openai SDK in place."""


class UnseededIds(IdGenerator):
    """Ids from the system's generator: OpenTelemetry's own repeat whenever an agent seeds ``random``."""

    def generate_span_id(self) -> int:
        """Return 64 bits, not all zero."""
        return secrets.randbits(64) or 1

    def generate_trace_id(self) -> int:
        """Return 128 bits, not all zero."""
        return secrets.randbits(128) or 1


class DefaultTracerProvider(TracerProvider):
    """The provider of a process that has none. Ignored scopes get a tracer that makes no spans at all."""

    def __init__(self) -> None:
        super().__init__(
            sampler=ALWAYS_ON,
            resource=Resource.get_empty(),
            shutdown_on_exit=False,
            id_generator=UnseededIds(),
        )

    def get_tracer(self, instrumenting_module_name: str, *args: Any, **kwargs: Any) -> trace.Tracer:
        """Return a tracer; for an ignored scope one that makes no spans."""
        if instrumenting_module_name in IGNORED_SCOPES:
            return trace.NoOpTracer()
        return super().get_tracer(instrumenting_module_name, *args, **kwargs)


def install(provider: TracerProvider | None = None) -> None:
    """Begin to capture. ``provider``: a tracer provider to record besides the process's."""
    with _lock:
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            _set_own_provider()
        _listen_to(trace.get_tracer_provider())
        if provider is not None:
            _listen_to(provider)
        if not _patches:
            _patches.append(Patch(trace, "set_tracer_provider", _on_set_tracer_provider))
            _patches.extend(patch_threads())
            _instrument_openai()


def uninstall() -> None:
    """Stop capturing and undo what :func:`install` did."""
    with _lock, _openai_lock:
        for _, processor in _processors:
            processor.active = False
        for patch in (*_patches, *_openai_patches):
            patch.undo()
        _patches.clear()
        _openai_patches.clear()
        _unset_own_provider()


def installed() -> bool:
    """Return whether capture is on."""
    return bool(_patches)


def _instrument_openai() -> None:
    """Patch the openai SDK if its version is tested: now, or once the process imports it."""
    if find_spec("openai") is None:
        _LOG.info("the openai SDK is not installed: model calls are captured at the gateway only")
    elif (conflict := get_dependency_conflicts([OPENAI])) is not None:
        _LOG.error("%s: model calls are captured at the gateway only", conflict)
    elif "openai" in sys.modules:
        _patch_openai()
    else:
        wrapt.register_post_import_hook(_patch_openai, "openai")


def _patch_openai(module: object = None) -> None:
    """Patch the methods that carry the openai SDK's calls, once, while capture is on. A thread that imports
    the SDK calls this under the SDK's import lock, so no import runs under ours.
    """
    if not installed():
        return
    methods = call_methods("openai", OPENAI)
    with _openai_lock:
        if installed() and not _openai_patches:
            _openai_patches.extend(Patch(*method) for method in methods)


def _listen_to(provider: Any) -> None:
    """Add our processor to ``provider`` once; switch it on again if it is there already."""
    if not callable(getattr(provider, "add_span_processor", None)):
        return  # a provider without processors (a no-op, a vendor's) cannot be listened to
    processor = next((one for known, one in _processors if known is provider), None)
    if processor is None:
        processor = AttemptProcessor()
        provider.add_span_processor(processor)
        _processors.append((provider, processor))
    processor.active = True


def _set_own_provider() -> None:
    """Make our own provider the process's, so that the user can still set one, which OpenTelemetry allows
    once.
    """
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        _LOG.warning(
            "OTEL_SDK_DISABLED=true switches off the spans that name agents and tools; model calls are "
            "still captured. Unset it to train agents by name."
        )
    known = (provider for provider, _ in _processors if isinstance(provider, DefaultTracerProvider))
    own = next(known, None) or DefaultTracerProvider()
    if hasattr(trace, "_TRACER_PROVIDER"):
        trace._TRACER_PROVIDER = own
    else:
        trace.set_tracer_provider(own)


def _unset_own_provider() -> None:
    if isinstance(getattr(trace, "_TRACER_PROVIDER", None), DefaultTracerProvider):
        trace._TRACER_PROVIDER = None


def _on_set_tracer_provider(
    wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Record the provider that the user sets after :func:`install`, in place of our own."""
    with _lock:
        _unset_own_provider()
        result = wrapped(*args, **kwargs)
        _listen_to(trace.get_tracer_provider())
        return result


_sessions_lock = Lock()
"""Held while instrumentors import frameworks, which ``_lock`` is not: a module that is being imported may set
a tracer provider."""
_users: Counter[type[Any] | None] = Counter()
"""Instrumentor class, or ``None`` for capture itself → sessions that use it, if a session switched it on."""


@contextmanager
def capturing(instrumentors: Sequence[Any]) -> Iterator[None]:
    """Capture within the block, with these instrumentors (singletons of their classes) switched on.

    The sessions of a process share instrumentors. The first session that needs one switches it on, and the
    last session switches it off. What was on before any session (the user's own ``instrument()``) stays on.
    """
    switches = [
        (None, installed(), install, uninstall),
        *(
            (type(one), one.is_instrumented_by_opentelemetry, one.instrument, one.uninstrument)
            for one in instrumentors
        ),
    ]
    with ExitStack() as session:
        with _sessions_lock:
            for key, on, switch_on, switch_off in switches:
                if on and not _users[key]:
                    continue  # the user's own
                if not on:
                    switch_on()
                _users[key] += 1
                session.callback(_leave, key, switch_off)
        yield


def _leave(key: type[Any] | None, switch_off: Callable[[], object]) -> None:
    with _sessions_lock:
        _users[key] -= 1
        if not _users[key]:
            switch_off()
