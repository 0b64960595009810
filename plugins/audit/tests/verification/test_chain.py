"""The chain of a run: whole or named, signed or refused, and honest about what was made again."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from contract.runs import REWARDS, RUN, add_evaluation, add_step, edit, make_run, plugins

from agentlightning.algorithms.journal import Journal
from agentlightning.credit.digest import (
    KEY_VARIABLE,
    canonical,
    compute_head,
    next_link,
    plain,
    sign,
    signed_by,
)
from agentlightning.recipes import GRPO
from agentlightning.store import SQLiteStore
from agentlightning.store.codec import pack
from agentlightning.types import AuditLink, Rollout, StepReport
from agl_audit.run import open_run
from agl_audit.verification.verify import Verification, verify

SECRET = "a key of some length"


async def verified(folder: Path, key: str | None = None, head: str | None = None) -> Verification:
    async with open_run(str(folder), plugins=plugins()) as run:
        return await verify(run, key=key, head=head)


def kinds(result: Verification) -> set[str]:
    return {d.kind for d in result.differences if d.kind != "consequence"}


async def links_of(folder: Path) -> list[AuditLink]:
    store = SQLiteStore(folder / "store.sqlite")
    try:
        return await store.query_links(RUN)
    finally:
        await store.close()


def test_a_head_depends_on_everything_in_its_link_and_before_it() -> None:
    first = next_link("r", "begin", "r", {"seed": 1}, after=None)
    second = next_link("r", "step", "0/p", {"loss": 0.5}, after=first, key=SECRET)
    assert (second.number, second.previous) == (1, first.head) and compute_head(second) == second.head
    for field, value in (
        ("run_id", "s"), ("number", 2), ("kind", "end"), ("name", "1/p"), ("previous", ""),
        ("body", {"loss": 0.25}),
    ):  # fmt: skip
        assert compute_head(msgspec.structs.replace(second, **{field: value})) != second.head, field
    assert signed_by(second, SECRET) and not signed_by(second, "another") and not signed_by(first, SECRET)
    assert sign(second.head, SECRET) == second.signature != sign(second.head, "another")


def test_equal_values_have_one_text_whatever_they_have_passed_through() -> None:
    assert canonical({"a": 64.0, "b": (1, 2)}) == canonical({"b": [1, 2], "a": 64})
    assert canonical({"a": float("nan")}) == canonical({"a": float("nan")})
    assert canonical(True) != canonical(1) and canonical("1") != canonical(1)
    assert plain(Rollout(rollout_id="ro-1")) == {"rollout_id": "ro-1"}  # defaults that a later version adds


async def test_a_signed_run_verifies_with_its_key_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unsigned = await make_run(tmp_path / "unsigned")
    monkeypatch.setenv(KEY_VARIABLE, SECRET)
    folder = await make_run(tmp_path / "signed")
    assert (await verified(folder)).equal
    assert kinds(await verified(folder, key="another")) == {"signature"}
    assert kinds(await verified(unsigned)) == {"signature"}
    monkeypatch.delenv(KEY_VARIABLE)
    result = await verified(folder)
    assert result.equal and "the signature was not checked" in result.notes[0]


async def test_the_head_that_was_printed(tmp_path: Path) -> None:
    folder = await make_run(tmp_path)
    chain = await links_of(folder)
    for head in (chain[-1].head, chain[-1].head[:16].upper()):
        assert (await verified(folder, head=head)).equal
    for head in (chain[-1].head[:15], "0" * 64, ""):
        assert kinds(await verified(folder, head=head)) == {"head"}
    early = await verified(folder, head=chain[2].head)
    assert kinds(early) == {"head"} and "2 links were added behind it" in early.differences[0].text


async def test_a_chain_that_was_cut_or_deleted(tmp_path: Path) -> None:
    folder = await make_run(tmp_path / "cut")
    edit(folder, ("DELETE FROM links WHERE number = ?", (2,)))
    result = await verified(folder)
    assert "chain" in kinds(result) and any("link 2 is missing" in d.text for d in result.differences)
    folder = await make_run(tmp_path / "deleted")
    edit(folder, ("DELETE FROM links WHERE run_id = ?", (RUN,)))
    result = await verified(folder)
    assert kinds(result) == {"chain"} and "the store holds none" in result.differences[0].text
    folder = await make_run(tmp_path / "damaged")
    edit(folder, ("UPDATE links SET link = ? WHERE number = 2", (b"\x01damaged",)))
    assert "chain" in kinds(await verified(folder))


async def test_a_link_that_is_replaced_by_one_that_is_whole(tmp_path: Path) -> None:
    """Its own head holds; the link behind it was made after another."""
    folder = await make_run(tmp_path)
    edited = (await links_of(folder))[1]
    edited.body["report"]["metrics"]["reward_mean"] = 0.9
    edited.head = compute_head(edited)
    edit(folder, ("UPDATE links SET link = ? WHERE number = 1", (pack(edited),)))
    result = await verified(folder)
    assert any(d.kind == "chain" and "link 2" in d.text and "replaced" in d.text for d in result.differences)


async def test_a_run_without_a_chain_says_so(tmp_path: Path) -> None:
    result = await verified(await make_run(tmp_path, chained=False))
    assert result.equal and result.links == 0 and result.head == ""
    assert result.notes[0].startswith("this run has no chain: steps are compared")


async def test_an_evaluation_of_a_run_without_a_chain_is_made_again(tmp_path: Path) -> None:
    folder = await make_run(tmp_path, chained=False)
    store = SQLiteStore(folder / "store.sqlite")
    info = (await store.query_runs())[0]
    info["evaluations"]["eval/held-out/1"]["evaluation"]["reward"] = 0.25
    await store.update_run(RUN, {"evaluations": info["evaluations"]})
    await store.close()
    result = await verified(folder)
    assert kinds(result) == {"evaluation"} and "reward was logged as 0.25" in result.differences[0].text


async def test_a_chain_made_anew_does_not_hide_a_headline(tmp_path: Path) -> None:
    """Whoever makes all links again has to make the rollouts again, too."""
    folder = await make_run(tmp_path)
    before = ""
    for one in await links_of(folder):
        if one.kind == "evaluation":
            one.body["evaluation"] |= {"reward": 0.5, "rewards": [0.5]}
        one.previous, before = before, ""
        one.head = before = compute_head(one)
        edit(folder, ("UPDATE links SET link = ? WHERE number = ?", (pack(one), one.number)))
    result = await verified(folder)
    made = [d for d in result.differences if d.kind == "evaluation" and "its rollouts in the store" in d.text]
    assert {d.rollout_id for d in made} == {None, "ro-eval"}


async def going_on(folder: Path, first: int, evaluations: list[str]) -> tuple[SQLiteStore, Journal]:
    """Open a run again, as ``--resume`` does."""
    store = SQLiteStore(folder / "store.sqlite")
    await store.update_run(RUN, {"summary": None, "resumed": [{"time": 1.0, "first_step": first}]})
    journal = Journal(store, RUN, folder)
    await journal.resume((await store.query_runs())[0], first, evaluations)
    return store, journal


async def test_steps_that_are_made_again_have_later_links(tmp_path: Path) -> None:
    folder = await make_run(tmp_path)
    store, journal = await going_on(folder, 1, ["eval/held-out/1"])
    await store.close()
    result = await verified(folder)
    assert result.equal and result.redone == [1] and result.steps == 1
    store = SQLiteStore(folder / "store.sqlite")
    journal.store = store
    ids = [f"ro-1-{n}" for n in range(len(REWARDS[1]))]
    await add_step(store, RUN, GRPO(group_size=2), 1, ids, journal=journal)
    summary = {"reward_after": 0.75}
    await store.update_run(RUN, {"summary": {**summary, "chain": await journal.end(summary, None)}})
    await store.close()
    result = await verified(folder)
    assert result.equal and result.redone == [] and result.steps == 2
    names = [(one.kind, one.name) for one in await links_of(folder)]
    assert names == [
        ("begin", RUN), ("step", "0/policy"), ("step", "1/policy"), ("evaluation", "eval/held-out/1"),
        ("end", RUN), ("resume", RUN), ("step", "1/policy"), ("end", RUN),
    ]  # fmt: skip


async def test_an_evaluation_that_does_not_stand_is_made_again(tmp_path: Path) -> None:
    folder = await make_run(tmp_path)
    store, journal = await going_on(folder, 2, [])
    await store.update_run(RUN, {"evaluations": {}})
    await add_evaluation(store, RUN, "eval/held-out/1", ["ro-eval"], journal)
    summary = {"reward_after": 0.75}
    await store.update_run(RUN, {"summary": {**summary, "chain": await journal.end(summary, None)}})
    await store.close()
    result = await verified(folder)
    assert result.equal and result.evaluations == 1


async def test_a_run_that_began_without_a_chain_goes_on_with_one(tmp_path: Path) -> None:
    folder = await make_run(tmp_path, chained=False)
    store, journal = await going_on(folder, 1, ["eval/held-out/1"])
    ids = [f"ro-1-{n}" for n in range(len(REWARDS[1]))]
    await add_step(store, RUN, GRPO(group_size=2), 1, ids, journal=journal)
    await store.close()
    result = await verified(folder)
    assert result.equal and result.steps == 2
    assert "the chain begins at step 1" in result.notes[0]


async def test_checkpoints_are_hashed_and_one_without_a_link_gets_it_when_the_run_goes_on(
    tmp_path: Path,
) -> None:
    folder = await make_run(tmp_path)
    checkpoint = folder / "checkpoints" / "step-000002"
    (checkpoint / "policy").mkdir(parents=True)
    (checkpoint / "policy" / "weights").write_bytes(b"123")
    assert kinds(await verified(folder)) == {"checkpoint"}
    store, journal = await going_on(folder, 2, ["eval/held-out/1"])
    summary = {"reward_after": 0.75}
    await store.update_run(RUN, {"summary": {**summary, "chain": await journal.end(summary, None)}})
    await store.close()
    result = await verified(folder)
    assert result.equal and result.checkpoints == 1
    (checkpoint / "policy" / "weights").write_bytes(b"124")
    result = await verified(folder)
    assert [(d.kind, d.of) for d in result.differences] == [
        ("checkpoint", "checkpoint checkpoints/step-000002")
    ]
    assert "policy/weights was changed" in result.differences[0].text


async def test_a_renamed_folder_is_verified_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = await make_run(tmp_path / "runs")
    renamed = folder.rename(tmp_path / "kept for later")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for name in (str(renamed), "../kept for later", "../kept for later/", "../kept for later/store.sqlite"):
        assert (await verified(Path(name))).equal


async def test_a_step_logged_twice_by_one_life_keeps_one_report(tmp_path: Path) -> None:
    """A link that could not be added leaves no report behind."""
    folder = await make_run(tmp_path)
    store = SQLiteStore(folder / "store.sqlite")
    stale = Journal(store, RUN, folder)  # of a process that does not know what another has added
    with pytest.raises(Exception, match="the next one is 5"):
        await stale.step(StepReport(run_id=RUN, step=9, policy="policy", policy_version=9), [])
    assert [report.step for report in await store.query_steps(RUN)] == [0, 1]
    await store.close()
