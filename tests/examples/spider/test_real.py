"""The pretrained model's side of spider: the plain form, the schema's short form, chats, names, the agent."""

from __future__ import annotations

import asyncio
import json
import random
import re
import runpy
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from marks import sampled

pytest.importorskip("langgraph", reason="the agent is a LangGraph graph")
pytest.importorskip("langchain_openai")

from agl_testing import ScriptedModelServer

from agentlightning.algorithms.tasks import DatasetError
from agentlightning.types import UsageError
from agl_audit.run import open_run
from spider.databases import BUNDLED, databases_of, find
from spider.real import baseline, chats, demo, journey, outcomes, solved, tasks
from spider.real.agent import LINK_TOKENS, agent, named, shown
from spider.real.names import query_pattern, tables_pattern
from spider.real.plain import plain, tables_in
from spider.real.prompts import EXAMPLE, NO_ROWS, complaint, linked, names_in, opening, schema_of
from spider.real.values import conditions
from spider.sql.execution import SqlError, run
from spider.sql.matching import match

HERE = Path(tasks.__file__).parent
SINGERS = find("concert_singer")[0]
TASK = next(one for one in tasks.load("test") if one["db_id"] == "concert_singer")


# ---------------------------------------------------------------------------------------- the plain form
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT  Name FROM singer ;", "select name from singer"),
        (
            "SELECT T2.name FROM concert AS T1 JOIN stadium AS T2 ON T1.stadium_id = T2.stadium_id "
            'WHERE T1.Year = 2014 AND T2.name != "O\'Neil"',
            "select stadium.name from concert join stadium on concert.stadium_id = stadium.stadium_id "
            "where concert.year = 2014 and stadium.name != 'O''Neil'",
        ),
        (  # a table that is read twice keeps its aliases
            "SELECT T1.name FROM singer AS T1 JOIN singer AS T2 ON T1.age = T2.age",
            "select t1.name from singer as t1 join singer as t2 on t1.age = t2.age",
        ),
        ("SELECT count(*) , max(Age) FROM singer", "select count(*), max(age) from singer"),
    ],
)
def test_a_query_in_its_plain_form(query: str, expected: str) -> None:
    assert plain(query, SINGERS) == expected


@pytest.mark.parametrize("spec", sampled(["test", "select", "train"], 0))
def test_every_plain_query_answers_as_its_gold_query(spec: str) -> None:
    for task in tasks.load(spec):
        databases = databases_of(task)
        text = plain(task["query"], databases[0])
        assert match(task["query"], text, databases).reward == 1.0, task["query"]
        assert tables_in(text, databases[0]), text


def test_what_cannot_be_made_plain_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spider.real.plain._without_aliases", lambda parts: parts[:1])
    assert (
        plain("SELECT  Name  FROM singer WHERE Age > 3", SINGERS) == "SELECT Name FROM singer WHERE Age > 3"
    )


# ---------------------------------------------------------------------------------------------- the schema
def test_the_short_schema_and_what_is_cut() -> None:
    whole = schema_of(SINGERS)
    assert whole.splitlines()[2:] == [
        "concert(concert_id, concert_name, theme, stadium_id>stadium, year)",
        "singer_in_concert(concert_id>concert, singer_id>singer)",
    ]
    cut = schema_of(SINGERS, len(whole) - 1)
    # stadium and singer are the widest, with seven columns each: the last of the two loses its last one.
    assert cut.splitlines()[1] == "singer(singer_id, name, country, song_name, song_release_year, age, ...)"
    assert len(cut) < len(whole) and cut.splitlines()[2:] == whole.splitlines()[2:]
    for chars in (400, 250, 150):
        text = schema_of(SINGERS, chars)
        assert "stadium_id>stadium" in text and "concert_id>concert" in text
    assert names_in(whole) >= {"singer", "song_release_year", "theme"}


def test_names_with_spaces_and_keywords_are_quoted(people: Path) -> None:
    assert 'nobody(id>person, "full name")' in schema_of(people)


