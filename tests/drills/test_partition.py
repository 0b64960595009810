"""The drill of partitions, short: see :mod:`drills.partition`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from drills import partition


@pytest.mark.nightly
def test_partitions_lose_and_double_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    if (why := partition.permitted()) is not None:
        pytest.skip(f"no network namespaces here: {why}")
    assert partition.main(["--cuts", "4"]) == 0
    found: dict[str, Any] = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert found["cuts"] == 4 and found["lost"] == found["doubled"] == found["foreign_access"] == 0
