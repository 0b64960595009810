"""The suite's ``tally``, which lives in ``agl_testing.contract``."""

from __future__ import annotations

from agl_testing.contract.tally import (
    TALLY as TALLY,
    CountedServer as CountedServer,
    Tally as Tally,
)
