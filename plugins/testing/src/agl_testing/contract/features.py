"""The features in the columns of the adapters' table. ``@feature("stream")`` marks the tests of a feature."""

from __future__ import annotations

from typing import NoReturn

import pytest

FEATURES = ("sync", "async", "stream", "multi-agent", "tools", "structured", "retries", "concurrency")
LACKS = "lacks: "
"""Beginning of the reason of a test that is skipped because the framework lacks the feature."""


def feature(*names: str) -> pytest.MarkDecorator:
    """Mark a test of these features. Raise ``ValueError`` for an unknown one."""
    wrong = set(names) - set(FEATURES)
    if wrong:
        raise ValueError(f"{', '.join(sorted(wrong))}: the features are {', '.join(FEATURES)}")
    return pytest.mark.feature(*names)


def features_of(item: pytest.Item) -> list[str]:
    """Return the features that a test, its class and its parameters are marked with."""
    named = {name for mark in item.iter_markers("feature") for name in mark.args}
    return [name for name in FEATURES if name in named]


def lacking(reason: str) -> NoReturn:
    """Skip the test because the framework lacks the feature."""
    pytest.skip(LACKS + reason)


STREAM = pytest.mark.parametrize(
    "stream", [pytest.param(False, id="whole"), pytest.param(True, id="stream", marks=feature("stream"))]
)
