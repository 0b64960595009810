"""The contract that every framework adapter keeps, for adapters of this suite and of anybody else.

Inherit :class:`AdapterContract` in a test module, say how the framework's agents are built, and pytest runs
them against the scripted model server and compares every call with the server's log. Needs
``pip install "./core[testing]"`` in a checkout and pytest's setting ``asyncio_mode = "auto"``; pytest is
imported here and nowhere else in the package.
"""

from __future__ import annotations

import pytest

for _module in ("calls", "crowds", "faults", "leaving", "recording", "records"):
    pytest.register_assert_rewrite(f"{__name__}.{_module}")  # a failing contract says what it compared

from agentlightning.testing.contract.adapter import AdapterContract  # noqa: E402
from agentlightning.testing.contract.hooks import AdapterHooks  # noqa: E402
from agentlightning.testing.contract.recording import Recording, assert_exact  # noqa: E402
from agentlightning.testing.contract.script import ARGUMENTS, SOLVER, TEAM, TOOL  # noqa: E402

__all__ = [
    "ARGUMENTS",
    "SOLVER",
    "TEAM",
    "TOOL",
    "AdapterContract",
    "AdapterHooks",
    "Recording",
    "assert_exact",
]
