"""Rewards that an agent returns are gradients of the local driver's loss."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import torch
from contract.model_server import ModelServer

from agentlightning.credit import assign
from agentlightning.gateway import Gateway, Upstream
from agentlightning.keys import Keys
from agentlightning.store import SQLiteStore, Store
from agentlightning.types import (
    Recipe,
    RolloutStatus,
)
from agl_local.training.loss import Terms, policy_loss
from plugins.v03.tests.test_supplied import advantages, emitted, refined, run, supplied

PER_CALL = Recipe(name="t", credit="per_call", baseline="none")


Answers = list[Any]
"""What the openai SDK returned to the agent, in order."""


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    opened = SQLiteStore(":memory:")
    yield opened
    await opened.close()


@pytest.fixture
async def gateway(store: Store) -> AsyncIterator[Gateway]:
    opened = Gateway(store, Keys())
    async with ModelServer(lambda body: body["messages"][-1]["content"][::-1]) as engine:
        opened.add_route(Upstream(policy="policy", url=engine.url, model=engine.model, version=lambda: 4))
        await opened.start()
        yield opened
        await opened.stop()


@pytest.mark.parametrize("how", [emitted, refined, supplied])
async def test_opposite_rewards_are_gradients_of_opposite_sign(
    store: Store, gateway: Gateway, how: Any
) -> None:
    rollout, record = await run(store, gateway, how)
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
