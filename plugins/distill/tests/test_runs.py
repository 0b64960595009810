"""Whole runs on the local driver: without a reward, with one, hints, several policies, faults, resume."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from contract.runs import edit

from agentlightning import GRPO, PolicyFolder, Rollout
from agentlightning.algorithms.journal import Journal
from agentlightning.credit.digest import canonical_order, rows_digest
from agentlightning.plugins.stores import open_store
from agentlightning.store import SQLiteStore
from agentlightning.store.codec import pack as packed
from agentlightning.train.config import from_fields
from agentlightning.types import Record
from agentlightning.types.base import ConfigError
from agl_audit.commands.explain import view
from agl_audit.explanation.explain import explain
from agl_audit.targets import open_target
from agl_dashboard.data.places import Places
from agl_dashboard.server.access import Access
from agl_dashboard.server.app import start
from agl_distill import endpoint
from agl_distill.distillation import distillation_of
from agl_distill.edit import pack, unpack
from agl_distill.recipe import distill
from agl_local.inspect import LocalInspector
from agl_local.policy.folder import load_policy
from agl_local.text.tokenizer import ChatTokenizer
from plugins.dashboard.tests.browsing import TOKEN, Browser
from plugins.distill.tests.teaching import (
    TASKS,
    PromptLogprobs,
    Watch,
    asked,
    differences,
    opened,
    plugins,
    say,
    trainer,
)
from plugins.local.tests.driver_fixtures import saved_policy


async def talk(task: dict[str, Any], llm: Any) -> None:
    """Two turns, of which the second extends the first."""
    await asked(task, llm, turns=2)


async def links(folder: Path) -> list[dict[str, Any]]:
    """The bodies of the run's edits, in order."""
    store = open_store(folder / "r" / "store.sqlite")
    found = [one.body for one in await store.query_links("r") if one.kind == "edit"]
    await store.close()
    return found


async def test_a_run_without_any_reward_learns_what_the_teacher_thinks(
    tmp_path: Path, student: Path, master: Path
) -> None:
    watch = Watch()
    summary = await trainer(tmp_path, student, watch, distill={"teacher": str(master)}).afit(talk, TASKS)
    totals = summary["totals"]
    assert totals["rollouts"] == 8 and totals["calls"] == totals["calls_trained"] == 16
    assert totals["rollouts_failed"] == 0 and totals["tokens_trained"] > 0 and summary["learned"]
    assert all(b.metrics["reward_count"] == b.metrics["rollouts_no_reward"] == 0 for b in watch.batches)
    found = LocalInspector(master).logprobs(watch.rows)
    for row, theirs in zip(watch.rows, found, strict=True):
        wanted = [(t - own) * on for t, own, on in zip(theirs, row.logprobs, row.mask, strict=True)]
        assert row.advantages == pytest.approx(wanted, abs=1e-5)
    # the driver trained exactly these, and they are made again from the store
    assert [r.rows_digest for r in watch.reports] == [
        rows_digest(canonical_order(b.rows)) for b in watch.batches
    ]
    for report, batch in zip(watch.reports, watch.batches, strict=True):
        gaps = [
            own - theirs
            for row in batch.rows
            for own, theirs, on in zip(row.logprobs, row.metadata["tokens"]["teacher"], row.mask, strict=True)
            if on
        ]
        assert report.metrics["distill/reverse_kl"] == pytest.approx(sum(gaps) / len(gaps))
    assert await differences(tmp_path) == []


