"""What ``make test`` samples and ``make test-slow`` runs whole: long tables of cases, property tests."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

CORE = Path(__file__).parent / "core"
THOROUGH = 100
"""Examples of a property test under the profile ``thorough``; see ``conftest.py``."""


def sampled(cases: Iterable[Any], *kept: int) -> list[Any]:
    """The cases of a parametrization; all but those at the places ``kept`` are marked slow."""
    return [
        case
        if place in kept
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for place, case in enumerate(cases)
    ]


def examples(thorough: int) -> int:
    """The number of examples of a property test: ``thorough``, or in the default run a tenth of it."""
    return thorough if settings().max_examples >= THOROUGH else max(3, thorough // 10)


BATTERIES = (
    *("audit", "cluster", "distill", "examples", "gateway", "judge"),
    *("programs", "schedules", "testing", "trackers", "v03"),
)
"""The plugins that hold commands, faces, trackers and fields of every installation of the suite."""


def loaded_plugins(test: Path) -> str:
    """The value of ``AGL_PLUGINS`` for a test in the file ``test``: none for core's own; for others, those of
    :data:`BATTERIES` that are installed.
    """
    if CORE in test.parents:
        return ""
    return ",".join(name for name in BATTERIES if find_spec(f"agl_{name}"))
