"""Waits for the first import of a package that could call a model, and begins capture then.

Every Python process of a program runs this code, so it imports only the standard library until then.
"""

from __future__ import annotations

import os
import sys
import threading

from agl_programs.inside.import_hook import WATCH_VARIABLE, ImportWatcher, OnImport, warn


def watch() -> None:
    """Watch the packages that the environment names. Capture begins, once in a process, when one of them is
    imported or if one has been imported already.
    """
    if any(isinstance(finder, ImportWatcher) for finder in sys.meta_path):
        return
    starting = threading.Lock()
    started: list[OnImport] = []

    def on_import(name: str) -> None:
        if started:
            started[0](name)
        elif starting.acquire(blocking=False):  # never released: a process begins once
            try:
                from agl_programs.inside.start import begin

                started.append(begin(watcher.roots, name))
            except Exception as error:
                started.append(lambda name: None)
                warn(f"capture could not begin ({type(error).__name__}: {error}); only the gateway records")

    watcher = ImportWatcher(os.environ[WATCH_VARIABLE].split(","), on_import)
    sys.meta_path.insert(0, watcher)
    if there := next((root for root in watcher.roots - {"agentlightning"} if root in sys.modules), None):
        on_import(there)
