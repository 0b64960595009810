"""What a run of the program is worth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import agentlightning as agl
from reward import score


def graded(task: Mapping[str, Any], result: agl.CommandResult) -> float:
    """Return the reward of what the program wrote."""
    return score(task, result.stdout)
