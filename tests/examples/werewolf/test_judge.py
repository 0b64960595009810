"""The judge of speeches: asked once a text, bounded, and neutral when it fails."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from agl_testing import Reply
from agl_testing.scripted import ScriptedModelServer

from agentlightning.types import LLM
from werewolf.engine import Outcome, Role, Side
from werewolf.judge import BadJudge, Judge, endpoint_of, judge_of, judged
from werewolf.players.asking import Account, Decision
from werewolf.rewards import Rewards
from werewolf.wording import wording

ZH = wording("zh")


def at(server: ScriptedModelServer) -> LLM:
    return LLM(endpoint=server.url, model="scripted", api_key="none")


def spoken(seat: int, call: str, said: str, side: str = "wolves") -> Decision:
    return Decision(seat, "wolf", side, "speech", (call,), True, said=said)


async def test_each_text_is_asked_once_and_remembered() -> None:
    account = Account([spoken(1, "a", "甲"), spoken(2, "b", "甲"), spoken(1, "c", "乙")])
    async with ScriptedModelServer(lambda body: "0.75") as server:
        for asked, cached in ((2, 1), (0, 3)):  # the second game finds them all
            scores, counts = await judged(account, [1, 2], at(server), ZH, None)
            assert scores == dict.fromkeys("abc", 0.75)
            assert counts == Counter({"asked": asked, "cached": cached}) and counts["asked"] == asked
        assert judge_of(at(server), ZH) is judge_of(at(server), ZH) is not judge_of(at(server), wording("en"))
        assert len(server.log) == 2
        assert {x.body["messages"][1]["content"] for x in server.log} == {"发言：甲", "发言：乙"}
        assert all(x.body["temperature"] == 0 for x in server.log)


async def test_only_public_words_of_the_seats_asked_for_are_judged() -> None:
    invalid = Decision(1, "wolf", "wolves", "speech", ("d",), False, said="丁")
    account = Account([spoken(1, "a", "甲"), spoken(2, "b", "乙"), spoken(1, "c", ""), invalid])
    async with ScriptedModelServer(lambda body: "1") as server:
        scores, _ = await judged(account, [1], at(server), ZH, None)
    assert scores == {"a": 1.0} and len(server.log) == 1


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("很好", "NoScore"),
        ("1.5", "NoScore"),
        ("-0.5", "NoScore"),
        ("nan", "NoScore"),
        ("", "NoScore"),
        ([{"score": "高"}], "NoScore"),
        (["no json"], "NoScore"),
        (Reply(status=500, message="broken"), "InternalServerError"),
        (Reply(status=429, message="slow down"), "RateLimitError"),
        (Reply(message="0.5", fault="disconnect"), "APIConnectionError"),
        (Reply(message="0.5", fault="half-json"), "JSONDecodeError"),
    ],
)
async def test_what_fails_is_counted_and_has_no_score(answer: Any, why: str) -> None:
    said = tool(answer[0]) if isinstance(answer, list) else answer
    judge, counts = Judge(ZH), Counter[str]()
    async with ScriptedModelServer(lambda body: said) as server:
        assert await judge.score("甲", at(server), None, counts) is None
        assert counts == Counter({"asked": 1, f"failed:{why}": 1})
        server.reply = lambda body: " 0.25\n"  # a failure is not remembered
        assert await judge.score("甲", at(server), None, counts) == 0.25


def tool(arguments: Any) -> dict[str, Any]:
    """An answer by a finish tool."""
    import json

    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    call = {"id": "call_1", "type": "function", "function": {"name": "finish", "arguments": text}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


async def test_a_finish_tool_is_read_too() -> None:
    async with ScriptedModelServer(lambda body: tool({"score": 0.4})) as server:
        assert await Judge(ZH).score("甲", at(server), None, Counter()) == 0.4


async def test_a_judge_that_does_not_answer_is_given_up() -> None:
    gone = asyncio.Event()

    async def script(body: Any) -> str:
        await gone.wait()
        return "1"

    judge, counts = Judge(ZH, seconds=0.05), Counter[str]()
    async with ScriptedModelServer(script) as server:
        assert await judge.score("甲", at(server), None, counts) is None
        gone.set()
    assert counts == Counter({"asked": 1, "failed:TimeoutError": 1})


async def test_no_more_than_so_many_at_once() -> None:
    running, most, full, go = 0, 0, asyncio.Event(), asyncio.Event()

    async def script(body: Any) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            full.set()
        await go.wait()
        running -= 1
        return "1"

    judge, counts = Judge(ZH, at_once=3), Counter[str]()
    async with ScriptedModelServer(script) as server:
        asking = asyncio.gather(*(judge.score(str(n), at(server), None, counts) for n in range(8)))
        await full.wait()
        go.set()
        assert await asking == [1.0] * 8
    assert most == 3 and counts["asked"] == 8


async def test_who_waits_for_a_game_that_is_cancelled_asks_itself() -> None:
    arrived = asyncio.Event()

    async def script(body: Any) -> str:
        if not arrived.is_set():
            arrived.set()
            await asyncio.Event().wait()
        return "0.5"

    judge, counts = Judge(ZH), Counter[str]()
    async with ScriptedModelServer(script) as server:
        first = asyncio.create_task(judge.score("甲", at(server), None, counts))
        await arrived.wait()
        second = asyncio.create_task(judge.score("甲", at(server), None, counts))
        first.cancel()
        assert await second == 0.5
        with pytest.raises(asyncio.CancelledError):
            await first
    assert counts["asked"] == 2 and not counts["cached"]


async def test_what_was_not_heard_for_long_is_forgotten() -> None:
    judge, counts = Judge(ZH, remembered=2), Counter[str]()
    async with ScriptedModelServer(lambda body: "1") as server:
        for text in ("甲", "乙", "甲", "丙", "甲", "乙"):
            assert await judge.score(text, at(server), None, counts) == 1.0
    assert counts == Counter({"asked": 4, "cached": 2})


def test_a_score_counts_by_its_distance_from_neutral() -> None:
    roles = {1: Role.WOLF}
    account = Account([spoken(1, "a", "甲"), spoken(1, "b", "乙"), spoken(1, "c", "丙")])
    won = Outcome(Side.WOLVES, "victory", 2)
    found = dict(Rewards(judge=0.2).of_calls(account, won, roles, {"a": 1.0, "b": 0.25}))
    assert found == pytest.approx({"a": 1.1, "b": 0.95, "c": 1.0})
    assert dict(Rewards().of_calls(account, won, roles, {"a": 1.0})) == dict.fromkeys("abc", 1.0)


def test_a_judge_is_an_endpoint_that_is_not_trained() -> None:
    llm, other = LLM(endpoint="e", model="m"), LLM(endpoint="e", model="other")
    assert endpoint_of("llm:critic", llm, {"critic": other}) is other
    for kind, why in (
        ("critic", "is not llm:NAME"),
        ("llm:none", "one of the endpoints"),
        ("llm:llm", "not trained"),
    ):
        with pytest.raises(BadJudge, match=why):
            endpoint_of(kind, llm, {"critic": other, "llm": llm})