@pytest.mark.slow
async def test_what_the_teacher_said_is_explained_and_an_edited_score_is_found(
    tmp_path: Path, student: Path, master: Path
) -> None:
    watch = Watch()
    await trainer(tmp_path, student, watch, steps=1, distill={"teacher": str(master)}).afit(say, TASKS)
    row = watch.rows[0]
    (segment,) = row.segments
    async with open_target(f"{segment.call_id}:1", str(tmp_path / "r"), plugins=plugins()) as (run, target):
        found = await explain(run, target)
    token, at = found["token"], segment.start + 1
    assert found["step"]["as_trained"] and token["advantage"] == row.advantages[at]
    assert token["said"] == {"teacher": row.metadata["tokens"]["teacher"][at]}
    assert token["advantage"] == pytest.approx(token["said"]["teacher"] - token["logprob_then"], abs=1e-6)
    assert found["advantage"]["value"] == segment.advantage and found["advantage"]["edits"] == ["distill"]
    assert view(found)
    await shows_the_gap(tmp_path / "r", f"/s/r/rollouts/{row.rollout_id}/calls/{segment.call_id}", token)
    # one score is changed in the store: the chain names the link, and what follows from it
    store = open_store(tmp_path / "r" / "store.sqlite", read_only=True)
    (link,) = [one for one in await store.query_links("r") if one.kind == "edit"]
    await store.close()
    link.body["scores"][segment.call_id] = pack([-1.0] * (segment.end - segment.start))
    edit(tmp_path / "r", ("UPDATE links SET link = ? WHERE number = ?", (packed(link), link.number)))
    said = " ".join(await differences(tmp_path))
    assert "(edit 0/distill) was edited" in said and "advantages differ" in said


async def shows_the_gap(folder: Path, call: str, token: dict[str, Any]) -> None:
    """Check that the dashboard colours a token by the gap of which `agl explain` has both sides."""
    gap = token["logprob_then"] - token["said"]["teacher"]
    dashboard = await start(Places(str(folder), plugins()), Access(TOKEN, lambda _: None))
    async with aiohttp.ClientSession() as session:
        browser = Browser(dashboard, session)
        page = await browser.get(call)
        (shown,) = [
            given for _, given in page.elements if given.get("href") == f"{call}/tokens/{token['index']}"
        ]
        assert f"gap {gap:+.4f}" in str(shown["title"])
        step = max(1, min(4, math.ceil(abs(gap) / 0.5)))
        assert f"g{'-' if gap < 0 else ''}{step}" in str(shown["class"]).split()
        assert "teacher’s gap" in page.words and "as likely" in page.words, "a way to choose it, and its key"
        one = await browser.get(f"{call}/tokens/{token['index']}")
        assert f"logprob of teacher {token['said']['teacher']:.6g}" in one.words
    await dashboard.close()


@pytest.mark.slow
async def test_a_teacher_adds_to_a_reward(tmp_path: Path, student: Path, master: Path) -> None:
    async def act(task: dict[str, Any], llm: Any, rollout: Rollout) -> float:
        await say(task, llm)
        return float(rollout.sample)

    rows = {}
    for name, more in (("alone", {}), ("taught", {"distill": {"teacher": str(master), "coefficient": 0.5}})):
        watch = Watch()
        recipe = GRPO(group_size=2)
        await trainer(tmp_path / name, student, watch, algorithm=recipe, batch_size=2, steps=1, **more).afit(
            act, TASKS
        )
        rows[name] = {row.row_id: row for row in watch.rows}
        assert await differences(tmp_path / name) == []
    assert rows["alone"].keys() == rows["taught"].keys() and len(rows["alone"]) == 4
    for name, row in rows["alone"].items():
        other = rows["taught"][name]
        assert row.token_ids == other.token_ids and row.weights == other.weights
        said = other.metadata["tokens"]["teacher"]
        added = [0.5 * (t - own) * on for t, own, on in zip(said, row.logprobs, row.mask, strict=True)]
        assert other.advantages == pytest.approx(
            [a + more for a, more in zip(row.advantages, added, strict=True)]
        )


def gold(task: dict[str, Any], rollout: Record, group: Sequence[Record]) -> str:
    """What the agent could not see."""
    assert rollout in group and len(group) == 2 and task == rollout.rollout.input
    return "" if task["say"] == "bob" else f"secret {task['say']}"


def no_hint(task: dict[str, Any], rollout: Record, group: Sequence[Record]) -> None:
    """For a teacher that is told nothing."""


async def test_a_run_of_which_nothing_could_be_scored_says_why(
    tmp_path: Path, student: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"teacher": "self", "hint": no_hint}
    summary = await trainer(tmp_path, student, Watch(), steps=1, distill=settings).afit(say, TASKS)
    assert summary["learned"] is False
    assert "In the last step calls were left out: 4 × distill-no-hint" in "".join(capsys.readouterr())


