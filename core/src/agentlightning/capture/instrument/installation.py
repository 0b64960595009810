"""Switching capture on and off for this process.

:func:`install` instruments the openai SDK and adds our processors to the tracer provider of the process: the
user's, also one that is set later, else our own. :func:`uninstall` takes out what can be taken out
and makes the rest inert. Both may be called any number of times.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from importlib.util import find_spec
from threading import RLock
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from agentlightning.capture.instrument.patching import Patch
from agentlightning.capture.instrument.threads import patch_threads
from agentlightning.capture.sdk.openai import OpenAIInstrumentor
from agentlightning.capture.spans.processors import (
    IGNORED_SCOPES,
    DeliverProcessor,
    StampProcessor,
    SwitchableProcessor,
)

_LOG = logging.getLogger(__name__)


class DefaultTracerProvider(TracerProvider):
    """The provider of a process that has none. Ignored scopes get a tracer that makes no spans at all."""

    def __init__(self) -> None:
        super().__init__(sampler=ALWAYS_ON, resource=Resource.get_empty(), shutdown_on_exit=False)

    def get_tracer(self, instrumenting_module_name: str, *args: Any, **kwargs: Any) -> trace.Tracer:
        """A tracer; for an ignored scope one that makes no spans."""
        if instrumenting_module_name in IGNORED_SCOPES:
            return trace.NoOpTracer()
        return super().get_tracer(instrumenting_module_name, *args, **kwargs)


class _Installation:
    """What :func:`install` did, so that :func:`uninstall` can undo it."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.providers: list[tuple[TracerProvider, tuple[SwitchableProcessor, ...]]] = []
        self.own: DefaultTracerProvider | None = None
        self.patches: tuple[Patch, ...] = ()

    def listen_to(self, provider: Any) -> None:
        """Add our processors to ``provider`` once; switch them on again if they are there already."""
        if not callable(getattr(provider, "add_span_processor", None)):
            return  # a provider without processors (a no-op, a vendor's) cannot be listened to
        for known, processors in self.providers:
            if known is provider:
                for processor in processors:
                    processor.active = True
                return
        added = StampProcessor(), DeliverProcessor()
        for processor in added:
            provider.add_span_processor(processor)
        self.providers.append((provider, added))

    def install_own_provider(self) -> TracerProvider | None:
        """Make our own provider the process's, so that the user can still set one: OpenTelemetry allows it
        once.
        """
        if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
            _LOG.warning(
                "OTEL_SDK_DISABLED=true switches off the spans that name agents and tools; model calls are "
                "still captured. Unset it to train agents by name."
            )
        if self.own is None:
            self.own = DefaultTracerProvider()
        if hasattr(trace, "_TRACER_PROVIDER"):
            trace._TRACER_PROVIDER = self.own
        else:
            trace.set_tracer_provider(self.own)
        return self.own


_installed = _Installation()


def install(provider: TracerProvider | None = None) -> None:
    """Begin to capture. ``provider``: a tracer provider to record besides the process's."""
    with _installed.lock:
        wire = OpenAIInstrumentor()
        if find_spec("openai") is None:
            _LOG.info("the openai SDK is not installed: model calls are captured at the gateway only")
        elif not wire.is_instrumented_by_opentelemetry:
            wire.instrument()
        present: Any = trace.get_tracer_provider()
        if isinstance(present, trace.ProxyTracerProvider):
            present = _installed.install_own_provider()
        _installed.listen_to(present)
        if provider is not None:
            _installed.listen_to(provider)
        if not _installed.patches:
            _installed.patches = (
                Patch(trace, "set_tracer_provider", _on_set_tracer_provider),
                *patch_threads(),
            )


def uninstall() -> None:
    """Stop capturing and undo what :func:`install` did."""
    with _installed.lock:
        wire = OpenAIInstrumentor()
        if wire.is_instrumented_by_opentelemetry:
            wire.uninstrument()
        for _, processors in _installed.providers:
            for processor in processors:
                processor.active = False
        for patch in _installed.patches:
            patch.undo()
        _installed.patches = ()
        if getattr(trace, "_TRACER_PROVIDER", None) is _installed.own:
            trace._TRACER_PROVIDER = None


def installed() -> bool:
    """Whether capture is on."""
    return bool(_installed.patches)


def _on_set_tracer_provider(
    wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The user sets a provider after us: it replaces ours, and we record it."""
    with _installed.lock:
        if getattr(trace, "_TRACER_PROVIDER", None) is _installed.own:
            trace._TRACER_PROVIDER = None
        result = wrapped(*args, **kwargs)
        _installed.listen_to(trace.get_tracer_provider())
        return result
