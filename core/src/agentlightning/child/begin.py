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
from agentlightning.capture import processors
from agentlightning.capture.context import AttemptContext, process_attempt
from agentlightning.capture.counts import COUNTS
from agentlightning.capture.forked import in_children
from agentlightning.child.frames import Adapted
from agentlightning.child.imports import Told
from agentlightning.child.line import Line
from agentlightning.child.settings import Settings
from agentlightning.plugins import load
from agentlightning.specs import AdapterSpec
from agentlightning.types import LLM

SDKS = ("openai", "anthropic")
"""Packages that call models; the wire layer is put on when one of them has been imported."""

TRIES = 8
"""How often an adapter is tried that something is missing for: a module may be half imported, by whoever
imported the framework.
"""


def begin(roots: set[str], just: str) -> Told:
    """Begin in this process, where the module ``just`` has been executed; the result is to be told each
    further one. ``roots``: what is watched; the roots of the adapters that are installed here are added.
    """
    settings = Settings.read()
    line = Line(settings.door, settings.key)
    line.greet()
    COUNTS.heard = line.count
    process_attempt(_context(settings, line))
    atexit.register(_count_unfinished, line)
    if settings.per_entry:
        from agentlightning.child.entries import Entries

        Entries(line, settings).install()
    adapters = Adapters(settings.adapters, line)
    roots -= {"agentlightning"}
    roots |= adapters.roots
    adapters.imported(just)
    return adapters.imported


def _context(settings: Settings, line: Line) -> AttemptContext:
    return AttemptContext(
        rollout_id=settings.rollout_id,
        attempt_id=settings.attempt_id,
        sink=line.span,
        key=settings.key,
        gateway=settings.gateway,
        tags=settings.tags,
        policies=settings.policies,
        resources={"policy": LLM(endpoint=settings.gateway, model=settings.model, api_key=settings.key)},
        task=settings.task,
    )


def _count_unfinished(line: Line) -> None:
    """What is still under way when the process ends can no longer be recorded."""
    if unfinished := len(processors._open):
        line.count("span-unfinished", unfinished)


class Adapters:
    """The adapters of this process, each put on once, as soon as its framework is there. ``names``: those to
    use; empty: all.
    """

    def __init__(self, names: list[str], line: Line) -> None:
        known = load().adapters
        self._line = line
        self._waiting = [spec for spec in known.values() if not names or spec.name in names]
        self._wire = False
        self._free()
        in_children(self._free)
        self._again = False
        self._tries: Counter[str] = Counter()
        self.roots = {spec.framework.partition(".")[0] for spec in self._waiting}
        for name in names:
            if name not in known:
                line.send(Adapted(name, "it is not installed in the program's environment"))

    def _free(self) -> None:
        self._working = threading.Lock()

    def imported(self, just: str) -> None:
        """``just`` has been imported: put on what has become possible. What is imported meanwhile, here or in
        another thread, is seen by whoever is at it.
        """
        self._again = True
        while self._again and (working := self._working).acquire(blocking=False):
            try:
                self._again = False
                self._put_on(just)
            finally:
                working.release()

    def _put_on(self, just: str) -> None:
        if not self._wire and any(_whole(name, just) for name in SDKS):
            self._wire = True
            self._try("wire", capture.install)
        for spec in [spec for spec in self._waiting if _whole(spec.framework, just)]:
            self._waiting.remove(spec)
            if not self._try(spec.name, partial(_activate, spec)) and self._tries[spec.name] < TRIES:
                self._waiting.append(spec)

    def _try(self, name: str, put_on: Callable[[], None]) -> bool:
        """Whether there is nothing left to do; ``False``: something is being imported that it needs."""
        self._tries[name] += 1
        try:
            put_on()
        except Exception as error:
            self._line.send(Adapted(name, f"{type(error).__name__}: {error}"))
            return not isinstance(error, ImportError)
        self._line.send(Adapted(name))
        return True


def _whole(name: str, just: str) -> bool:
    """The module has been imported, and so has the package it belongs to. ``just``: a module that has been
    executed, whatever its spec still says.
    """
    for part in (name, name.partition(".")[0]):
        module = sys.modules.get(part)
        initializing = getattr(getattr(module, "__spec__", None), "_initializing", False)
        if module is None or (initializing and part != just):
            return False
    return True


def _activate(spec: AdapterSpec) -> None:
    one = spec.instrumentor()
    if not one.is_instrumented_by_opentelemetry:
        one.instrument()
    if not one.is_instrumented_by_opentelemetry:
        raise RuntimeError(f"the installed version is not one it knows: {spec.requires}")
