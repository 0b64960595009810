"""Explain says what was trained, why, or why not."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from contract.runs import RUN, add_rollout, edit_reward, make_run, plugins
from rich.console import Console

from agentlightning.credit import assign
from agentlightning.credit.fingerprint import fingerprint_rollouts
from agentlightning.hookspecs import hookimpl
from agentlightning.recipes import GRPO
from agentlightning.specs import DriverSpec
from agentlightning.store import SQLiteStore
from agentlightning.types import Row
from agl_audit.commands.explain import view
from agl_audit.explanation.explain import explain
from agl_audit.explanation.token import NoSuchToken
from agl_audit.locations import NoSuchRun
from agl_audit.run import open_run
from agl_audit.targets import open_target
from agl_audit.verification.verify import verify


async def explained(folder: Path, what: str, *extra: Any, policy: Path | None = None) -> dict[str, Any]:
    async with open_target(what, str(folder), plugins=plugins(*extra)) as (run, target):
        return await explain(run, target, policy)


async def call_from_row(folder: Path, rollout_id: str, n: int) -> str:
    store = SQLiteStore(folder / "store.sqlite")
    calls = await store.query_calls(rollout_id)
    await store.close()
    return calls[n].call_id


class Inspecting:
    """A driver whose policies know the alphabet and find everything a little likelier."""

    @hookimpl
    def agl_drivers(self) -> list[DriverSpec]:
        class Found:
            def __init__(self, policy: Path) -> None:
                self.policy = policy

            def decode(self, ids: Sequence[int]) -> list[str]:
                return [chr(ord("a") + token) for token in ids]

            def logprobs(self, rows: Sequence[Row]) -> list[list[float]]:
                return [[p + 0.125 * on for p, on in zip(r.logprobs, r.mask, strict=True)] for r in rows]

            def digest(self) -> str:
                return "digest"

        return [DriverSpec("local", lambda *_: None, inspect=Found)]  # type: ignore


async def test_a_token_in_full(tmp_path: Path) -> None:
    folder = await make_run(tmp_path)
    call = await call_from_row(folder, "ro-0-0", 1)
    (folder / "policy").mkdir()
    found = await explained(folder, f"{call}:1", Inspecting())
    token = found["token"]
    assert (token["index"], token["id"], token["text"], token["around"]) == (1, 8, "i", ["g", ""])
    assert (token["logprob_then"], token["logprob_now"]) == (-0.25, -0.125)
    assert token["position"] == 6 and token["mask"] == 1 and token["version"] == 0
    assert token["now"] == f"under {folder / 'policy'}"
    assert found["credit"] == {"rule": "broadcast", "gamma": 1.0, "value": 1.0}
    base = found["baseline"]
    assert base["value"] == 0.5 and base["group"] == [f"group={RUN}/train/0/0"]
    assert [(m["rollout"], m["value"], m["this"]) for m in base["members"]] == [
        ("ro-0-0", 1.0, True), ("ro-0-1", 0.0, False),
    ]  # fmt: skip
    assert found["advantage"]["value"] == pytest.approx(0.5 / found["advantage"]["scale"])
    weight = found["weight"]
    assert weight["value"] == 1 / 16 and weight["formula"] == "1 / (4 rollouts × 4 tokens of its rollout)"
    assert token["weight_times_advantage"] == weight["value"] * found["advantage"]["value"]
    assert found["row"] == {"id": "ro-0-0/0", "start": 5, "end": 7, "tokens": 7, "staleness": 0}
    assert found["merge"]["kind"] == "extends" and found["merge"]["earlier"] == await call_from_row(
        folder, "ro-0-0", 0
    )
    assert found["call"]["verdict"] == {"kind": "exact", "reason": ""}
    assert found["call"]["asked"] == {"temperature": 0.0}
    assert [m["role"] for m in found["call"]["messages"]] == ["user", "assistant", "tool"]
    assert found["step"] == {"step": 0, "version": 0, "as_trained": True, "note": ""}
    assert found["left_out"] is None


async def test_with_a_critic_credit_is_the_return_and_the_advantage_is_not_here(tmp_path: Path) -> None:
    folder = await make_run(tmp_path, recipe=GRPO(critic=True, baseline="none", scale="none"))
    found = await explained(folder, f"{await call_from_row(folder, 'ro-0-0', 0)}:0")
    assert found["credit"]["rule"] == "broadcast" and found["credit"]["value"] == 1.0
    assert found["advantage"]["critic"] and found["token"]["critic"]
    console = Console(record=True, width=120, file=io.StringIO())
    console.print(view(found))
    said = console.export_text()
    assert "the critic's, made during the step and not kept" in said and "made likelier" not in said


async def test_without_an_inspector_the_token_is_an_id_and_that_is_said(tmp_path: Path) -> None:
    folder = await make_run(tmp_path)
    call = await call_from_row(folder, "ro-0-0", 0)
    token = (await explained(folder, f"{call}:0"))["token"]
    assert token["text"] is None and token["id"] == 3
    assert token["now"] == "not available: the run's folder holds no policy (give --policy FOLDER)"
    (folder / "policy").mkdir()
    assert (await explained(folder, f"{call}:0"))["token"]["now"] == (
        "not available: the driver 'local' is not installed"
    )
    other = await explained(folder, f"{call}:0", Inspecting(), policy=tmp_path)
    assert other["token"]["now"] == f"under {tmp_path}"


async def test_a_failed_rollout(tmp_path: Path) -> None:
    folder = await make_run(tmp_path)
    found = await explained(folder, "ro-1-3")
    assert found["failure"] == {
        "kind": "agent-raised", "text": "the agent's code raised an exception", "reward": None,
    }  # fmt: skip
    assert [c["left_out"]["reason"] for c in found["calls"]] == ["failed-rollout"] * 2
    assert "the failure table leaves such a rollout out" in found["calls"][0]["left_out"]["text"]
    assert found["ledger"]["left_out"] == {"failed-rollout": 2}
    assert found["rows"] == found["rewards"] == []
    assert [(g["rollout"], g["reward"], g["failure"]) for g in found["group"]] == [
        ("ro-1-2", 1.0, None), ("ro-1-3", None, "agent-raised"),
    ]  # fmt: skip
    call = await call_from_row(folder, "ro-1-3", 0)
    token = await explained(folder, f"{call}:0", Inspecting(), policy=tmp_path)
    assert token["token"]["mask"] == 0 and token["token"]["text"] == "d"
    assert token["token"]["now"] == "not scored: the token is in no row"
    assert token["weight"] is None and token["left_out"]["reason"] == "failed-rollout"


async def test_a_failure_with_a_reward(tmp_path: Path) -> None:
    folder = await make_run(tmp_path, info={"failure": {"agent-raised": {"retry": False, "reward": -1.0}}})
    found = await explained(folder, "ro-1-3")
    assert found["failure"]["reward"] == -1.0
    assert found["step"]["as_trained"] is False  # it was trained under another table


async def test_a_flat_group_has_advantage_0_and_shows_its_members(tmp_path: Path) -> None:
    folder = await make_run(tmp_path, rewards={0: [1.0, 1.0, 1.0, 0.0]})
    call = await call_from_row(folder, "ro-0-0", 0)
    found = await explained(folder, call)
    assert found["advantage"]["value"] == 0.0 and found["advantage"]["zero_reason"] == "zero-std"
    assert [m["value"] for m in found["baseline"]["members"]] == [1.0, 1.0]


async def test_a_flat_group_that_was_dropped_shows_its_members_too(tmp_path: Path) -> None:
    recipe = msgspec.structs.replace(GRPO(group_size=2), filter_zero_std_groups=True)
    folder = await make_run(tmp_path, rewards={0: [1.0, 1.0, 1.0, 0.0]}, recipe=recipe)
    found = await explained(folder, await call_from_row(folder, "ro-0-1", 0))
    assert found["left_out"]["reason"] == "zero-std" and found["weight"] is None
    assert [m["value"] for m in found["baseline"]["members"]] == [1.0, 1.0]


async def test_what_was_never_trained(tmp_path: Path) -> None:
    folder = await make_run(tmp_path)
    found = await explained(folder, "ro-eval")
    assert found["step"]["note"] == "a rollout of mode val: it was evaluated, never trained"
    assert found["calls"][0]["left_out"]["reason"] == "not-credited" and found["ledger"] is None
    store = SQLiteStore(folder / "store.sqlite")
    await add_rollout(store, RUN, "ro-late", 1.0, group="late")
    await add_rollout(store, RUN, "ro-running", 0.0, group="late", sample=1, finish=False)
    await add_rollout(store, None, "ro-alone", 1.0)
    await store.close()
    late = await explained(folder, "ro-late")
    assert late["step"]["note"].startswith("no step has logged it: credited here with its group alone")
    assert late["ledger"]["trained"] == 2 and late["step"]["as_trained"] is None
    running = await explained(folder, "ro-running")
    assert running["step"]["note"] == "it is running: not credited yet" and running["failure"] is None
    async with open_target("ro-alone", None, str(folder), plugins()) as (run, target):
        alone = await explain(run, target)
    assert "its record holds no recipe" in alone["step"]["note"]


async def test_a_changed_store_is_not_passed_off_as_what_was_trained(tmp_path: Path) -> None:
    folder = await make_run(tmp_path)
    await edit_reward(folder, "ro-0-1", 1.0)
    found = await explained(folder, "ro-0-0")
    assert found["step"]["as_trained"] is False and "agl verify" in found["step"]["note"]
    assert (await explained(folder, "ro-1-0"))["step"]["as_trained"] is True


async def test_an_attempt_is_its_rollout_and_what_is_not_there_is_named(tmp_path: Path) -> None:
    folder = await make_run(tmp_path)
    call = await call_from_row(folder, "ro-0-0", 0)
    attempt = call.rpartition("-")[0]
    assert (await explained(folder, attempt))["rollout"]["id"] == "ro-0-0"
    eval_call = await call_from_row(folder, "ro-eval", 0)  # fingerprinted by no step
    assert (await explained(folder, eval_call))["rollout"]["id"] == "ro-eval"
    with pytest.raises(NoSuchToken, match="2 response tokens; there is no token 2"):
        await explained(folder, f"{call}:2")
    with pytest.raises(NoSuchRun, match=f"has no call {attempt}-7.0; it has {call}"):
        await explained(folder, f"{attempt}-7.0")
    with pytest.raises(NoSuchRun, match="no such rollout, attempt, call or token in"):
        await explained(folder, f"{attempt}:0")
    with pytest.raises(NoSuchRun, match="no such rollout"):
        await explained(folder, "at-0000")


def shown(found: dict[str, Any]) -> str:
    """The panels as a pipe gets them: without colour."""
    console = Console(record=True, width=200, file=io.StringIO(), color_system=None)
    console.print(view(found))
    return console.export_text()


@pytest.mark.parametrize("terms", [{"entropy": 0.01}, {"kl": 0.1}, {"entropy": 0.01, "kl": 0.1}])
async def test_a_token_that_only_entropy_or_kl_pulls_at_is_not_said_to_be_left_alone(
    tmp_path: Path, terms: dict[str, float]
) -> None:
    folder = await make_run(tmp_path, recipe=GRPO(group_size=2, epochs=2, **terms))
    for rollout in ("ro-0-0", "ro-0-1"):
        await edit_reward(folder, rollout, 1.0)
    found = await explained(folder, f"{await call_from_row(folder, 'ro-0-0', 1)}:1")
    assert found["advantage"]["zero_reason"] == "zero-std" and found["token"]["weight_times_advantage"] == 0.0
    named = [name for name in ("entropy", "kl") if name in terms]
    assert [pull["term"].split()[0].lower() for pull in found["token"]["pulls"][1:]] == named
    assert "nothing pulls at it" not in shown(found) and "alone" in found["token"]["pulled"]
    plain = await make_run(tmp_path / "plain", recipe=GRPO(group_size=2))
    for rollout in ("ro-0-0", "ro-0-1"):
        await edit_reward(plain, rollout, 1.0)
    assert "nothing pulls at it" in shown(
        await explained(plain, f"{await call_from_row(plain, 'ro-0-0', 1)}:1")
    )


async def test_which_token_is_meant_is_seen_without_colour(tmp_path: Path) -> None:
    folder = await make_run(tmp_path)
    call = await call_from_row(folder, "ro-0-0", 1)
    text = shown(await explained(folder, f"{call}:1", Inspecting(), policy=tmp_path))
    assert "g⟦i⟧" in text and "2nd of 2 in the response (:1), id 8, 'i'" in text


async def test_what_the_step_recorded_of_its_update_is_shown(tmp_path: Path) -> None:
    folder = await make_run(tmp_path, recipe=GRPO(group_size=2, epochs=2))
    store = SQLiteStore(folder / "store.sqlite")
    report = (await store.query_steps(RUN))[0]
    report.step = 7
    report.metrics = {"clip_fraction": 0.25, "optimizer_steps": 0.0, "steps_skipped": 2.0, "loss": 1.0}
    ids = [await add_rollout(store, RUN, f"ro-7-{n}", float(n), group="late", sample=n) for n in range(2)]
    records = await store.records(ids)
    batch = assign(records, GRPO(group_size=2, epochs=2), version=0)
    fingerprints = fingerprint_rollouts(batch, records, run_id=RUN, step=7, policy="policy", version=0)
    await store.add_step(report, fingerprints)
    await store.close()
    found = await explained(folder, f"{await call_from_row(folder, 'ro-7-0', 1)}:1")
    assert found["token"]["recorded"] == {"clip_fraction": 0.25, "optimizer_steps": 0.0, "steps_skipped": 2.0}
    assert "left out: its loss or gradient was not finite" in found["token"]["pulled"]
    assert "clip_fraction 0.25" in shown(found)


async def test_a_call_that_was_compared_by_turn_shows_its_turn_and_the_groups_spread(tmp_path: Path) -> None:
    folder = await make_run(tmp_path, recipe=GRPO(group_size=2, credit="discounted", gamma=0.5))
    found = await explained(folder, await call_from_row(folder, "ro-0-0", 0))
    base, advantage = found["baseline"], found["advantage"]
    assert base["group"] == [f"group={RUN}/train/0/0", "turn=solver 1"] and base["pool"] == base["group"][:1]
    assert [(m["rollout"], m["value"]) for m in base["members"]] == [("ro-0-0", 0.5), ("ro-0-1", 0.0)]
    # residuals ±0.25 and ±0.5 at the two turns: s² = 2 · (0.0625 + 0.25) / 2
    assert base["spread"] == pytest.approx(0.3125**0.5) and found["step"]["as_trained"]
    assert advantage["value"] == pytest.approx(0.25 / (0.3125**0.5 + 1e-6))
    assert f"spread of group={RUN}/train/0/0 + 1e-6" in shown(found)
    assert await verified(folder) == []


async def verified(folder: Path) -> list[Any]:
    """What ``agl verify`` finds different."""
    async with open_run(str(folder), plugins=plugins()) as run:
        return list((await verify(run)).differences)
