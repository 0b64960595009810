"""What holds for the tests of all adapters.

A failing contract says what it compared. The test that starts four processes is slow.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("contract.on_local_engine")


def pytest_itemcollected(item: pytest.Item) -> None:
    """By default agents of many attempts meet on one loop and in threads; `make test-adapters` runs all."""
    if getattr(item, "originalname", "") == "test_sixteen_agents_over_four_processes":
        item.add_marker(pytest.mark.slow)
