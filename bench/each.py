"""Runs the same work for several names, one after the other, so that one that fails does not end the rest."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


class Unsound(Exception):
    """Why what was done for a name does not count."""


def add_names(parser: argparse.ArgumentParser, what: str, known: Iterable[str]) -> None:
    """Add the argument ``what``: any number of ``known`` names (``choices`` would refuse none)."""

    def checked(name: str) -> str:
        if name not in known:
            raise argparse.ArgumentTypeError(f"unknown: {name}; there are {', '.join(known)}")
        return name

    parser.add_argument(what, nargs="*", type=checked, help=f"of {', '.join(known)}; default: all")


def each(names: Sequence[str], work: Callable[[str], T]) -> tuple[dict[str, T], list[str]]:
    """Return the result of ``work`` by name, and the names for which it raised :class:`Unsound`, or a program
    that it started failed; stderr says why.
    """
    results: dict[str, T] = {}
    failed: list[str] = []
    for name in names:
        print(f"\n── {name} ──", file=sys.stderr, flush=True)
        try:
            results[name] = work(name)
        except (Unsound, subprocess.CalledProcessError) as error:
            print(f"FAILED {name}: {error}", file=sys.stderr, flush=True)
            failed.append(name)
    return results, failed
