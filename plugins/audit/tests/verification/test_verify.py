"""Verify finds whatever was changed after training, and names it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from contract.runs import RUN, edit, edit_reward, edit_span, make_run, plugins
from drills.edits import store as replace, stored_whole

from agentlightning import semconv
from agentlightning.credit.rules import broadcast
from agentlightning.hookspecs import hookimpl
from agentlightning.recipes import GRPO
from agentlightning.specs import CreditRuleSpec, DriverSpec
from agentlightning.store import SQLiteStore
from agentlightning.store.codec import pack, unpack
from agentlightning.types import Call, StepReport
from agl_audit.run import CannotRecompute, open_run
from agl_audit.verification.verify import NothingToVerify, Verification, verify


async def verified(folder: Path, step: int | None = None, *extra: Any) -> Verification:
    async with open_run(str(folder), plugins=plugins(*extra)) as run:
        return await verify(run, step)


def causes(result: Verification) -> list[tuple[int | None, str | None, str]]:
    assert not result.equal
    return [(d.step, d.rollout_id, d.kind) for d in result.differences if d.kind != "consequence"]


def edit_call(folder: Path, rollout_id: str, change: Callable[[Call], object]) -> None:
    """Change the first call of a rollout, through the store's own codec."""
    store = SQLiteStore(folder / "store.sqlite")
    try:
        connection = store.db.connection
        call = stored_whole(connection, rollout_id)[
            connection.execute(
                "SELECT call_id FROM calls WHERE rollout_id = ? AND sequence = 0", (rollout_id,)
            ).fetchone()[0]
        ]
        change(call)
        replace(connection, call)
    finally:
        store.db.close()


async def test_what_was_not_changed_is_equal(tmp_path: Path) -> None:
    result = await verified(await make_run(tmp_path))
    assert result.equal and result.differences == []
    assert (result.run, result.steps, result.rollouts, result.rows, result.tokens) == (RUN, 2, 8, 7, 28)
    assert (
        result.params == "parameters not compared: no step logged their digest (driver option deterministic)"
    )


async def test_an_edited_reward_is_named_with_then_and_now(tmp_path: Path) -> None:
    folder = await make_run(tmp_path)
    await edit_reward(folder, "ro-0-2", 0.0)
    result = await verified(folder)
    assert causes(result) == [(0, "ro-0-2", "reward")]
    first, follows, restored = result.differences
    assert (first.then, first.now) == (1.0, 0.0)
    assert first.text == (
        "step 0, rollout ro-0-2: reward was 1.0 when it was trained, "
        "the store says 0.0 (edited after training)"
    )
    assert "advantages of the rollout itself, advantages of 1 other rollout of its group" in follows.text
    assert "every row, advantage and weight of the step equals what was trained" in restored.text


async def test_two_edited_rewards_are_both_named(tmp_path: Path) -> None:
    folder = await make_run(tmp_path)
    await edit_reward(folder, "ro-0-2", 0.5)
    await edit_reward(folder, "ro-0-1", 0.25)
    result = await verified(folder)
    assert causes(result) == [(0, "ro-0-1", "reward"), (0, "ro-0-2", "reward")]
    assert "of the 2 rollouts themselves" in result.differences[2].text


async def test_a_reward_and_something_else(tmp_path: Path) -> None:
    """Putting the reward back does not explain a call of another rollout, nor hide it."""
    folder = await make_run(tmp_path)
    await edit_reward(folder, "ro-0-2", 0.5)
    edit_call(folder, "ro-0-1", lambda call: call.tags.update(agent="other"))
    result = await verified(folder)
    assert causes(result) == [(0, "ro-0-1", "call"), (0, "ro-0-2", "reward")]
    assert "put back" not in " ".join(d.text for d in result.differences)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda call: call.logprobs.__setitem__(0, -0.75), "its logprobs were changed"),
        (
            lambda call: setattr(call, "response_ids", [9, *call.response_ids[1:]]),
            "its token ids were changed after training; what decides whether it is trained: 2 trained then, "
            "1 trained (1 mismatch-by-agent) now",
        ),
        (lambda call: call.tags.update(turn="2"), "its tags were changed"),
        (lambda call: call.sampling.update(top_p=0.9), "its sampling was changed"),
        (lambda call: call.request.update(messages=[]), "its request was changed"),
    ],
)
async def test_an_edited_call_is_named(tmp_path: Path, change: Callable[[Call], object], field: str) -> None:
    folder = await make_run(tmp_path)
    edit_call(folder, "ro-0-3", change)
    result = await verified(folder)
    assert causes(result) == [(0, "ro-0-3", "call")]
    first = result.differences[0]
    assert first.call_id is not None and first.call_id in first.text and field in first.text


