"""A model server that talks nonsense: what came is kept, counted and explained, never trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from agl_testing import Reply, ScriptedModelServer
from aiohttp import web
from e2e.bad import Line, ask, soon

from agentlightning import LLM
from agentlightning.algorithms.evaluate import NothingRewarded

SPOILT: dict[str, Any] = {
    "ids are words": lambda choice: choice.update(token_ids=["a", "b"]),
    "ids are fractions": lambda choice: choice.update(token_ids=[0.5] * len(choice["token_ids"])),
    "ids are too large": lambda choice: choice.update(token_ids=[2**40] * len(choice["token_ids"])),
    "ids are negative": lambda choice: choice.update(token_ids=[-1] * len(choice["token_ids"])),
    "ids are null": lambda choice: choice.update(token_ids=None),
    "ids are fewer": lambda choice: choice.update(token_ids=choice["token_ids"][:-1]),
    "logprobs above 0": lambda choice: _logprobs(choice, 3.0),
    "logprobs are words": lambda choice: _logprobs(choice, "low"),
    "no message": lambda choice: choice.pop("message"),
}
"""Prompt → what becomes of the first choice of an answer that was right."""
FAULTS = ("half-json", "wrong-lengths", "no-ids", "duplicate-id", "disconnect")
RAW = {
    "html": web.Response(text="<html><h1>502 Bad Gateway</h1></html>", content_type="text/html"),
    "nothing": web.Response(body=b"", content_type="application/json"),
    "no utf-8": web.Response(body=b'{"id": "\xff\xfe"}', content_type="application/json"),
    "a list": web.Response(body=b"[1, 2, 3]", content_type="application/json"),
    "no choices": web.Response(body=b'{"choices": []}', content_type="application/json"),
    "null": web.Response(body=b"null", content_type="application/json"),
}
"""Prompt → another answer."""
_NO_IDS = {f"ids are {what}" for what in ("words", "fractions", "too large", "negative")}
UNREADABLE = {"half-json", "disconnect", "no message", "logprobs are words", *_NO_IDS, *RAW}
"""The agent got no answer."""


def _logprobs(choice: dict[str, Any], value: Any) -> None:
    for entry in choice["logprobs"]["content"]:
        entry["logprob"] = value


class Garbage(ScriptedModelServer):
    """Answers with what the prompt asks for."""

    def __init__(self) -> None:
        super().__init__(lambda body: Reply(message="ok", fault=_fault(body)))

    async def _send(self, request: web.Request, exchange: Any) -> web.StreamResponse:
        wanted = exchange.body["messages"][-1]["content"]
        if (other := RAW.get(wanted)) is not None:
            return web.Response(body=other.body, content_type=other.content_type)
        response = await super()._send(request, exchange)
        if wanted in SPOILT and isinstance(response, web.Response):
            answer = json.loads(response.text or "")
            SPOILT[wanted](answer["choices"][0])
            return web.json_response(answer)
        return response


def _fault(body: dict[str, Any]) -> Any:
    wanted = body["messages"][-1]["content"]
    return wanted if wanted in FAULTS else None


async def asks(task: str, llm: LLM) -> float:
    """Two calls, so that an id may come twice; a good one first."""
    await ask(llm, "hello")
    await ask(llm, task)
    return 1.0


@pytest.mark.slow
async def test_each_kind_of_garbage_is_kept_and_explained_and_the_run_goes_on(tmp_path: Path) -> None:
    tasks = ["good", *FAULTS, *SPOILT, *RAW]
    async with Garbage() as server:
        line = Line(server, tmp_path, batch_size=len(tasks), max_attempts=1)
        result = await soon(line.fit(asks, tasks))
    out, failures = line.out(), line.failures()
    # who got no answer has failed by the model's fault, the others go on
    assert {n for n, reason in line.reasons().items() if reason} == UNREADABLE
    assert failures == {"model-5xx": len(UNREADABLE), None: len(tasks) - len(UNREADABLE)}
    # each call is on record, with what is wrong with it
    assert all(len(record.calls) == 2 for record in line.records) and len(server.log) == 2 * len(tasks)
    assert result["totals"]["calls"] == 2 * len(tasks)
    errors = {name: record.calls[1].error for name, record in line.by_task().items() if name in UNREADABLE}
    assert all(errors.values()) and "0 bytes" in str(errors["nothing"])
    # of those that could be read, only what is whole is trained
    trained = len(tasks) - len(UNREADABLE)
    assert line.trained == set(tasks) - UNREADABLE  # each has a good call before the spoilt one
    assert out == {"failed-rollout": 2 * len(UNREADABLE), "mismatch": 2, "no-ids": 2, "bad-logprobs": 1}
    assert sum(ledger.trained for batch in line.driver.batches for ledger in batch.ledgers) == trained + 2
    # nobody's ids are another's
    twice = line.by_task()["duplicate-id"].calls
    assert len({call.call_id for call in twice}) == 2


@pytest.mark.slow
async def test_a_stream_of_garbage(tmp_path: Path) -> None:
    async def streams(task: str, llm: LLM) -> float:
        await ask(llm, task, stream=True)
        return 1.0

    tasks = ["good", "half-json", "wrong-lengths", "no-ids", "disconnect", "html", "nothing"]
    async with Garbage() as server:
        line = Line(server, tmp_path, batch_size=len(tasks), max_attempts=1)
        await soon(line.fit(streams, tasks))
    assert line.trained == {"good"}
    assert {n for n, reason in line.reasons().items() if reason} == {
        "half-json",
        "disconnect",
        "html",
        "nothing",
    }
    assert line.out() == {"failed-rollout": 4, "mismatch": 1, "no-ids": 1}


@pytest.mark.slow
async def test_nothing_but_garbage_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    async with Garbage() as server:
        line = Line(server, tmp_path, steps=20, max_attempts=1, no_signal_steps=1)
        with pytest.raises(NothingRewarded, match=r"10 steps were outages, .*model-5xx"):
            await soon(line.fit(asks, ["html"]))
    assert line.failures() == {"model-5xx": 10}


@pytest.mark.slow
async def test_an_agent_that_bears_garbage_is_judged_by_what_it_did(tmp_path: Path) -> None:
    async def patient(task: str, llm: LLM) -> float:
        for _ in range(3):
            try:
                await ask(llm, task)
            except openai.APIStatusError:
                task = "good"
        return 0.5

    async with Garbage() as server:
        line = Line(server, tmp_path)
        result = await soon(line.fit(patient, ["half-json"]))
    assert line.trained == {"half-json"} and line.out() == {"error": 1}
    assert result["totals"]["calls"] == 3 == len(server.log)
