"""Capture begins in a process of a program: its attempt is named, SDKs and frameworks are instrumented.

This runs when the first package is imported that could call a model; frameworks are instrumented when they
have been imported, by the adapters that are installed beside them. Invariant: a failure to instrument is told
to ``agl run``, and leaves the program alone.
"""

from __future__ import annotations

import atexit
import sys
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial

from agentlightning import capture
from agentlightning.capture.context import AttemptContext, set_process_attempt
from agentlightning.capture.counts import COUNTS
from agentlightning.capture.fork import after_fork_in_child
from agentlightning.capture.spans import processors
from agentlightning.plugins.manager import load
from agentlightning.run_program.inside.exporter import SpanExporter
from agentlightning.run_program.inside.import_hook import OnImport
from agentlightning.run_program.inside.settings import ChildSettings
from agentlightning.specs import AdapterSpec
from agentlightning.types import LLM

SDKS = ("openai", "anthropic")
"""Packages that call models; the wire layer is put on when one of them has been imported."""

MAX_TRIES = 8
"""How often an adapter is tried that something is missing for: a module may be half imported, by whoever
imported the framework.
"""


def begin(roots: set[str], loaded: str) -> OnImport:
    """Begin in this process, where the module ``loaded`` has been executed; the result is to be told each
    further one. ``roots``: what is watched; the roots of the adapters that are installed here are added.
    """
    settings = ChildSettings.read()
    exporter = SpanExporter(settings.store, settings.key)
    exporter.report()
    COUNTS.listener = exporter.count
    set_process_attempt(_context(settings, exporter))
    atexit.register(exporter.flush)
    atexit.register(_count_unfinished)
    if settings.per_entry:
        from agentlightning.run_program.inside.entries import EntryWrapper

        EntryWrapper(exporter, settings).install()
    adapters = AdapterActivator(settings.adapters, exporter)
    roots -= {"agentlightning"}
    roots |= adapters.roots
    adapters.imported(loaded)
    return adapters.imported


def _context(settings: ChildSettings, exporter: SpanExporter) -> AttemptContext:
    return AttemptContext(
        rollout_id=settings.rollout_id,
        attempt_id=settings.attempt_id,
        sink=exporter.sink(settings.key),
        key=settings.key,
        gateway=settings.gateway,
        tags=settings.tags,
        policies=settings.policies,
        resources={"policy": LLM(endpoint=settings.gateway, model=settings.model, api_key=settings.key)},
        task=settings.task,
    )


def _count_unfinished() -> None:
    """What is still under way when the process ends can no longer be recorded."""
    if unfinished := len(processors._attempt_by_span):
        COUNTS.add("span-unfinished", unfinished)


class AdapterActivator:
    """The adapters of this process, each put on once, as soon as its framework is there. ``names``: those to
    use; empty: all.
    """

    def __init__(self, names: list[str], exporter: SpanExporter) -> None:
        known = load().adapters
        self._exporter = exporter
        self._pending = [spec for spec in known.values() if not names or spec.name in names]
        self._wire_tried = False
        self._renew_lock()
        after_fork_in_child(self._renew_lock)
        self._again = False
        self._tried: Counter[str] = Counter()
        self.roots = {spec.framework.partition(".")[0] for spec in self._pending}
        for name in names:
            if name not in known:
                exporter.adapter(name, "it is not installed in the program's environment")

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def imported(self, loaded: str) -> None:
        """``loaded`` has been imported: activate what has become possible. Modules imported meanwhile, here
        or in another thread, are seen by the call that holds the lock.
        """
        self._again = True
        while self._again and (lock := self._lock).acquire(blocking=False):
            try:
                self._again = False
                self._activate_ready(loaded)
            finally:
                lock.release()

    def _activate_ready(self, loaded: str) -> None:
        if not self._wire_tried and any(_fully_imported(name, loaded) for name in SDKS):
            self._wire_tried = True
            self._try_activate("wire", capture.install)
        for spec in [spec for spec in self._pending if _fully_imported(spec.framework, loaded)]:
            self._pending.remove(spec)
            if (
                not self._try_activate(spec.name, partial(_activate_adapter, spec))
                and self._tried[spec.name] < MAX_TRIES
            ):
                self._pending.append(spec)

    def _try_activate(self, name: str, activate: Callable[[], None]) -> bool:
        """Whether there is nothing left to do; ``False``: something is being imported that it needs."""
        self._tried[name] += 1
        try:
            activate()
        except Exception as error:
            self._exporter.adapter(name, f"{type(error).__name__}: {error}")
            return not isinstance(error, ImportError)
        self._exporter.adapter(name)
        return True


def _fully_imported(name: str, loaded: str) -> bool:
    """The module has been imported, and so has the package it belongs to. ``loaded``: a module that has been
    executed, whatever its spec still says.
    """
    for part in (name, name.partition(".")[0]):
        module = sys.modules.get(part)
        initializing = getattr(getattr(module, "__spec__", None), "_initializing", False)
        if module is None or (initializing and part != loaded):
            return False
    return True


def _activate_adapter(spec: AdapterSpec) -> None:
    one = spec.instrumentor()
    if not one.is_instrumented_by_opentelemetry:
        one.instrument()
    if not one.is_instrumented_by_opentelemetry:
        raise RuntimeError(f"the installed version is not one it knows: {spec.requires}")
