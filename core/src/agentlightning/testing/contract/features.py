"""The features that a table of adapters has columns for.

A test says with ``@feature("stream")`` which of them it decides.
"""

from __future__ import annotations

from typing import NoReturn

import pytest

FEATURES = ("sync", "async", "stream", "multi-agent", "tools", "structured", "retries", "concurrency")
LACKS = "lacks: "
"""How the reason of a skipped test begins when the framework itself has no such thing."""


def feature(*names: str) -> pytest.MarkDecorator:
    """A test decides these cells of its framework's row."""
    wrong = set(names) - set(FEATURES)
    if wrong:
        raise ValueError(f"{', '.join(sorted(wrong))}: the features are {', '.join(FEATURES)}")
    return pytest.mark.feature(*names)


def features_of(item: pytest.Item) -> list[str]:
    """The cells that a test decides, its class's and its parameters' included."""
    named = {name for mark in item.iter_markers("feature") for name in mark.args}
    return [name for name in FEATURES if name in named]


def lacking(reason: str) -> NoReturn:
    """End a test: the framework has nothing of the kind, so there is nothing to keep."""
    pytest.skip(LACKS + reason)


STREAM = pytest.mark.parametrize(
    "stream", [pytest.param(False, id="whole"), pytest.param(True, id="stream", marks=feature("stream"))]
)
