"""Renew locks after a fork: only the forking thread lives on, and nobody releases another thread's lock."""

from __future__ import annotations

import os
from collections.abc import Callable


def after_fork_in_child(renew: Callable[[], None]) -> None:
    """Call ``renew`` in every process that this one forks, before the process's own code runs."""
    if hasattr(os, "register_at_fork"):  # systems without it have no fork
        os.register_at_fork(after_in_child=renew)
