"""The doors by which a driver holds its policy's calls: at the gateway, and of its own policy only."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agentlightning.algorithms.multi_policy import PolicyJob, SharedJob
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


async def test_a_driver_of_several_holds_its_own_policy() -> None:
    gate = gateway()
    job: Any = SimpleNamespace(run_id="r", recipe=None, steps=1, first_step=0, seed=1, folder=Path("f"))
    table = SharedJob(job, ["wolf", "villager"], gate)
    wolf, villager = (PolicyJob(table, name) for name in table.names)
    await wolf.hold()
    assert held(gate) == ["wolf"]
    await villager.hold()
    await wolf.release()
    assert held(gate) == ["villager"]
    await villager.release()
