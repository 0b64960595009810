"""A run that breaks off goes on from its last checkpoint, bit for bit; a broken step runs as new attempts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from e2e.test_line import Watch, trainer

from agentlightning import GRPO
from agentlightning.hookspecs import hookimpl
from agentlightning.store import SQLiteStore
from agentlightning.train.run_folder import RunError
from agentlightning.types import AttemptStatus, Batch, UsageError
from agl_local.policy.checkpoint import latest
from agl_local.policy.folder import fingerprint, load_policy
from calc_x.agent import solve
from calc_x.datasets import load

TRAIN, HELD_OUT = load("generated:train", limit=50), load("generated:heldout", limit=4)


class Crash(BaseException):
    """Stands for whatever ends a process: nothing catches it."""


class Breaks(Watch):
    """Ends the run when the rows of step ``at`` are built, before they are trained."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    @hookimpl
    def agl_rows_built(self, step: int, batch: Batch) -> None:
        self.batches.append(batch)
        if step == self.at:
            raise Crash


async def life(
    folder: Path, watch: Watch, *, steps: int = 4, save_every: int = 2, **options: Any
) -> dict[str, Any]:
    """One life of the run ``r``; digests of the parameters at each step."""
    given = {"threads": 1, "engine": "thread", "max_len": 512, "digest_every": 1, "save_every": save_every}
    made = trainer(folder, watch, steps=steps, batch_size=2, run="r", options=given, **options)
    return await made.afit(solve, TRAIN, HELD_OUT)


async def broken(folder: Path) -> tuple[Breaks, Path]:
    """A run that finished steps 0 to 2 and broke off in step 3; its checkpoint is that of two steps."""
    first = Breaks(at=3)
    with pytest.raises(Crash):
        await life(folder, first)
    return first, folder / "r"


@pytest.mark.slow
async def test_a_run_goes_on_from_its_checkpoint_and_repeats_only_what_came_after(tmp_path: Path) -> None:
    first, folder = await broken(tmp_path)
    assert [r.step for r in first.reports] == [0, 1, 2]
    checkpoint = latest(folder / "checkpoints")
    assert checkpoint is not None and checkpoint.step == 2
    saved = fingerprint(load_policy(checkpoint.folder / "policy").model)
    assert saved == first.reports[1].params_digest  # bit for bit the state after the second step

    second = Watch()
    summary = await life(tmp_path, second, resume=True)
    assert [r.step for r in second.reports] == [2, 3]  # 0 and 1 are never trained again
    # a step without spread moves nothing
    steps = [bool(r.metrics["optimizer_steps"]) for r in second.reports]
    assert [r.policy_version for r in second.reports] == [
        checkpoint.version + sum(steps[: n + 1]) for n in range(2)
    ]
    versions = {v for row in second.batches[0].rows for v, m in zip(row.versions, row.mask, strict=True) if m}
    assert versions == {checkpoint.version}
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    assert [line["params_digest"] for line in lines[:2]] == [r.params_digest for r in first.reports[:2]]
    evaluations = [
        json.loads(line)["name"] for line in (folder / "evaluations.jsonl").read_text().splitlines()
    ]
    assert evaluations == ["before", "before-sampled", "after", "after-sampled"]
    assert summary["totals"]["rollouts"] == 4 * 2 * 4  # each step once


@pytest.mark.slow
async def test_the_broken_step_runs_again_as_new_attempts(tmp_path: Path) -> None:
    await broken(tmp_path)
    await life(tmp_path, Watch(), resume=True)
    store = SQLiteStore(tmp_path / "r" / "store.sqlite")
    made = {step: {s.rollout_id for s in await store.query_fingerprints("r", step)} for step in range(4)}
    assert [len(ids) for ids in made.values()] == [8, 8, 8, 8]
    for step, ids in made.items():
        attempts = [await store.query_attempts(i) for i in sorted(ids)]
        assert {len(a) for a in attempts} == ({1} if step < 2 else {2})
        assert all(a[-1].status is AttemptStatus.SUCCEEDED for a in attempts)
        fingerprinted = {s.rollout_id: s.attempt_id for s in await store.query_fingerprints("r", step)}
        assert all(fingerprinted[a[-1].rollout_id] == a[-1].attempt_id for a in attempts)
    (run,) = await store.query_runs()
    assert [one["first_step"] for one in run["resumed"]] == [2]
    await store.close()


@pytest.mark.slow
async def test_a_run_without_a_checkpoint_begins_again_under_its_name(tmp_path: Path) -> None:
    with pytest.raises(Crash):
        await life(tmp_path, Breaks(at=1))
    watch = Watch()
    await life(tmp_path, watch, steps=2, resume=True)
    assert [r.step for r in watch.reports] == [0, 1]


