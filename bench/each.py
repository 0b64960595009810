"""Runs the same work for several names, one after the other, so that one that fails does not end the rest."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def each(names: Sequence[str], work: Callable[[str], T]) -> tuple[dict[str, T], list[str]]:
    """Return the result of ``work`` by name, and the names for which a program that it started failed."""
    results: dict[str, T] = {}
    failed: list[str] = []
    for name in names:
        print(f"\n── {name} ──", file=sys.stderr, flush=True)
        try:
            results[name] = work(name)
        except subprocess.CalledProcessError as error:
            print(f"{name}: exit status {error.returncode}", file=sys.stderr)
            failed.append(name)
    return results, failed
