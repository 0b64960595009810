"""The graph over HTTP: which calls it makes, what it earns, and that concurrent runs share nothing."""

from __future__ import annotations

import asyncio
import hashlib
import random
import sqlite3
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("langgraph", reason="the agent is a LangGraph graph")
pytest.importorskip("langchain_openai")

from agl_testing import Reply, ScriptedModelServer
from openai import BadRequestError

from spider.agent import SqlAgent, agent, brief
from spider.budget import BRIEF, Budget
from spider.databases import find
from spider.datasets import load
from spider.headroom import chance, oracle
from spider.oracle import stumbles
from spider.prompts import CHECK, REWRITE, RIGHT, WRITE, WRONG, fenced
from spider.questions import generate
from spider.sql.execution import Limits
from spider.sql.matching import GoldError
from spider.teacher import check, lessons, rewrite, slip, write

TASK = {
    "id": "t",
    "db_id": "loan_1",
    "question": "What is the average amount?",
    "query": "SELECT avg(amount) FROM loan",
    "kind": "",
    "folder": "",
}
NODES = {WRITE: "write", CHECK: "check", REWRITE: "rewrite"}


def at(server: ScriptedModelServer, key: str = "k") -> Any:
    return SimpleNamespace(endpoint=server.url, api_key=key, model="tiny")


def node_of(body: dict[str, Any]) -> str:
    return next(node for text, node in NODES.items() if body["messages"][0]["content"].startswith(text))


def script(**answers: Any) -> Callable[[dict[str, Any]], Any]:
    """Answers by node: a text, or texts one after the other."""
    left = {node: list(given) if isinstance(given, list) else [given] for node, given in answers.items()}

    def reply(body: dict[str, Any]) -> Any:
        texts = left[node_of(body)]
        return texts.pop(0) if len(texts) > 1 else texts[0]

    return reply


def nodes(server: ScriptedModelServer) -> list[str]:
    return [node_of(exchange.body) for exchange in server.log]


GOOD, BAD = fenced(TASK["query"]), fenced("SELECT average(amount) FROM loan")
YES, NO = f"{RIGHT}.", f"No such function.\n{WRONG}."


async def test_a_right_query_takes_two_calls() -> None:
    async with ScriptedModelServer(script(write=GOOD, check=YES)) as server:
        assert await agent.run(TASK, at(server)) == 1.0
        assert nodes(server) == ["write", "check"]
        sent = server.log[1].body["messages"][-1]["content"]
    assert sent.endswith("Result:\n1 row: avg(amount)\n3350.0")


async def test_a_rewritten_query_is_executed_again() -> None:
    """Reviews see what the query before them returned, never what an earlier one did."""
    async with ScriptedModelServer(script(write=BAD, rewrite=GOOD, check=[NO, YES])) as server:
        final = await agent.answer(TASK, at(server))
        assert nodes(server) == ["write", "check", "rewrite", "check"]
        texts = [exchange.body["messages"][-1]["content"] for exchange in server.log]
    assert "Error: no such function: average" in texts[1]
    assert "Error: no such function: average" in texts[2] and texts[2].endswith(f"Judgement:\n{NO}")
    assert texts[3].endswith("1 row: avg(amount)\n3350.0") and "Error" not in texts[3]
    assert final["query"] == TASK["query"] and final["turns"] == 2
    assert [message.name for message in final["messages"]] == ["write", "check", "rewrite", "check"]


async def test_turns_end_and_no_review_is_made_that_could_change_nothing() -> None:
    async with ScriptedModelServer(script(write=BAD, rewrite=BAD, check=NO)) as server:
        assert await agent.run(TASK, at(server)) == 0.0
        assert nodes(server) == ["write", "check", "rewrite", "check", "rewrite"]
        server.log.clear()
        assert await SqlAgent(Budget(turns=1)).run(TASK, at(server)) == 0.0
        assert nodes(server) == ["write"]


async def test_a_review_without_a_verdict_asks_for_another_query() -> None:
    async with ScriptedModelServer(script(write=GOOD, rewrite="I give up", check=["Hm.", YES])) as server:
        final = await agent.answer(TASK, at(server))
        assert nodes(server) == ["write", "check", "rewrite", "check"]
    assert final["query"] == TASK["query"]  # a rewrite without a query keeps the one before


async def test_a_failed_model_call_is_a_failed_run_and_makes_no_other_call() -> None:
    refused = Reply(status=400, message="too long")
    async with ScriptedModelServer(script(write=GOOD, check=refused)) as server:
        with pytest.raises(BadRequestError, match="too long"):
            await agent.run(TASK, at(server))
        assert nodes(server) == ["write", "check"]


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE loan",
        "UPDATE loan SET amount = 0",
        "SELECT 1; DELETE FROM loan",
        "ATTACH 'x.sqlite' AS x",
        "PRAGMA writable_schema = 1",
        "SELECT '\0'",
        "",
    ],
)
async def test_the_agent_cannot_change_the_database(sql: str) -> None:
    path = find("loan_1")[0]
    before = hashlib.sha256(path.read_bytes()).digest()
    async with ScriptedModelServer(script(write=fenced(sql), rewrite=fenced(sql), check=NO)) as server:
        final = await agent.answer(TASK, at(server))
        assert final["result"].startswith("Error: ")
        assert await agent.run(TASK, at(server)) == 0.0
    assert hashlib.sha256(path.read_bytes()).digest() == before


