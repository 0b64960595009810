"""The contract of framework adapters, as pytest tests.

To test an adapter, inherit :class:`AdapterContract` in a test module and implement the hooks of
:class:`AdapterHooks`, which build the framework's agents. The tests run these agents against the scripted
model server and through a gateway, and compare every call with the server's log. They need
``pip install ./core ./plugins/{cluster,gateway,programs} "./plugins/testing[contract]"`` in a checkout and
pytest's setting ``asyncio_mode = "auto"``. No other subpackage imports pytest.
"""

from __future__ import annotations

import pytest

for _module in ("calls", "crowds", "faults", "leaving", "recording", "records"):
    pytest.register_assert_rewrite(f"{__name__}.{_module}")  # for pytest's detailed assertion messages

from agl_testing.contract.calls import CallsContract  # noqa: E402
from agl_testing.contract.crowds import CrowdsContract  # noqa: E402
from agl_testing.contract.faults import FaultsContract  # noqa: E402
from agl_testing.contract.hooks import AdapterHooks  # noqa: E402
from agl_testing.contract.leaving import LeavingContract  # noqa: E402
from agl_testing.contract.recording import Recording, assert_exact  # noqa: E402
from agl_testing.contract.records import RecordsContract  # noqa: E402
from agl_testing.contract.script import ARGUMENTS, SOLVER, TEAM, TOOL  # noqa: E402

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


class AdapterContract(CallsContract, RecordsContract, FaultsContract, CrowdsContract, LeavingContract):
    """The whole contract."""
