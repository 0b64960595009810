"""Teachers: a folder and an endpoint give the same logprobs, and what goes wrong with either has a name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agentlightning.types import Grammar, Row, Segment, UsageError
from agentlightning.types.tokens import TokenIds
from agl_distill import endpoint
from agl_distill.endpoint import EndpointTeacher, NoTeacher
from agl_distill.settings import EndpointSection
from agl_distill.teacher import FolderTeacher
from agl_distill.vocabulary import OtherVocabulary, check_same_vocabulary
from agl_local.inspect import LocalInspector
from agl_local.policy.folder import load_policy
from plugins.distill.tests.teaching import PromptLogprobs
from plugins.local.tests.driver_fixtures import make_row


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "PAUSE", 0.0)


@pytest.fixture
def rows(student: Path) -> list[Row]:
    model = load_policy(student).model
    return [
        make_row(model, [257, 20, 30, 40, 50, 60], [(2, 5)], name="a"),
        make_row(model, [257, 21, 31, 41, 51, 61, 71], [(1, 3), (4, 7)], name="b"),
    ]


def at(server: PromptLogprobs, **fields: Any) -> EndpointTeacher:
    return EndpointTeacher(EndpointSection(endpoint=server.url, model="master", **fields), tries=3)


async def test_an_endpoint_and_a_folder_give_what_the_weights_give(
    student: Path, master: Path, rows: list[Row]
) -> None:
    folder = FolderTeacher(master, LocalInspector(master))
    await folder.open(student)
    by_folder = await folder.score(rows)
    by_hand = [make_row(load_policy(master).model, r.token_ids, _spans(r)).logprobs for r in rows]
    async with PromptLogprobs(master).serving() as server:
        teacher = at(server)
        await teacher.open(student)
        assert len(server.asked) >= 2 and len({id_ for b in server.asked for id_ in b["prompt"]}) == 259
        server.asked.clear()
        by_endpoint = await teacher.score(rows)
        await teacher.close()
    assert sorted(b["prompt"] for b in server.asked) == [list(r.token_ids) for r in rows]
    assert {(b["model"], b["max_tokens"], b["prompt_logprobs"]) for b in server.asked} == {("master", 1, 1)}
    for found, same, known in zip(by_folder, by_endpoint, by_hand, strict=True):
        assert found == pytest.approx(list(known), abs=1e-5) and same == pytest.approx(found, abs=1e-6)


def _spans(row: Row) -> list[tuple[int, int]]:
    return [(one.start, one.end) for one in row.segments]


@pytest.mark.parametrize("trouble", ["500", "429", "nan", "short", "hung up"])
async def test_what_passes_is_asked_again(student: Path, master: Path, rows: list[Row], trouble: str) -> None:
    async with PromptLogprobs(master).serving() as server:
        teacher = at(server)
        await teacher.open(student)
        server.asked.clear()
        server.spoil = lambda n, answer: spoiled(trouble, answer) if n < 3 else None
        (found,) = await teacher.score(rows[:1])
        await teacher.close()
    assert len(server.asked) == 3 and isinstance(found, list)


@pytest.mark.parametrize(
    ("trouble", "reason", "asked"),
    [("500", "distill-failed", 3), ("short", "distill-wrong-length", 3), ("404", "distill-failed", 1),
     ("none", "distill-failed", 1), ("nan", "distill-not-finite", 3), ("no json", "distill-failed", 3)],
)  # fmt: skip
async def test_what_does_not_pass_is_the_rows_reason_and_no_other_rows(
    student: Path, master: Path, rows: list[Row], trouble: str, reason: str, asked: int
) -> None:
    async with PromptLogprobs(master).serving() as server:
        teacher = at(server)
        await teacher.open(student)
        server.asked.clear()
        bad = list(rows[0].token_ids)
        server.spoil = lambda n, answer: (
            spoiled(trouble, answer) if server.asked[n - 1]["prompt"] == bad else None
        )
        first, second = await teacher.score(rows)
        await teacher.close()
    assert first == reason and isinstance(second, list)
    assert sum(b["prompt"] == bad for b in server.asked) == asked


def spoiled(trouble: str, answer: dict[str, Any]) -> web.Response | None:
    """An answer with a fault in it."""
    choice = answer["choices"][0]
    if trouble.isdigit():
        return web.json_response({"error": "no"}, status=int(trouble))
    if trouble == "no json":
        return web.Response(text="<html>", content_type="application/json")
    if trouble == "hung up":
        return web.Response(status=502)
    if trouble == "short":
        choice["prompt_logprobs"].pop()
    if trouble == "none":
        del choice["prompt_logprobs"]
    if trouble == "nan":
        (one,) = [v for k, v in choice["prompt_logprobs"][2].items() if k != "0"]
        one["logprob"] = None
    return None


async def test_an_endpoint_that_is_down_is_refused_before_the_run_and_counted_in_it(
    student: Path, master: Path, rows: list[Row]
) -> None:
    async with PromptLogprobs(master).serving() as server:
        teacher = at(server)
        await teacher.open(student)
    assert await teacher.score(rows) == ["distill-failed", "distill-failed"]
    with pytest.raises(NoTeacher, match="cannot be asked: ClientConnectorError"):
        await teacher.open(student)
    await teacher.close()


async def test_another_vocabulary_is_refused_by_name(student: Path, master: Path, tmp_path: Path) -> None:
    check_same_vocabulary(student, master)
    other = tmp_path / "other"
    other.mkdir()
    for name in ("tokenizer_config.json", "config.json", "model.safetensors"):
        if (master / name).exists():
            (other / name).write_bytes((master / name).read_bytes())
    told = json.loads((master / "tokenizer.json").read_text())
    pieces = told["model"]["vocab"]
    pieces["a"], pieces["b"] = pieces["b"], pieces["a"]
    (other / "tokenizer.json").write_text(json.dumps(told))
    with pytest.raises(
        OtherVocabulary, match=r"2 ids differ, the first is \d+ \('a' of the policy, 'b' of the"
    ):
        await FolderTeacher(other, LocalInspector(other)).open(student)
    async with PromptLogprobs(other).serving() as server:
        teacher = at(server)
        with pytest.raises(OtherVocabulary, match=r"id [0-9]+ is 'a' of the policy and 'b' of the teacher"):
            await teacher.open(student)
        await teacher.close()
    (other / "tokenizer.json").unlink()
    with pytest.raises(UsageError, match=r"cannot be read from its tokenizer\.json"):
        check_same_vocabulary(student, other)


async def test_a_server_without_prompt_logprobs_and_a_key_that_is_missing_are_said(
    student: Path, master: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with PromptLogprobs(master).serving() as server:
        server.spoil = lambda n, answer: spoiled("none", answer)
        teacher = at(server)
        with pytest.raises(NoTeacher, match="returned no prompt_logprobs"):
            await teacher.open(student)
        await teacher.close()
        with pytest.raises(NoTeacher, match="MASTER_KEY is not set"):
            await at(server, api_key_env="MASTER_KEY").open(student)
        monkeypatch.setenv("MASTER_KEY", "sesame")
        server.spoil = lambda n, answer: None
        teacher = at(server, api_key_env="MASTER_KEY")
        await teacher.open(student)
        await teacher.close()
        assert server.keys[-1] == "Bearer sesame" and "sesame" not in str(teacher)


def test_calls_of_another_distribution_are_refused_by_name(master: Path, rows: list[Row]) -> None:
    server = PromptLogprobs(master)
    server.url = "http://127.0.0.1:1/v1"
    remote, folder = at(server), FolderTeacher(master, LocalInspector(master))
    row, one = rows[0], rows[0].segments[0]
    assert remote.refuses(row, one) == folder.refuses(row, one) == ""
    off = Segment("a-0", one.start, one.end, 1.0, off_policy=True)
    assert remote.refuses(row, off) == folder.refuses(row, off) == "distill-off-policy"
    row.temperature = 0.7
    assert (remote.refuses(row, one), folder.refuses(row, one)) == ("distill-constrained", "")
    row.temperature, row.allowed = 1.0, {one.start: [[30, 40, 50]]}
    assert (remote.refuses(row, one), folder.refuses(row, one)) == ("distill-constrained", "")
    row.allowed, row.grammars = {}, {one.start: Grammar(library="l", version="1", text="")}
    assert remote.refuses(row, one) == "distill-constrained"


async def test_a_folder_without_weights_is_refused_before_the_run(
    student: Path, master: Path, tmp_path: Path
) -> None:
    for file in master.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(UsageError, match="no such weights file"):
        await FolderTeacher(tmp_path, LocalInspector(tmp_path)).open(student)


async def test_a_row_that_a_folder_cannot_score_takes_no_other_with_it(
    student: Path, master: Path, rows: list[Row]
) -> None:
    teacher = FolderTeacher(master, LocalInspector(master))
    rows[0].token_ids = TokenIds([*rows[0].token_ids[:3], 5_000, *rows[0].token_ids[4:]])
    first, second = await teacher.score(rows)
    assert first == "distill-failed" and isinstance(second, list)