# ----------------------------------------------------------------------------------------------- the chats
def test_chats_of_the_selection_databases() -> None:
    found = chats.chats("tuning:heldout", every=9)
    corrections = [one["messages"] for one in found if len(one["messages"]) == 7]
    plain_ones = [one["messages"] for one in found if len(one["messages"]) == 5]
    assert len(plain_ones) + len(corrections) == len(found) and len(corrections) >= 3
    for messages in plain_ones:
        assert [m["role"] for m in messages] == ["system", "user", "assistant", "user", "assistant"]
        schema = names_in(messages[0]["content"])
        assert names_in(messages[2]["content"]) <= schema and messages[2]["content"]
    for *_, wrong, said, right in corrections:
        assert wrong["weight"] == 0 and "weight" not in right
        assert wrong["content"] != right["content"] and said["content"]


def test_a_question_whose_names_were_cut_is_left_out_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    every = chats.questions("tuning:train")[::9]
    cut = [question for question in every if not chats.is_shown(question)]
    found = chats.chats("tuning:train", every=9)
    assert cut and len([one for one in found if len(one["messages"]) == 5]) == len(every) - len(cut)
    assert f"tuning:train: {len(cut)} questions left out" in caplog.text
    assert not {one["id"] for one in cut} & {one["id"] for one in tasks.load("train")}


def test_a_broken_query_is_refused_by_the_database_or_returns_nothing() -> None:
    query, said = "select name from singer where country = 'France' and age > 1", Counter[bool]()
    for seed in range(60):
        found = chats.broken(query, SINGERS, random.Random(seed))
        assert found is not None
        said[found[0] == NO_ROWS] += 1
        if found[0] == NO_ROWS:
            assert run(SINGERS, found[1]).rows == []
        else:
            with pytest.raises(SqlError, match=re.escape(found[0])):
                run(SINGERS, found[1])
    assert said[True] and said[False]


# ------------------------------------------------------------------------------- what is linked and looked up
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("select count(*) from singer", "singer"),
        ("select name from singer where age > 3", "singer(name, age)"),
        (
            "select stadium.name from concert join stadium on concert.stadium_id = stadium.stadium_id",
            "stadium(stadium_id, name), concert(stadium_id>stadium)",
        ),
        (  # a name without a table belongs to each table that has it, one behind an alias as well
            "select t1.name from singer as t1 join singer as t2 on t1.age = t2.age where year = 2014",
            "singer(name, age)",
        ),
        (
            "select name from stadium where stadium_id not in (select stadium_id from concert)",
            "stadium(stadium_id, name), concert(stadium_id>stadium)",
        ),
    ],
)
def test_the_tables_and_columns_of_a_query(query: str, expected: str) -> None:
    assert linked(query, SINGERS) == expected


def test_values_that_a_question_names(people: Path) -> None:
    assert conditions(SINGERS, "Which singers are from france, and not from the US?") == [
        "singer.country = 'France'"
    ]
    assert conditions(SINGERS, "What is the age of Justin Brown?") == ["singer.name = 'Justin Brown'"]
    assert conditions(SINGERS, "What are the names of all singers?") == []
    question = opening(SINGERS, "Is Justin Brown from France?")[1]["content"]
    assert question.splitlines()[1:] == ["singer.name = 'Justin Brown'", "singer.country = 'France'"]


def test_what_the_model_is_told_of_a_query_that_failed() -> None:
    said = complaint("no such column: yr", "select yr from concert", SINGERS)
    assert said == ("no such column: yr\nconcert(concert_id, concert_name, theme, stadium_id>stadium, year)")
    assert complaint("no such table: x", "select yr from x", SINGERS) == "no such table: x"
    joined = "select 1 from singer join stadium join concert join singer_in_concert"
    assert complaint(NO_ROWS, joined, SINGERS).startswith(NO_ROWS)


# ------------------------------------------------------------------------------------------------- the sets
def test_no_database_is_in_two_sets() -> None:
    sets = {spec: {one["db_id"] for one in tasks.load(spec)} for spec in tasks.SETS}
    assert [len(sets[spec]) for spec in ("train", "select", "test")] == [70, 12, 13]
    assert not any(sets[a] & sets[b] for a, b in (("train", "select"), ("train", "test"), ("select", "test")))
    assert sets["practice"] | sets["choice"] == sets["select"] and not sets["practice"] & sets["choice"]
    assert sets["choice"] == tasks.CHOICE
    both = tasks.load("train+practice")
    assert both == tasks.load("train") + tasks.load("practice")
    with pytest.raises(DatasetError, match="choose from train, select, practice, choice, test"):
        tasks.load("dev")