@pytest.mark.slow
async def test_a_policy_teaches_itself_what_a_hint_shows_it(tmp_path: Path, student: Path) -> None:
    watch = Watch()
    settings = {"teacher": "self", "hint": gold}
    recipe = {"group_size": 2}
    run = trainer(tmp_path, student, watch, recipe=recipe, batch_size=2, steps=4, distill=settings)
    summary = await run.afit(talk, TASKS[:2])
    tokenizer, inspector = ChatTokenizer.load(student), LocalInspector(student)
    bodies = await links(tmp_path)
    assert {text for body in bodies for text in body["hints"].values()} == {"secret ada"}
    left = [b.metrics.get("left_out/distill-no-hint", 0) for b in watch.batches]
    assert left == [4, 4, 4, 4] and summary["totals"]["calls_trained"] == 16
    for batch in watch.batches:
        assert all(ledger.sums for ledger in batch.ledgers)
    texts = [tokenizer.decode(row.token_ids) for row in watch.rows]
    assert watch.rows and not any("secret" in text for text in texts)
    assert {row.metadata["hint"] for row in watch.rows} == {"secret ada"}
    # its scores are those of the policy at the beginning, for the prompt with the hint in it
    row = watch.batches[0].rows[0]
    first = row.segments[0]
    prompt = tokenizer.apply([{"role": "user", "content": "ada\n\nsecret ada"}])
    response = list(row.token_ids)[first.start : first.end]
    from plugins.local.tests.driver_fixtures import reference_logprobs

    known = reference_logprobs(load_policy(student).model, [*prompt, *response])[len(prompt) :]
    assert unpack(bodies[0]["scores"][first.call_id]) == pytest.approx(known, abs=1e-4)
    assert inspector.digest() != LocalInspector(tmp_path / "r" / "policy").digest()
    assert await differences(tmp_path) == []
    async with open_target(f"{first.call_id}:0", str(tmp_path / "r"), plugins=plugins()) as (
        opened_run,
        target,
    ):
        assert (await explain(opened_run, target))["token"]["hint"] == "secret ada"


@pytest.mark.slow
async def test_calls_that_an_endpoint_does_not_score_are_left_out_and_counted(
    tmp_path: Path, student: Path, master: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "PAUSE", 0.0)
    watch = Watch()
    async with PromptLogprobs(master).serving() as server:
        from aiohttp import web

        server.spoil = lambda n, answer: (
            web.Response(status=503) if b"ada" in bytes_of(server, student, n) else None
        )
        teacher = {"endpoint": server.url, "model": "master"}
        run = trainer(tmp_path, student, watch, distill={"teacher": teacher, "tries": 2})
        summary = await run.afit(say, TASKS[:4])
    for batch in watch.batches:
        assert batch.metrics["left_out/distill-failed"] == 1 and batch.metrics["calls_trained"] == 3
        assert math.fsum(w for row in batch.rows for w in row.weights) == pytest.approx(1.0)
        assert all(ledger.sums for ledger in batch.ledgers)
    assert summary["totals"]["calls"] == 8 and summary["totals"]["calls_trained"] == 6
    assert await differences(tmp_path) == []
    async with opened(tmp_path) as run_:
        store = run_.store
        out = [call for body in await links(tmp_path) for call in body["left_out"]]
        rollouts = await store.query_rollouts(run_id="r")
        calls = [c for r in rollouts for c in await store.query_calls(r.rollout_id) if c.call_id in out]
    assert {call.request["messages"][0]["content"] for call in calls if call.request} == {"ada"}
    async with open_target(out[0], str(tmp_path / "r"), plugins=plugins()) as (run_, target):
        found = await explain(run_, target)
    assert found["left_out"]["reason"] == "distill-failed"
    assert found["left_out"]["text"] == "'distill' edited the batch of the step, and took it out"


def bytes_of(server: PromptLogprobs, student: Path, n: int) -> bytes:
    """The prompt of a request as text."""
    ids = server.asked[n - 1]["prompt"]
    return ChatTokenizer.load(student).decode(ids).encode() if len(ids) < 100 else b""