@pytest.mark.slow
async def test_a_run_that_is_over_can_be_made_longer(tmp_path: Path) -> None:
    await life(tmp_path, Watch(), steps=1, save_every=1)
    watch = Watch()
    summary = await life(tmp_path, watch, steps=2, save_every=1, resume=True)
    assert [r.step for r in watch.reports] == [1]
    assert summary["totals"]["rollouts"] == 16
    names = [
        json.loads(line)["name"] for line in (tmp_path / "r" / "evaluations.jsonl").read_text().splitlines()
    ]
    changed = bool(watch.reports[0].metrics["optimizer_steps"])
    assert names.count("after") == 1 + changed  # that of one step stands; of other weights another is made


@pytest.mark.slow
async def test_what_a_run_began_with_cannot_change(tmp_path: Path) -> None:
    await life(tmp_path, Watch(), steps=1, save_every=1)
    with pytest.raises(RunError, match=r"r exists: go on with it"):
        await life(tmp_path, Watch(), steps=2)
    with pytest.raises(RunError, match="seed was 1 when it began and is 2"):
        await life(tmp_path, Watch(), resume=True, seed=2)
    with pytest.raises(RunError, match=r"recipe\.group_size was 4 when it began and is 2"):
        await life(tmp_path, Watch(), resume=True, algorithm=GRPO(group_size=2))
    given = trainer(
        tmp_path, Watch(), run="r", resume=True, batch_size=2, options={"threads": 1, "engine": "thread"}
    )
    with pytest.raises(RunError, match=r"data\.train was"):
        await given.afit(solve, TRAIN[:20], HELD_OUT)
    (tmp_path / "r" / "store.sqlite").unlink()
    with pytest.raises(RunError, match="its store knows no run r"):
        await life(tmp_path, Watch(), resume=True)


@pytest.mark.slow
async def test_settings_that_changed_are_said_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def life(lr: float, steps: int, **options: Any) -> Any:
        given = {"threads": 1, "engine": "thread", "max_len": 512, "save_every": 1, "lr": lr}
        made = trainer(tmp_path, Watch(), steps=steps, batch_size=2, run="r", options=given, **options)
        return made.afit(solve, TRAIN, HELD_OUT)

    await life(1e-4, 1)
    await life(1e-4, 1, resume=True)
    assert " was " not in capsys.readouterr().err
    await life(1e-3, 2, resume=True, max_attempts=7)
    said = capsys.readouterr().err
    assert "options.lr was 0.0001 and is 0.001 from step 1 on" in said
    assert "tries.max_attempts was " in said and "and is 7 from step 1 on" in said
    store = SQLiteStore(tmp_path / "r" / "store.sqlite")
    (run,) = await store.query_runs()
    await store.close()
    first, second = run["resumed"]
    assert "changed" not in first and ["options.lr", 1e-4, 1e-3] in second["changed"]


@pytest.mark.slow
async def test_one_process_trains_a_run(tmp_path: Path) -> None:
    watch = Watch()
    made = trainer(tmp_path, watch, run="r", options={"threads": 1, "engine": "thread"})
    async with made.session(solve, TRAIN, ()):
        with pytest.raises(RunError, match="being trained already"):
            async with trainer(tmp_path, Watch(), run="r", resume=True).session(solve, TRAIN, ()):
                raise AssertionError


@pytest.mark.slow
def test_names_of_runs(tmp_path: Path) -> None:
    for name in ("../x", "", "a b", "/etc"):
        with pytest.raises(RunError, match="use letters"):
            asyncio.run(trainer(tmp_path, Watch(), run=name).afit(solve, TRAIN))
    with pytest.raises(RunError, match="nothing to resume"):
        asyncio.run(trainer(tmp_path, Watch(), resume=True).afit(solve, TRAIN))


@pytest.mark.slow
async def test_a_run_that_is_not_there_is_not_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "runs" / "first-try").mkdir(parents=True)
    with pytest.raises(RunError, match=r"holds no run frist-try; to begin it, .*Did you mean first-try\?"):
        await trainer(tmp_path / "runs", Watch(), run="frist-try", resume=True).afit(solve, TRAIN)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["first-try"]


@pytest.mark.slow
async def test_a_start_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    for refused in (
        {"options": {"thread": 1}},
        {"policy": tmp_path / "nowhere"},
        {"initial_resources": {"p": object()}},
        {"adapters": "no-such-adapter"},
    ):
        made = trainer(tmp_path / "deep" / "runs", Watch(), **{"run": "r", **refused})
        with pytest.raises((ValueError, TypeError, UsageError)):
            await made.afit(solve, TRAIN)
        assert list(tmp_path.iterdir()) == [], refused
    (tmp_path / "runs" / "other").mkdir(parents=True)
    with pytest.raises(UsageError):
        await trainer(tmp_path / "runs", Watch(), options={"thread": 1}).afit(solve, TRAIN)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["other"]


@pytest.mark.slow
async def test_the_seconds_of_a_run_that_had_ended_are_kept(tmp_path: Path) -> None:
    first = await life(tmp_path, Watch(), steps=2)
    again = await life(tmp_path, Watch(), steps=2, resume=True)
    for name in ("train_seconds", "total_seconds"):
        assert again[name] >= first[name] > 0
    assert again["total_seconds"] > again["train_seconds"]
