"""Credit of a step whose records are read in pages: the same as of all records at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

import msgspec
import pytest
from contract.rich import RECIPE, RUN, TABLE, make_rich

from agentlightning.algorithms import crediting
from agentlightning.algorithms.crediting import StepCrediting, group_pages
from agentlightning.algorithms.queue import TaskGroups
from agentlightning.credit import assign
from agentlightning.credit.assign import StepCredit
from agentlightning.credit.fingerprint import add_rows, fingerprint_rollouts
from agentlightning.store import SQLiteStore
from agentlightning.types import Recipe, Record, Reward, Rollout, RolloutStatus
from agentlightning.types.failure import read_failure_table

FAILURE = read_failure_table(TABLE)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    folder = await make_rich(tmp_path, steps=1)
    store = SQLiteStore(folder / "store.sqlite", read_only=True)
    yield store
    await store.close()


async def groups_of(store: SQLiteStore) -> TaskGroups:
    """The two groups of the run's step."""
    found: dict[str | None, list[Rollout]] = {}
    for rollout in await store.query_rollouts(run_id=RUN):
        found.setdefault(rollout.group_id, []).append(rollout)
    return list(found.values())


@pytest.mark.parametrize("baseline", ["group", "batch"])
async def test_batch_and_fingerprints_are_those_of_all_records_at_once(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch, baseline: str
) -> None:
    monkeypatch.setattr(crediting, "RECORD_PAGE", 1)  # a page holds one group
    recipe: Recipe = msgspec.structs.replace(RECIPE, baseline=baseline)
    groups = await groups_of(store)
    assert len(groups) == 2
    make = partial(StepCredit, recipe, version=0, failure=FAILURE)
    credit = StepCrediting(store, make, run_id=RUN, step=0)
    for group in groups:  # as with dynamic sampling: the second group is rolled out later
        batch = await credit.add([group])
    records = await store.records([rollout.rollout_id for group in groups for rollout in group])
    whole = assign(records, recipe, version=0, failure=FAILURE)
    assert whole.rows and batch == whole
    made = add_rows(credit.fingerprints.values(), batch, policy="policy", version=0)
    assert made == fingerprint_rollouts(whole, records, run_id=RUN, step=0, policy="policy", version=0)


async def test_a_record_is_read_once_unless_the_batch_is_surveyed(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    records = store.records

    async def counted(rollout_ids: list[str]) -> list[object]:
        read.extend(rollout_ids)
        return await records(rollout_ids)  # type: ignore[return-value]

    monkeypatch.setattr(store, "records", counted)
    groups = await groups_of(store)
    for group_by, times in ((["group"], 1), (["task"], 2)):
        recipe = msgspec.structs.replace(RECIPE, group_by=group_by)
        await StepCrediting(store, partial(StepCredit, recipe), run_id=RUN, step=0).add(groups)
        assert sorted(read) == sorted([r.rollout_id for group in groups for r in group] * times)
        read.clear()


async def test_groups_are_credited_while_others_run_and_the_order_of_their_ends_changes_nothing(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crediting, "LOOK", 0.001)
    first, second = await groups_of(store)
    running = {rollout.rollout_id for rollout in first}
    read: list[str] = []
    records, query = store.records, store.query_rollouts

    async def counted(rollout_ids: list[str]) -> list[object]:
        assert not running.intersection(rollout_ids)
        read.extend(rollout_ids)
        return await records(rollout_ids)  # type: ignore[return-value]

    async def half_done(**filters: object) -> list[Rollout]:
        return [
            msgspec.structs.replace(rollout, status=RolloutStatus.RUNNING)
            if rollout.rollout_id in running
            else rollout
            for rollout in await query(**filters)  # type: ignore[arg-type]
        ]

    half_done.__name__ = "query_rollouts"
    monkeypatch.setattr(store, "records", counted)
    monkeypatch.setattr(store, "query_rollouts", half_done)
    make = partial(StepCredit, RECIPE, version=0, failure=FAILURE)
    credit, over = StepCrediting(store, make, run_id=RUN, step=0), asyncio.Event()
    following = asyncio.create_task(credit.follow([first, second], over))
    while not read:
        await asyncio.sleep(0.001)
    assert not following.done() and sorted(read) == sorted(rollout.rollout_id for rollout in second)
    over.set()
    await following
    running.clear()
    batch = await credit.add([first, second])
    assert len(read) == len(set(read)) == len(first) + len(second)
    ids = [rollout.rollout_id for rollout in [*first, *second]]
    assert list(credit.fingerprints) == ids
    assert batch == assign(await records(ids), RECIPE, version=0, failure=FAILURE)


async def test_what_is_compared_across_groups_is_not_credited_ahead(store: SQLiteStore) -> None:
    recipe: Recipe = msgspec.structs.replace(RECIPE, baseline="batch")
    credit = StepCrediting(store, partial(StepCredit, recipe), run_id=RUN, step=0)
    await credit.follow(await groups_of(store), asyncio.Event())  # returns at once
    assert not credit.fingerprints


def test_pages_hold_whole_groups() -> None:
    groups = [[Rollout(rollout_id=f"{g}-{n}", input=None) for n in range(10)] for g in range(5)]
    pages = list(group_pages(groups))
    assert [len(page) for page in pages] == [20, 20, 10]
    assert [one for page in pages for one in page] == [r.rollout_id for group in groups for r in group]
    assert list(group_pages([])) == []


async def test_what_reads_whole_groups_gives_the_rewards_that_are_credited(store: SQLiteStore) -> None:
    """As the hook ``agl_group_rewards`` does by way of the run's context: ahead of the step, and in it."""
    groups = await groups_of(store)
    read: list[list[str]] = []

    async def graded(rollout_ids: Sequence[str]) -> list[Record]:
        read.append([*rollout_ids])
        records = await store.records(rollout_ids)
        gives = [Reward(value=float(n), returned=True) for n in range(len(records))]
        return [
            msgspec.structs.replace(one, rewards=[reward]) for one, reward in zip(records, gives, strict=True)
        ]

    make = partial(StepCredit, RECIPE, version=0, failure=FAILURE)
    credit = StepCrediting(store, make, run_id=RUN, step=0, read=graded)
    await credit.ended(groups[:1])
    await credit.add(groups)
    for group in groups:
        assert any({rollout.rollout_id for rollout in group} <= {*page} for page in read)  # whole groups
    ids = [rollout.rollout_id for group in groups for rollout in group]
    prints = credit.fingerprints
    given = {one: float(page.index(one)) for page in read for one in page}
    assert {one: prints[one].reward for one in ids} == given  # what is fingerprinted is what was given
    credited = {one: credit.outcomes[one] for one in ids if not prints[one].failure}
    assert credited and credited == {one: given[one] for one in credited}