@pytest.mark.parametrize(
    ("statement", "values", "found", "text"),
    [
        ("DELETE FROM calls WHERE rollout_id = ? AND sequence = 1", ("ro-1-0",), (1, "ro-1-0", "calls"),
         "it was recorded, and is not in the store any more"),
        ("DELETE FROM rollouts WHERE rollout_id = ?", ("ro-1-1",), (1, "ro-1-1", "missing"),
         "the store no longer has it (deleted after training)"),
        ("UPDATE rollouts SET status = 'cancelled' WHERE rollout_id = ?", ("ro-1-0",),
         (1, "ro-1-0", "status"), "status was succeeded when it was trained, the store says cancelled"),
        ("DELETE FROM attempts WHERE rollout_id = ?", ("ro-0-0",), (0, "ro-0-0", "attempt"),
         "latest is None"),
        ("DELETE FROM steps WHERE step = ?", (0,), (0, None, "step"), "its report is missing"),
        ("DELETE FROM fingerprints WHERE rollout_id = ?", ("ro-0-1",), (0, "ro-0-1", "fingerprint"),
         "its fingerprint is missing"),
        ("DELETE FROM fingerprints WHERE step = ?", (0,), (0, None, "fingerprints"),
         "all of its 4 fingerprints are"),
        ("UPDATE calls SET data = ? WHERE rollout_id = 'ro-0-0'", (b"\x01damaged",),
         (0, "ro-0-0", "unreadable"), "its record cannot be read"),
        ("DELETE FROM spans WHERE rollout_id = 'ro-0-2' AND name = ?", (semconv.REWARD_SPAN,),
         (0, "ro-0-2", "reward"), "reward was 1.0 when it was trained, the store says None"),
    ],
)  # fmt: skip
async def test_what_was_removed_or_damaged_is_named(
    tmp_path: Path, statement: str, values: tuple[Any, ...], found: tuple[Any, ...], text: str
) -> None:
    folder = await make_run(tmp_path)
    edit(folder, (statement, values))
    result = await verified(folder)
    assert causes(result)[0] == found
    assert text in result.differences[0].text


async def test_another_reward_of_the_rollout(tmp_path: Path) -> None:
    folder = await make_run(tmp_path)
    store = SQLiteStore(folder / "store.sqlite")
    edit_span(store, "ro-0-0", semconv.REWARD_SPAN, judge="another")
    await store.close()
    result = await verified(folder)
    assert causes(result) == [(0, "ro-0-0", "rewards")]
    assert "its final reward is the same" in result.differences[0].text


@pytest.mark.parametrize(("chained", "kind"), [(True, "report"), (False, "rows")])
async def test_the_digest_of_the_report(tmp_path: Path, chained: bool, kind: str) -> None:
    folder = await make_run(tmp_path, chained=chained)
    store = SQLiteStore(folder / "store.sqlite")
    ((blob,),) = store.db.connection.execute("SELECT report FROM steps WHERE step = 1").fetchall()
    report = msgspec.structs.replace(unpack(blob, StepReport), rows_digest="0" * 64)
    store.db.connection.execute("UPDATE steps SET report = ? WHERE step = 1", (pack(report),))
    await store.close()
    result = await verified(folder)
    assert causes(result) == [(1, None, kind)]
    assert (await verified(folder, 0)).equal


class Halved:
    """A plugin whose rule is not what it was when the run was trained."""

    now = 1.0

    @hookimpl
    def agl_credit_rules(self) -> list[CreditRuleSpec]:
        def rule(record: Any, recipe: Any) -> Any:
            found = broadcast(record, recipe)
            return {call: None if value is None else value * self.now for call, value in found.items()}

        return [CreditRuleSpec("mine", rule)]


