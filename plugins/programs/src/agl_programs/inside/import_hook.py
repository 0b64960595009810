"""An import hook that reports when a package has been imported completely.

It does not change finders, loaders and specs for good. Every Python process of a program loads this module,
so it imports only the standard library.

Invariant: a package is reported when no thread is importing anything below it, so the listener may import all
of it. The listener is called without a lock.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

WATCH_VARIABLE = "AGL_WATCH"
"""Environment variable: packages whose import begins capture, separated by commas."""
OnImport = Callable[[str], None]
SHARED = frozenset({"google"})
"""Names that packages of many owners share: the package below is watched, not every import of one."""


def watched_root(module: str) -> str:
    """Return the package to watch for a framework's ``module``."""
    parts = module.split(".")
    return ".".join(parts[: 2 if parts[0] in SHARED else 1])


class ImportWatcher:
    """A finder on ``sys.meta_path`` that asks the other finders, and notices when the modules that they find
    have been executed. ``roots``: packages to watch. ``on_import`` is called with the last module that was
    imported below a root.
    """

    def __init__(self, roots: Sequence[str], on_import: OnImport) -> None:
        self.roots = set(roots)
        self._on_import = on_import
        self._depth: Counter[tuple[int, str]] = Counter()
        """Thread and root → number of modules that are being executed."""
        self._lock = threading.RLock()
        os.register_at_fork(after_in_child=self._forked)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that a later finder returns."""
        root = watched_root(name)
        if root not in self.roots or self not in sys.meta_path:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find else None
            if spec is not None:
                self._notify_after(spec.loader, root)
                return spec
        return None

    def _notify_after(self, loader: Any, root: str) -> None:
        """Notice when ``loader`` has executed its module. A loader that is a class is shared, and is not
        changed.
        """
        execute = getattr(loader, "exec_module", None)
        if execute is None or isinstance(loader, type):
            return

        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)
            at = threading.get_ident(), root
            with self._lock:
                self._depth[at] += 1
            try:
                execute(module)
            finally:
                self._module_done(at, module.__name__)

        try:
            loader.exec_module = exec_module
        except AttributeError:  # a loader that takes no attribute: its module goes unnoticed
            pass

    def _module_done(self, at: tuple[int, str], name: str) -> None:
        _, root = at
        with self._lock:
            self._depth[at] -= 1
            self._depth += Counter()  # drops counts of zero
            complete = all(other != root for _, other in self._depth)
        if complete and root in self.roots:
            self._on_import(name)

    def _forked(self) -> None:
        """Renew the lock in a forked process: only this thread lives, and another may have held the lock."""
        self._lock, here = threading.RLock(), threading.get_ident()
        self._depth = Counter({at: times for at, times in self._depth.items() if at[0] == here})


def warn(line: str) -> None:
    """Print why the program is not captured in full, one line on its stderr."""
    print(f"agl: {line}", file=sys.stderr)