@pytest.mark.slow
def test_questions_by_solve_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    easy, mixed, hard = (one["id"] for one in tasks.load("train", limit=3))
    (tmp_path / "solved.json").write_text(json.dumps({easy: [4, 4], mixed: [1, 4], hard: [0, 4]}))
    monkeypatch.setattr(tasks, "SOLVED", tmp_path / "solved.json")
    assert [one["id"] for one in tasks.load("train", solved=(0.1, 0.9))] == [mixed]
    assert {one["id"] for one in tasks.load("train", solved=(0.0, 0.9))} == {mixed, hard}


# --------------------------------------------------------------------------------------------------- names
@pytest.mark.parametrize("spec", sampled(["test", "select", "train"], 0))
def test_the_patterns_of_names_allow_every_plain_query_and_its_link(spec: str) -> None:
    refused = []
    for task in tasks.load(spec):
        database = databases_of(task)[0]
        query = plain(task["query"], database)
        link = linked(query, database)
        if re.fullmatch(query_pattern(database, link), query) is None:
            refused.append(query)
        assert re.fullmatch(tables_pattern(database), link)
    assert not refused


@pytest.mark.parametrize(
    "query",
    [
        "select nam from singer",
        "select singer.capacity from singer",
        "drop table singer",
        "select name from x",
        "select singer from singer",
    ],
)
def test_the_pattern_refuses_names_that_there_are_not(query: str) -> None:
    assert re.fullmatch(query_pattern(SINGERS), query) is None
    assert re.fullmatch(query_pattern(SINGERS), "select name, age from singer where age > 3 limit 1")


def test_a_query_reads_the_tables_that_were_linked() -> None:
    query = "select name from stadium where stadium_id not in (select stadium_id from concert)"
    assert re.fullmatch(
        query_pattern(SINGERS, "stadium(stadium_id, name), concert(stadium_id>stadium)"), query
    )
    assert re.fullmatch(query_pattern(SINGERS, "stadium(stadium_id, name)"), query) is None
    assert query_pattern(SINGERS, "nothing that there is") == query_pattern(SINGERS)


def test_engine_and_trainer_can_mask_by_the_pattern() -> None:
    pytest.importorskip("torch")
    from agl_local.text.constraints import regex_grammar
    from agl_local.text.grammar import GrammarCompiler
    from plugins.local.tests.driver_fixtures import tiny_tokenizer

    tokenizer = tiny_tokenizer()
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size)
    grammar = compiler.check(regex_grammar(query_pattern(SINGERS)))
    ids = [*tokenizer.encode("select name from singer"), tokenizer.eos_ids[0]]
    assert len(compiler.bits(grammar, ids)) == len(ids)


# --------------------------------------------------------------------------------------------------- agent
def at(server: ScriptedModelServer) -> Any:
    return SimpleNamespace(endpoint=server.url, api_key="k", model="tiny")


def script(*answers: str) -> Any:
    said = iter(answers)
    return lambda body: next(said)


async def test_a_query_that_runs_is_the_answer() -> None:
    right = plain(TASK["query"], SINGERS)
    async with ScriptedModelServer(script("singer", right)) as server:
        assert await agent.run(TASK, at(server)) == 1.0
    link, write = (one.body for one in server.log)
    assert link["messages"] == opening(SINGERS, TASK["question"])
    assert write["messages"][:3] == [*link["messages"], {"role": "assistant", "content": "singer"}]
    assert link["max_completion_tokens"] == LINK_TOKENS and "guided_regex" not in link


