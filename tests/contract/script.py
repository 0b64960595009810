"""The suite's ``script``, which lives in ``agl_testing.contract``."""

from __future__ import annotations

from agl_testing.contract.script import (
    ARGUMENTS as ARGUMENTS,
    SOLVER as SOLVER,
    TEAM as TEAM,
    TOOL as TOOL,
    TYPED as TYPED,
    Failing as Failing,
    say as say,
)
