"""How many CPU threads to compute with where nobody says."""

from __future__ import annotations

import os

MOST = 8
"""More threads gain little for the matrices of models that a CPU can train."""


def auto_threads() -> int:
    """The cores that this process may run on, at most ``MOST``."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return min(cores, MOST)