async def test_a_refused_query_is_written_again_with_what_the_database_said() -> None:
    right = plain(TASK["query"], SINGERS)
    async with ScriptedModelServer(script("singer", "select nam from singer", right)) as server:
        assert await agent.run(TASK, at(server)) == 1.0
    messages = server.log[2].body["messages"]
    said = complaint("no such column: nam", "select nam from singer", SINGERS)
    assert [one["content"] for one in messages[-2:]] == ["select nam from singer", said]
    async with ScriptedModelServer(script("singer", "select nam from singer", "select x")) as server:
        assert await agent.run(TASK, at(server)) == 0.0
    assert len(server.log) == 3
    nothing = "select name from singer where age > 999"
    async with ScriptedModelServer(script("singer", nothing, right)) as server:
        assert await agent.run(TASK, at(server)) == 1.0
    assert server.log[2].body["messages"][-1]["content"].splitlines()[0] == NO_ROWS


async def test_names_are_asked_for_by_a_pattern_and_the_base_model_is_shown_an_example() -> None:
    right = plain(TASK["query"], SINGERS)
    async with ScriptedModelServer(script("singer", right, "singer", right)) as server:
        assert await named.run(TASK, at(server)) == 1.0 == await shown.run(TASK, at(server))
    patterns = [one.body.get("guided_regex") for one in server.log]
    assert patterns == [tables_pattern(SINGERS), query_pattern(SINGERS, "singer"), None, None]
    assert server.log[2].body["messages"][: len(EXAMPLE)] == EXAMPLE


async def test_runs_at_once_share_nothing() -> None:
    asked = [one for one in tasks.load("test", limit=40) if one["db_id"] != "concert_singer"][:12]
    by_question = {one["question"]: plain(one["query"], databases_of(one)[0]) for one in asked}

    def oracle(body: dict[str, Any]) -> str:
        messages = body["messages"]
        return (
            by_question[messages[1]["content"].splitlines()[0]] if messages[-1]["content"] == "sql" else "t"
        )

    async with ScriptedModelServer(oracle) as server:
        assert await asyncio.gather(*(agent.run(one, at(server)) for one in asked)) == [1.0] * len(asked)


# ------------------------------------------------------------------------------------ baseline and outcomes
def test_the_baseline_copies_a_query_with_other_names() -> None:
    lender = {**TASK, "query": "SELECT count(*) , avg(capacity) FROM stadium WHERE capacity > 100"}
    asked = {**TASK, "question": "How many singers have an age above 30?"}
    assert baseline.adapted(lender, asked) == "select count(*), avg(age) from singer where age > 30"
    test = tasks.load("test", limit=60)
    found = baseline.rewards(test, tasks.load("train", limit=300))
    assert set(found) == {one["id"] for one in test} and set(found.values()) == {0.0, 1.0}


def made(name: str, *rewards: float, database: str = "a") -> outcomes.Outcome:
    errors = ("no such column: x", "")[-len(rewards) :]
    return outcomes.Outcome(name, database, "q", "g", "eval", 0, "t", ("q",) * len(rewards), errors, rewards)


def test_figures_of_an_evaluation() -> None:
    before = [made("1", 0.0, 1.0), made("2", 0.0), made("3", 1.0, database="b")]
    after = [made("1", 1.0), made("2", 1.0), made("3", 0.0, 0.0, database="b")]
    found = outcomes.summary(before)
    assert (found["one_shot"], found["with_correction"], found["corrected"]) == (1 / 3, 2 / 3, 1)
    assert found["errors"] == Counter({"no such column": 1}) and found["last_runs"] == 1.0
    gained = outcomes.gain(after, before)
    assert (gained["gain"], gained["learned"], gained["lost"]) == (0.0, ["2"], ["3"])
    with pytest.raises(UsageError, match="of other questions"):
        outcomes.gain(after[:2], before)


async def test_what_an_evaluation_leaves_out_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    rollouts = [SimpleNamespace(rollout_id=str(i), status=s) for i, s in enumerate(("failed", "cancelled"))]
    store = SimpleNamespace(query_rollouts=AsyncMock(return_value=rollouts))

    @asynccontextmanager
    async def opened(place: str) -> Any:
        yield SimpleNamespace(store=store, run_id="r")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outcomes, "open_run", opened)
        assert await outcomes.outcomes("a run") == []
    assert "a run: 2 of 2 rollouts left out: they did not succeed" in caplog.text


