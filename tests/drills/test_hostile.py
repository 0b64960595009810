"""The accounts of ``make hostile``: what nothing explains is found, and each misdeed has its turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from agentlightning.store import SQLiteStore
from agentlightning.types import AttemptStatus, Rollout

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCH))
    for name in ("AGL_HOSTILE_MOST", "AGL_HOSTILE_WITNESS"):
        monkeypatch.delenv(name, raising=False)
    import hostile_agents.run as found

    yield found


async def test_what_nothing_explains_is_lost(bench: ModuleType) -> None:
    store = SQLiteStore(":memory:")
    ends = {
        "returns nan": (AttemptStatus.FAILED, "bad-reward: nan"),
        "raises an exit": (AttemptStatus.SUCCEEDED, None),
    }
    ids = {}
    for name, (status, reason) in ends.items():
        queued = await store.enqueue_rollout({"do": name}, run_id="r")
        lease = await store.start_attempt(queued.rollout_id)
        ids[name] = lease.rollout.rollout_id
        await store.update_attempt(ids[name], lease.attempt.attempt_id, status, reason=reason)
    account = bench.Account()
    account.made[ids["returns nan"]] = 1
    noted = {
        "answered": [
            (ids["returns nan"], "/v1"),
            (ids["returns nan"], "/v1"),
            (ids["raises an exit"], "/v1"),
        ],
        "misdeed": [(rollout_id, name) for name, rollout_id in ids.items()],
    }
    found = await bench.unexplained(store, "r", account, noted)
    assert (found["hostile"], found["lost_calls"], found["lost_records"]) == (2, 2, 1)
    assert found["bad_records"] == 1 and list(found["unexplained"]) == ["raises an exit"]
    account.made.update({ids["returns nan"]: 1, ids["raises an exit"]: 1})
    assert (await bench.unexplained(store, "r", account, noted))["lost_calls"] == 0
    await store.close()


def test_each_way_has_its_turn(bench: ModuleType) -> None:
    from hostile_agents.agent import vice_of
    from hostile_agents.vices import VICES

    def way(step: int, task: int, sample: int = 0, mode: str = "train") -> str | None:
        group = f"run/train/{step}/{task}"
        return vice_of(Rollout(rollout_id="r", group_id=group, sample=sample, mode=mode))

    ways = [way(step, task) for step in range(40) for task in range(8)]
    assert ways[: len(VICES)] == list(VICES) and len([w for w in ways if w]) == 300
    assert way(0, 0, sample=1) is None and way(0, 0, mode="val") is None
