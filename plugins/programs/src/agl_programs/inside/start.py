"""Begins capture in a process of a program: sets its attempt, and instruments SDKs and frameworks.

It runs at the first import of a package that could call a model. The adapter in the program's environment
instruments a framework once that framework has been imported. Invariant: a failure to instrument is reported
to ``agl run`` and does not disturb the program.
"""

from __future__ import annotations

import atexit
import sys
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial

from agentlightning import capture
from agentlightning.capture.context import current_attempt, set_process_attempt
from agentlightning.capture.delivery import COUNTS, after_fork_in_child, give_up_calls
from agentlightning.capture.processor import unfinished_spans
from agentlightning.plugins.manager import load
from agentlightning.specs import AdapterSpec
from agl_programs.inside.exporter import SpanExporter
from agl_programs.inside.import_hook import OnImport, watched_root
from agl_programs.inside.settings import ChildSettings

SDKS = ("openai", "anthropic")
"""Packages that call models: the import of one activates the wire layer."""
MAX_TRIES = 8
"""Attempts to activate an adapter that raises ImportError: a module that it needs may be half imported."""


def begin(roots: set[str], loaded: str) -> OnImport:
    """Begin capture in this process, after the import of module ``loaded``. Return the function to call after
    each further import. The adapters' frameworks are added to ``roots``, the watched packages.
    """
    settings = ChildSettings.read()
    exporter = SpanExporter(settings.store, settings.key)
    exporter.report()
    COUNTS.listener = lambda reason, times: exporter.report()
    set_process_attempt(settings.context(partial(exporter.span, settings.key)))
    atexit.register(exporter.flush)
    atexit.register(_count_unfinished)
    if settings.per_entry:
        from agl_programs.inside.entries import wrap_entries

        wrap_entries(exporter, settings)
    adapters = AdapterActivator(settings.adapters, exporter)
    roots -= {"agentlightning"}
    roots |= adapters.roots
    adapters.imported(loaded)
    return adapters.imported


def _count_unfinished() -> None:
    """End the calls that were not read to the end, and count the spans that have not ended when the process
    ends, because they are not recorded.
    """
    if (context := current_attempt()) is not None:
        give_up_calls(context.attempt_id)
    if unfinished := unfinished_spans():
        COUNTS.add("span-unfinished", unfinished)


class AdapterActivator:
    """Activates each adapter once its framework has been imported. ``names``: adapters to use, or all."""

    def __init__(self, names: list[str], exporter: SpanExporter) -> None:
        known = load().adapters
        self._exporter = exporter
        self._pending = [spec for spec in known.values() if not names or spec.name in names]
        self._wire_tried = False
        self._renew_lock()
        after_fork_in_child(self._renew_lock)
        self._again = False
        self._tried: Counter[str] = Counter()
        self.roots = {watched_root(spec.framework) for spec in self._pending}
        for name in names:
            if name not in known:
                exporter.adapter(name, "it is not installed in the program's environment")

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def imported(self, loaded: str) -> None:
        """Activate the adapters that are ready after the import of module ``loaded``. Imports that happen
        meanwhile, in this or another thread, are handled by the call that holds the lock.
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
        """Try to activate an adapter. Return ``False`` if a module that it needs is not imported yet."""
        self._tried[name] += 1
        try:
            activate()
        except Exception as error:
            self._exporter.adapter(name, f"{type(error).__name__}: {error}")
            return not isinstance(error, ImportError)
        self._exporter.adapter(name)
        return True


def _fully_imported(name: str, loaded: str) -> bool:
    """Return whether a module and its package have been imported. ``loaded``: a module that has been
    executed, even if its spec says that it is initializing.
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
        raise RuntimeError(f"the installed version is not supported: {spec.requires}")