def test_the_page_of_what_was_learned_and_lost() -> None:
    queries = {"right": "select count(*) from singer", "wrong": "select count(*) from singers"}
    one = outcomes.Outcome(
        "1", "concert_singer", "How many singers are there?", queries["right"], "eval", 0, "singer",
        (queries["right"],), ("",), (1.0,),
    )  # fmt: skip
    other = replace(one, queries=(queries["wrong"],), errors=("no such table: singers",), rewards=(0.0,))
    page = journey.markdown([one], [other], count=3)
    assert "Of 1 questions 1 are answered after and not before, 0 before and not after." in page
    before, after = page.split("## Learned: 1 of 1")[1].split("## Lost: 0 of 0")[0].split("**After**")
    assert queries["wrong"] in before and "no such table: singers" in before
    assert queries["right"] in after and "no such table" not in after


def test_solve_rates_are_added_up_over_evaluations(tmp_path: Path) -> None:
    outcomes.write([made("1", 1.0), made("2", 0.0, 1.0), made("3", 0.0)], tmp_path / "a.jsonl")
    outcomes.write([made("1", 0.0), made("2", 1.0)], tmp_path / "b.jsonl")
    places = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
    assert solved.rates(places) == {"1": [1, 2], "2": [2, 2], "3": [0, 1]}


@pytest.mark.slow
def test_the_page_says_what_the_kept_files_hold() -> None:
    """``bench/spider_real.py`` prints these figures; each is on the page."""
    found = runpy.run_path(str(HERE.parents[2] / "bench" / "spider_real.py"))["figures"]()
    page = (HERE / "README.md").read_text(encoding="utf-8")

    def cell(one: dict[str, Any]) -> str:
        low, high = one["ci"]
        return f"{one['right']:.3f} ({low:.2f}–{high:.2f})"

    def changed(one: dict[str, Any]) -> str:
        between = "no interval" if one["ci_gain"] is None else "{:.2f} to {:.2f}".format(*one["ci_gain"])
        return f"{one['gain']:+.3f} ({between})".replace("-", "−")

    for name in ("base", "sft", "select_sft", "select_free"):
        own = found[name]
        row = f"| {cell(own)} | {own['first_runs']:.3f} | {own['without_correction']:.3f} |"
        assert row in page, (name, row)
    for name, own in found["trick"].items():
        assert cell(own) in page, (name, own)
    low, high = found["against_trick"]["ci"]
    assert f"is {found['against_trick']['difference']:.3f} ({low:.2f} to {high:.2f})" in page
    words = " ".join(page.split())
    for own in found["solved"].values():
        assert f"pass@1 {own['pass@1']:.3f}, pass@4 {own['pass@4']:.3f}" in words
    assert "the {train[trained]} and the {practice[trained]} questions".format(**found["solved"]) in words
    choice = found["choice"]
    assert f"before {choice.pop('before'):.3f}" in page
    for name, own in choice.items():
        row = f"| {own['right']:.3f} | {changed(own)} | {own['first_runs']:.3f} |"
        assert any(line.endswith(row) for line in page.splitlines()), (name, row)
    for seed, own in found["test"]["seeds"].items():
        calls = f"{own['calls_exact']:,} of {own['calls']:,}"
        row = f"| {seed} | {cell(own)} | {changed(own)} | {own['first_runs']:.3f} | {own['corrected']} |"
        assert row in page and calls in page and own["calls"] == own["calls_exact"], (seed, row)
    assert f"| mean of the three | {found['test']['right']:.3f} | {changed(found['test'])} |" in page