async def test_other_rows_from_equal_inputs_are_put_down_to_the_code(tmp_path: Path) -> None:
    folder = await make_run(tmp_path, chained=False)
    plugin = Halved()
    plugin.now = 2.0
    store = SQLiteStore(folder / "store.sqlite")
    await store.update_run(RUN, {"recipe": GRPO(group_size=2, credit="mine", scale="none").model_dump()})
    await store.close()
    result = await verified(folder, None, plugin)
    assert {kind for _, _, kind in causes(result)} == {"code"}
    text = result.differences[0].text
    assert "although its calls and rewards are equal: the code or a plugin that makes rows" in text
    assert "agl-core 0.0.1 → " in text
    with pytest.raises(CannotRecompute, match=r"no rule 'mine'.*install that plugin"):
        await verified(folder)


class Drivers:
    """A driver that can open its policies: the digest is what the file says."""

    @hookimpl
    def agl_drivers(self) -> list[DriverSpec]:
        class Found:
            def __init__(self, policy: Path) -> None:
                self.policy = policy

            def digest(self) -> str:
                return (self.policy / "weights").read_text()

        return [DriverSpec("local", lambda *_: None, inspect=Found)]  # type: ignore


async def with_digests(folder: Path) -> None:
    store = SQLiteStore(folder / "store.sqlite")
    for report in await store.query_steps(RUN):
        fingerprints = await store.query_fingerprints(RUN, report.step)
        await store.add_step(
            msgspec.structs.replace(report, params_digest=f"digest {report.step}"), fingerprints
        )
    await store.close()


@pytest.mark.parametrize(
    ("place", "digest", "equal", "text"),
    [
        ("policy", "digest 1", True, "the parameters in policy are those after step 1"),
        ("checkpoints/step-000001/policy", "digest 0", True, "policy are those after step 0"),
        ("checkpoints/step-000001/policy", "digest 1", False, "checkpoints/step-000001/policy differs"),
        ("elsewhere", "", True, "the run's folder holds no policy of a step with a digest"),
    ],
)
async def test_parameters(tmp_path: Path, place: str, digest: str, equal: bool, text: str) -> None:
    folder = await make_run(tmp_path, chained=False)
    await with_digests(folder)
    (folder / place).mkdir(parents=True)
    (folder / place / "weights").write_text(digest)
    result = await verified(folder, None, Drivers())
    assert result.equal is equal and text in result.params
    if not equal:
        assert [(d.kind, d.then, d.now) for d in result.differences] == [("params", "digest 0", "digest 1")]


async def test_without_the_driver_parameters_are_not_compared_and_that_is_said(tmp_path: Path) -> None:
    folder = await make_run(tmp_path, chained=False)
    await with_digests(folder)
    (folder / "policy").mkdir()
    result = await verified(folder)
    assert result.equal and result.params == "parameters not compared: the driver 'local' is not installed"


async def test_what_cannot_be_verified_is_said(tmp_path: Path) -> None:
    folder = await make_run(tmp_path / "a")
    with pytest.raises(NothingToVerify, match="has no step 7; it has 0 to 1"):
        await verified(folder, 7)
    empty = await make_run(tmp_path / "b", rewards={}, chained=False)
    with pytest.raises(NothingToVerify, match="has no step yet"):
        await verified(empty)
    old = await make_run(tmp_path / "c", info={"recipe": None}, chained=False)
    with pytest.raises(CannotRecompute, match="its record holds no recipe"):
        await verified(old)
    unfingerprinted = await verified(await make_run(tmp_path / "d", fingerprinted=False, chained=False))
    assert causes(unfingerprinted) == [(0, None, "no-fingerprints"), (1, None, "no-fingerprints")]


async def test_progress_counts_steps(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    async with open_run(str(await make_run(tmp_path)), plugins=plugins()) as run:
        await verify(run, None, lambda done, of: seen.append((done, of)))
    assert seen == [(0, 2), (1, 2), (2, 2)]
