"""What this suite's own adapters keep: the public contract, on the local engine too, and the excuses."""

from __future__ import annotations

import pytest
from contract.excuses import excuse_of
from contract.on_local_engine import LocalEngineContract

from agentlightning.testing.contract.adapter import AdapterContract as PublicContract


class AdapterContract(PublicContract, LocalEngineContract):
    """The whole contract."""

    def excuse(self, test: pytest.Item) -> str | None:
        """What the list says."""
        found = excuse_of(test)
        return None if found is None else found.reason
