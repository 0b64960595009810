"""What edits a step's batch (hook ``agl_batch_edits``) has the batch before it is counted and trained, and a
link of its own in the run's chain.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agentlightning.algorithms.journal import Journal
from agentlightning.algorithms.rl import RLJob
from agentlightning.credit.digest import compute_head
from agentlightning.store import SQLiteStore
from agentlightning.types import Batch


class Adds:
    """Adds its name to the batch's metrics."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def edit(self, step: int, batch: Batch) -> Batch:
        return Batch(rows=[], metrics={**batch.metrics, self.name: float(step + len(batch.metrics))})


async def test_edits_follow_each_other_and_the_driver_gets_what_they_leave() -> None:
    recorded: list[Any] = []

    async def collect(step: int, credit: Any) -> Batch:
        return Batch(rows=[], metrics={"credit": 1.0})

    async def record(step: int, batch: Batch, fingerprints: Any) -> None:
        recorded.append((step, batch))

    job: Any = RLJob.__new__(RLJob)
    job.context = SimpleNamespace(guards=[], edits=[Adds("first"), Adds("second")])
    job.schedule = SimpleNamespace(collect=collect)
    job._crediting = lambda step: SimpleNamespace(reason="", fingerprints={})
    job._record_step = record
    batch = await job.collect(5)
    assert batch.metrics == {"credit": 1.0, "first": 6.0, "second": 7.0}
    assert recorded == [(5, batch)]


async def test_an_edit_is_a_link_that_the_next_one_is_bound_to(tmp_path: Path) -> None:
    store = SQLiteStore(":memory:")
    await store.add_run("r", {})
    journal = Journal(store, "r", tmp_path)
    await journal.begin({"seed": 1})
    await journal.entry("edit", "3/me", {"scores": {"call": "AAAA"}, "step": 3.0})
    await journal.entry("search", "later", {})
    _, edit, after = await store.query_links("r")
    assert (edit.kind, edit.name, edit.body) == ("edit", "3/me", {"scores": {"call": "AAAA"}, "step": 3})
    assert edit.head == compute_head(edit) and after.previous == edit.head and edit.fingerprints == []
    await store.close()