def test_the_last_line_of_the_demo() -> None:
    asked = tasks.load("test", limit=8)
    right = [
        outcomes.Outcome(
            one["id"], one["db_id"], one["question"], one["query"], "eval", 0, "t", ("q",), ("",), (1.0,)
        )
        for one in asked
    ]
    wrong = [replace(one, rewards=(0.0,), errors=("no such column: x",)) for one in right]
    line = demo.figures({"base": wrong, "sft": wrong, "sft_rl": right})
    wanted = {
        "base", "sft", "sft_rl", "ci_base", "ci_sft", "ci_sft_rl", "gain", "ci_gain", "baseline",
        "ci_baseline", "one_shot", "with_correction",
    }  # fmt: skip
    assert wanted <= set(line) and (line["base"], line["sft"], line["sft_rl"]) == (0.0, 0.0, 1.0)
    assert line["gain"] == 1.0 and len(line["learned"]) == 8 == line["n"] and not line["lost"]
    assert 0.0 <= line["baseline"] <= 1.0
    json.dumps(line)


# ------------------------------------------------------------------------------------------------- training
@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny policy of SmolLM2's family with random weights: Llama, tied embeddings, byte-level tokens."""
    pytest.importorskip("torch")
    from agl_local.policy.folder import Policy, init_model, save_policy
    from plugins.local.tests.driver_fixtures import tiny_config, tiny_tokenizer

    config = replace(tiny_config(positions=2048), arch="llama", qkv_bias=False, tied=True)
    policy = Policy(init_model(config, 0, std=0.05).eval(), tiny_tokenizer(), config)
    return save_policy(policy, tmp_path_factory.mktemp("llama"))


@pytest.mark.slow
@pytest.mark.plugins
@pytest.mark.parametrize("target", ["agent", "named"])
async def test_each_node_is_trained_on_its_true_probabilities(
    llama: Path, tmp_path: Path, target: str
) -> None:
    """Also where the schema's names are all that may be written."""
    pytest.importorskip("torch")
    from agentlightning.cli.options import read
    from agentlightning.train.configured import configure

    sets = {
        "agent.target": f"spider.real.agent:{target}",
        "agent.timeout_seconds": "60",
        "training.steps": "1",
        "training.batch_size": "2",
        "training.recipe.group_size": "4",
        "environment.train.args": "{spec: train, limit: 2}",
        "environment.val.args": "{spec: select, limit: 3}",
        "trackers": "[files]",
        "backend.policy": str(llama),
        "backend.options": "{lr: 1.0e-3, threads: 1, engine: thread, max_num_seqs: 8, max_len: 2048}",
        "output": str(tmp_path),
        "run": "r",
    }
    config = read(HERE / "cpu.yaml", [f"{key}={value}" for key, value in sets.items()])
    trainer, chosen, train, val = configure(config)
    summary = await trainer.afit(chosen, train, val)
    assert summary["totals"]["logprob_gap_max"] < 1e-4
    assert summary["totals"]["calls"] == summary["totals"]["calls_exact"] >= 16
    async with open_run(str(tmp_path / "r")) as opened:
        rollouts = await opened.store.query_rollouts(run_id="r", mode="train")
        records = await opened.store.records([one.rollout_id for one in rollouts])
    calls = [call for record in records for call in record.calls]
    assert {call.tags["node"] for call in calls} <= {"link", "write", "rewrite"}
    assert all(call.selected for call in calls)
    assert all((call.grammar is not None) is (target == "named") for call in calls)
    found = await outcomes.outcomes(str(tmp_path / "r"))
    assert Counter(one.evaluation for one in found) == {"before": 3, "after": 3}
    assert all(1 <= len(one.queries) == len(one.errors) == len(one.rewards) <= 2 for one in found)
    outcomes.write(found, tmp_path / "kept.jsonl")
    assert await outcomes.outcomes(str(tmp_path / "kept.jsonl")) == found and len(found) == 6


def test_the_gpu_profile_is_the_cpu_profile_with_another_policy_and_more_questions() -> None:
    from agentlightning.train.run_file import load_config

    cpu, gpu = (load_config(HERE / f"{name}.yaml") for name in ("cpu", "gpu"))
    assert cpu.agent.target == gpu.agent.target and cpu.agent.select == gpu.agent.select
    assert cpu.training.recipe == gpu.training.recipe
    assert gpu.backend.options["device"] == "cuda" and gpu.training.batch_size > cpu.training.batch_size


def test_the_bundled_databases_are_those_of_the_test() -> None:
    assert {one["db_id"] for one in tasks.load("test")} <= {path.stem for path in BUNDLED.iterdir()}
