"""The door by which a driver holds its policy's calls at the gateway."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from agentlightning.algorithms.rl import RLJob
from agentlightning.gateway import Gateway
from agentlightning.keys import Keys


def gateway() -> Gateway:
    return Gateway(SimpleNamespace(), Keys(b"0" * 32))  # type: ignore[arg-type]


def held(gate: Gateway) -> list[str]:
    return gate._gate.policies


async def test_a_job_holds_its_policy() -> None:
    gate = gateway()
    job: Any = RLJob.__new__(RLJob)
    job.context, job.policy = SimpleNamespace(gateway=gate), "solver"
    await job.hold()
    await job.hold()
    assert held(gate) == ["solver"]
    await job.release()
    await job.release()
    assert held(gate) == []