@pytest.mark.slow
async def test_each_named_policy_has_a_teacher_of_its_own(
    tmp_path: Path, student: Path, master: Path
) -> None:
    async def both(task: dict[str, Any], llm: Any, resources: dict[str, Any]) -> None:
        await asked(task, resources["one"])
        await asked(task, resources["two"])

    watch = Watch()
    third = saved_policy(tmp_path / "third", seed=3)
    policy = {"one": str(student), "two": PolicyFolder(student)}
    teachers = {"one": str(master), "two": str(third)}
    run = trainer(tmp_path, policy, watch, steps=1, distill={"teachers": teachers})
    summary = await run.afit(both, TASKS)
    assert summary["policies"]["one"]["calls_trained"] == summary["policies"]["two"]["calls_trained"] == 4
    for name, folder in (("one", master), ("two", third)):
        mine = [row for row in watch.rows if row.policy == name]
        for row, theirs in zip(mine, LocalInspector(folder).logprobs(mine), strict=True):
            assert row.metadata["tokens"]["teacher"] == pytest.approx(theirs, abs=1e-5)
    assert await differences(tmp_path) == []
    with pytest.raises(ConfigError, match="policy 'two' is trained and has no teacher"):
        await trainer(tmp_path / "x", policy, Watch(), distill={"teachers": {"one": str(master)}}).afit(
            both, TASKS
        )
    with pytest.raises(ConfigError, match="'three' is no policy that this run trains; it trains one, two"):
        await trainer(tmp_path / "y", policy, Watch(), distill={"teachers": {"three": str(master)}}).afit(
            both, TASKS
        )


@pytest.mark.slow
async def test_a_resumed_run_ends_as_one_that_was_not_interrupted(
    tmp_path: Path, student: Path, master: Path
) -> None:
    class Broke(Exception):
        pass

    def breaks(rollout: Rollout) -> bool:
        return "train/2" in (rollout.group_id or "")

    async def broken(task: dict[str, Any], llm: Any, rollout: Rollout) -> None:
        if breaks(rollout):
            raise KeyboardInterrupt
        await say(task, llm)

    options = {
        "threads": 1,
        "engine": "thread",
        "max_len": 200,
        "lr": 1e-2,
        "deterministic": True,
        "save_every": 1,
    }
    given: dict[str, Any] = {"options": options, "steps": 4, "distill": {"teacher": str(master)}}
    whole, first, second = Watch(), Watch(), Watch()
    await trainer(tmp_path / "whole", student, whole, **given).afit(say, TASKS)
    short = {**given, "steps": 2}
    await trainer(tmp_path / "cut", student, first, **short).afit(say, TASKS)
    await trainer(tmp_path / "cut", student, second, resume=True, **given).afit(say, TASKS)
    digests = [report.params_digest for report in whole.reports]
    assert [r.params_digest for r in (*first.reports, *second.reports)] == digests and len(set(digests)) == 4
    assert [r.rows_digest for r in (*first.reports, *second.reports)] == [
        r.rows_digest for r in whole.reports
    ]
    assert await differences(tmp_path / "cut") == []


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({"coefficient": 2.0}, "distill.coefficient was 1 when the run began and is 2.0"),
        ({"divergence": "forward"}, "distill.divergence was 'reverse' when the run began and is 'forward'"),
        (
            {"teacher": "OTHER"},
            r"distill.teachers.policy was '.*/master\d*/policy' .* and is '.*/other'",
        ),
        ({"hint": gold}, "distill.hint was None when the run began and is 'gold'"),
        (None, "distill: a teacher trained this run, and none is set now"),
    ],
)
async def test_a_run_that_a_teacher_trained_does_not_resume_by_other_settings(
    tmp_path: Path, student: Path, master: Path, now: dict[str, Any] | None, said: str
) -> None:
    store = SQLiteStore(":memory:")
    context: Any = SimpleNamespace(store=store, run_id="r", say=print, journal=Journal(store, "r", tmp_path))
    fields: dict[str, Any] = {"policy": str(student), "steps": 1, "algorithm": "grpo", "resume": True}

    def edit_of(settings: dict[str, Any] | None) -> Any:
        config = from_fields({**fields, **({"distill": settings} if settings else {})}, plugins=plugins())
        return distillation_of(config, GRPO(), plugins())

    began = {"teacher": str(master)}
    first = edit_of(began)
    async with first.open(context):
        await context.journal.entry("edit", "0/distill", {"settings": first._told(), "scores": {}})
    async with edit_of(began).open(context):
        pass
    changed = None if now is None else {**began, **now}
    if changed and changed["teacher"] == "OTHER":
        changed["teacher"] = str(saved_policy(tmp_path / "other", seed=3))
    with pytest.raises(ConfigError, match=said):
        async with edit_of(changed).open(context):
            pass
    await store.close()


