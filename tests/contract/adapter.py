"""The contract of this suite's own adapters: the public one, also on the local engine, with excuses."""

from __future__ import annotations

import pytest
from agl_testing.contract import AdapterContract as PublicContract
from contract.excuses import excuse_of
from contract.on_local_engine import LocalEngineContract


class AdapterContract(PublicContract, LocalEngineContract):
    """The whole contract."""

    def excuse(self, test: pytest.Item) -> str | None:
        """From the list of excuses."""
        found = excuse_of(test)
        return None if found is None else found.reason
