"""What holds for the tests of all adapters.

A failing contract says what it compared. By default one framework runs the test that starts four processes.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("contract.on_local_engine")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark that test slow for the others; `make test-adapters` runs it for all."""
    crowd = getattr(item, "originalname", "") == "test_sixteen_agents_over_four_processes"
    if crowd and "/openai_sdk/" not in item.nodeid:
        item.add_marker(pytest.mark.slow)