def test_an_algorithm_or_a_critic_that_a_teacher_cannot_add_to_is_refused(student: Path) -> None:
    found = plugins()
    fields = {"distill": {"teacher": "self", "hint": gold}, "policy": str(student), "steps": 1}
    config = from_fields({**fields, "algorithm": "sft"}, plugins=found)
    with pytest.raises(ConfigError, match="'sft' trains no rows of the run's own rollouts"):
        distillation_of(config, distill(), found)
    config = from_fields({**fields, "algorithm": "grpo"}, plugins=found)
    with pytest.raises(ConfigError, match="takes its advantages from a critic"):
        distillation_of(config, GRPO(critic=True), found)
    assert distillation_of(from_fields({**fields, "steps": 0}, plugins=found), distill(), found) is None


def test_the_policys_own_folder_teaches_only_by_a_hint(student: Path, master: Path, tmp_path: Path) -> None:
    """Also by another path; of several policies each may be taught by another's folder."""
    found = plugins()
    link = tmp_path / "link"
    link.symlink_to(student)

    def made(policy: Any, **fields: Any) -> Any:
        config = from_fields({"policy": policy, "distill": fields, "steps": 1}, plugins=found)
        return distillation_of(config, distill(), found)

    with pytest.raises(ConfigError, match=f"{student} is the folder of the policy itself: .*learns nothing"):
        made(str(student), teacher=str(link))
    assert made(str(student), teacher=str(link), hint=gold)
    both = {"a": str(student), "b": str(master)}
    assert made(both, teachers={"a": str(master), "b": str(student)})
    with pytest.raises(ConfigError, match=f"{master} is the folder of the policy itself"):
        made(both, teachers={"a": str(master), "b": str(master)})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "there is none; say who teaches"),
        ({"distill": {}}, "give teacher, or teachers"),
        ({"distill": {"teacher": "self"}}, "a policy learns nothing from itself"),
        ({"distill": {"teacher": "nobody"}}, "'nobody' is no folder .* and no pretrained policy"),
        ({"distill": {"teacher": "self", "hint": "nowhere:at"}}, "distill.hint: cannot import 'nowhere'"),
        ({"distill": {"teacher": "self", "hint": "math:cos"}}, "distill.hint: .* cannot be called with"),
        ({"distill": {"teacher": "self", "hint": "asyncio:wait"}}, "distill.hint: .*"),
        ({"distill": {"teacher": "self", "hint": "math:pi"}}, "distill.hint: .* is no function"),
        ({"distill": {"teacher": "T", "beta": 0.3}}, "beta: 'reverse' has none"),
        ({"distill": {"teacher": "T", "divergence": "hellinger"}}, "'hellinger' is none of reverse, forward"),
        ({"distill": {"teacher": "T", "divergence": "full-forward"}},
          "'full-forward' is none of .* no driver trains on distributions over the whole vocabulary"),
        ({"distill": {"teacher": "T", "divergence": "full-reverse"}, "driver": "verl", "options": {}},
          "'full-reverse' is none of .* no driver trains on distributions over the whole vocabulary"),
        ({"distill": {"teacher": "T", "coefficient": 0}}, "coefficient"),
        ({"distill": {"teacher": {"endpoint": "http://127.0.0.1:1/v1", "model": "m"}},
          "recipe": {"temperature": 0.5}}, "recipe.temperature is 0.5"),
        ({"distill": {"teacher": {"endpoint": "http://127.0.0.1:1/v1", "model": "m"}}}, "cannot be asked"),
    ],
)  # fmt: skip
async def test_what_cannot_be_carried_out_is_refused_before_a_rollout(
    tmp_path: Path, student: Path, fields: dict[str, Any], said: str
) -> None:
    called: list[Any] = []

    async def act(task: Any, llm: Any) -> None:
        called.append(task)

    with pytest.raises(Exception, match=said) as error:
        if isinstance(settings := fields.get("distill"), dict) and settings.get("teacher") == "T":
            fields = {**fields, "distill": {**settings, "teacher": str(student)}}
        await trainer(tmp_path, str(student), Watch(), **fields).afit(act, TASKS)
    assert isinstance(error.value, ConfigError | ValueError) and not called
