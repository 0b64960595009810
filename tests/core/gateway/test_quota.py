"""How many bytes an attempt may send to a gateway: one number, counted and said."""

from __future__ import annotations

import json

import pytest

from agentlightning.keys import ByteQuota, Claims
from agentlightning.types.base import RequestRefused


async def test_an_attempt_that_sent_its_bytes_is_refused_and_the_others_go_on(world):
    world.gateway._pipeline.quota.limit = 5_000
    assert (await world.post({"note": "x" * 4_000})).status == 200
    got = await world.post({"note": "x" * 4_000})
    error = json.loads(got.raw)["error"]
    assert (got.status, error["code"]) == (413, "attempt-bytes") and "5000 bytes" in error["message"]
    assert world.store.counted["refused", "attempt-bytes", "at-1"] == 1 and len(world.store.calls) == 1
    assert (await world.post(key=world.open("2"))).status == 200
    assert (await world.post()).status == 200  # what is small enough still fits


def test_the_attempt_that_came_first_is_forgotten_first():
    quota = ByteQuota(10)
    quota.MAX_ATTEMPTS = 2
    for name in "abc":
        quota.take(Claims("", "ro", name, 1, 0.0), 10)
    quota.take(Claims("", "ro", "a", 1, 0.0), 10)
    with pytest.raises(RequestRefused, match="attempt c has sent 10 bytes"):
        quota.take(Claims("", "ro", "c", 1, 0.0), 1)
