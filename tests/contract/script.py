"""The suite's ``script``, which lives in ``agentlightning.testing.contract``."""

from __future__ import annotations

from agentlightning.testing.contract.script import (
    ARGUMENTS as ARGUMENTS,
    SOLVER as SOLVER,
    TEAM as TEAM,
    TOOL as TOOL,
    TYPED as TYPED,
    Failing as Failing,
    say as say,
)
