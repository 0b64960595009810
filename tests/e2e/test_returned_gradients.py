"""Rewards that an agent returns are gradients of the local driver's loss."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import torch
from contract.model_server import ModelServer

from agentlightning.credit import assign
from agentlightning.store import SQLiteStore, Store
from agentlightning.types import (
    RolloutStatus,
)
from agl_local.training.loss import Terms, policy_loss
from plugins.v03.tests.test_supplied import PER_CALL, advantages, emitted, refined, run, supplied


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    opened = SQLiteStore(":memory:")
    yield opened
    await opened.close()


@pytest.mark.parametrize("how", [emitted, refined, supplied])
async def test_opposite_rewards_are_gradients_of_opposite_sign(store: Store, how: Any) -> None:
    async with ModelServer() as engine:
        rollout, record = await run(store, engine, how)
    assert rollout.status == RolloutStatus.SUCCEEDED and rollout.reason is None
    batch = assign([record], PER_CALL, version=4)
    calls = sorted((c for c in record.calls if c.call_id in advantages(batch)), key=lambda c: c.sequence)
    assert [advantages(batch)[c.call_id] for c in calls] == [1.0, -1.0]
    for row in batch.rows:
        logp = torch.tensor(row.logprobs, requires_grad=True)
        n = len(row.token_ids)
        terms = Terms(
            logp=logp,
            old=torch.tensor(row.logprobs),
            advantages=torch.tensor(row.advantages),
            weights=torch.tensor(row.weights),
            segments=torch.zeros(n, dtype=torch.long),
            stale=torch.zeros(n, dtype=torch.bool),
        )
        policy_loss(terms, PER_CALL).total.backward()
        assert logp.grad is not None
        for segment in row.segments:
            up = -logp.grad[segment.start : segment.end] * segment.advantage
            assert (up > 0).all()  # towards the response where its reward is positive, away where negative
