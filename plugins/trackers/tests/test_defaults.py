"""Which trackers a run has by default."""

from __future__ import annotations

import pytest

from agentlightning.plugins.manager import build
from agentlightning.trackers import tracker_choices


@pytest.mark.plugins
def test_the_display_of_a_terminal_stands_in_for_the_lines() -> None:
    assert list(tracker_choices(build().trackers, None)) == ["files", "console", "plot"]
