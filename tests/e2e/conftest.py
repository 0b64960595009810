"""What holds for every whole run of the tests: its runners stop at once."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runners that are told to stop do so at once, instead of waiting for work a little longer."""
    monkeypatch.setattr("agentlightning.runner.runner.POLL", 0.02)
