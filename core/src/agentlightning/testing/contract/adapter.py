"""What every framework adapter must keep: inherit :class:`AdapterContract` and build the agents.

The suite runs the framework's own agents against the scripted model server, whose prompt ids come from a chat
template over what it received, and compares each call span with the server's log; then through a gateway.
The hooks to implement are those of ``AdapterHooks``.
"""

from __future__ import annotations

from agentlightning.testing.contract.calls import CallsContract
from agentlightning.testing.contract.crowds import CrowdsContract
from agentlightning.testing.contract.faults import FaultsContract
from agentlightning.testing.contract.leaving import LeavingContract
from agentlightning.testing.contract.records import RecordsContract


class AdapterContract(CallsContract, RecordsContract, FaultsContract, CrowdsContract, LeavingContract):
    """The whole contract."""