async def test_a_runaway_query_ends_and_blocks_nobody() -> None:
    """Neither running nor grading it stops the event loop, and both come to an end."""
    endless = fenced("WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c")
    slow = SqlAgent(Budget(turns=1, sql=Limits(seconds=0.3, operations=10**12)))
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    async with ScriptedModelServer(script(write=endless)) as server:
        ticking = asyncio.create_task(tick())
        final = await slow.answer(TASK, at(server))
        assert final["result"] == "Error: the query took more than 0.3 seconds"
        before = ticks
        assert await slow.run(TASK, at(server)) == 0.0
        ticking.cancel()
    assert ticks > before + 20


async def test_a_broken_task_is_an_error_not_a_zero() -> None:
    async with ScriptedModelServer(script(write=GOOD, check=YES)) as server:
        with pytest.raises(FileNotFoundError, match="there is no database 'zoo'"):
            await agent.run({**TASK, "db_id": "zoo"}, at(server))
        with pytest.raises(GoldError, match="the gold query 'SELECT x FROM loan' fails"):
            await agent.run({**TASK, "query": "SELECT x FROM loan"}, at(server))


async def test_prompts_keep_to_their_budget() -> None:
    huge = fenced("SELECT a.Name || b.Name FROM wine a, wine b LIMIT 9999")
    task = {**TASK, "db_id": "wine_1", "query": "SELECT 1"}
    for tried, budget in ((agent, Budget()), (brief, BRIEF)):
        async with ScriptedModelServer(script(write=huge, rewrite=huge, check=NO)) as server:
            await tried.run(task, at(server))
            for exchange in server.log:
                system, user = (message["content"] for message in exchange.body["messages"])
                assert len(system) <= max(map(len, NODES)) + budget.schema_chars
                assert len(user) <= 400 + budget.result_chars
                assert exchange.body["max_completion_tokens"] == budget.answer_tokens
                assert "temperature" not in exchange.body


async def test_the_teacher_writes_the_very_prompts_the_agent_sends() -> None:
    rng = random.Random(0)
    for lesson in islice(lessons(7), 24):
        about = lesson.combination
        task = {**TASK, "db_id": about.database, "question": lesson.question, "query": lesson.right}
        first = slip(lesson, rng) if about.kind == "list" else lesson.usual
        review = check(lesson, first)
        taught = [write(lesson, first), review]
        if WRONG in review.reply:
            taught += [rewrite(lesson, first, lesson.right), check(lesson, lesson.right)]
        left = iter(taught)
        async with ScriptedModelServer(lambda body, left=left: next(left).reply) as server:  # type: ignore[misc]
            await brief.run(task, at(server))
            for example, exchange in zip(taught, server.log, strict=True):
                sent = [{key: m[key] for key in ("role", "content")} for m in exchange.body["messages"]]
                assert sent == example.messages


async def test_the_oracle_earns_everything_and_stumbles_on_purpose() -> None:
    tasks = [*load("dev")[::16], *generate("heldout", 12)]
    async with ScriptedModelServer(oracle(tasks)) as server:
        rewards = await asyncio.gather(*(agent.run(task, at(server)) for task in tasks))
        calls = nodes(server)
    assert rewards == [1.0] * len(tasks)
    stumbled = sum(stumbles(task["question"]) for task in tasks)
    assert 0 < stumbled == calls.count("rewrite")
    assert len(calls) == 2 * len(tasks) + 2 * stumbled


async def test_chance_makes_whole_runs() -> None:
    tasks = generate("heldout", 24)
    async with ScriptedModelServer(chance(tasks)) as server:
        rewards = await asyncio.gather(*(brief.run(task, at(server)) for task in tasks))
    assert sum(rewards) < 6


async def test_concurrent_runs_keep_their_own_key_and_reward() -> None:
    tasks = generate("heldout", 24)
    wrong = [
        {**task, "query": "SELECT 'nothing of the kind'"} if i % 2 else task for i, task in enumerate(tasks)
    ]
    async with ScriptedModelServer(oracle(tasks)) as server:
        runs = (brief.run(task, at(server, f"k{i}")) for i, task in enumerate(wrong))
        assert await asyncio.gather(*runs) == [1.0, 0.0] * 12
        keys = [exchange.headers["authorization"] for exchange in server.log]
    calls = {f"Bearer k{i}": 4 if stumbles(task["question"]) else 2 for i, task in enumerate(tasks)}
    assert {key: keys.count(key) for key in keys} == calls


async def test_the_answer_of_a_folder_with_several_databases_must_hold_in_all(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    for name, n in (("shop", 1), ("shop_2", 2)):
        connection = sqlite3.connect(tmp_path / "shop" / f"{name}.sqlite")
        connection.executescript(f"CREATE TABLE t (x); INSERT INTO t VALUES ({n})")
        connection.close()
    task = {**TASK, "db_id": "shop", "folder": str(tmp_path), "query": "SELECT x FROM t"}
    async with ScriptedModelServer(script(write=fenced("SELECT 1"), check=YES)) as server:
        assert await agent.run(task, at(server)) == 0.0
    async with ScriptedModelServer(script(write=fenced("SELECT max(x) FROM t"), check=YES)) as server:
        assert await agent.run(task, at(server)) == 1.0
