"""The AutoGen agent over HTTP: what it sends, what it earns, and that concurrent runs share nothing."""

from __future__ import annotations

import asyncio
import random
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from calc_x.agent import answer, solve, solve_over_mcp
from calc_x.calculator_server import workbench
from calc_x.datasets import load
from calc_x.evaluate import POLICY
from calc_x.oracle import answer_message, call_message, gold_lookup, random_reply, reply
from calc_x.problems import Problem, generate
from calc_x.teacher import TOOLS, teach


def _serve_oracle(model: Any, problems: list[Problem]) -> None:
    gold = gold_lookup(problems)
    model.script = lambda messages, tools: reply(messages, tools, gold)


async def test_the_oracle_earns_everything_with_one_call_and_one_answer(scripted_model: Any) -> None:
    problems = generate("train", 8)
    _serve_oracle(scripted_model, problems)
    assert [await solve(problem, scripted_model) for problem in problems] == [1.0] * 8
    assert len(scripted_model.requests) == 16


async def test_the_oracle_earns_everything_on_the_real_samples(scripted_model: Any) -> None:
    problems = [p for name in ("svamp", "gsm8k", "aqua", "gsmhard", "calcx") for p in load(name, limit=10)]
    _serve_oracle(scripted_model, problems)
    rewards = await asyncio.gather(*(solve(problem, scripted_model) for problem in problems))
    assert rewards == [1.0] * 50


@pytest.mark.parametrize("mistaken", [False, True])
async def test_the_teacher_writes_the_very_prompts_the_agent_sends(
    scripted_model: Any, mistaken: bool
) -> None:
    tokenizer = pytest.importorskip("agl_local.text.tokenizer").ChatTokenizer.load(POLICY)
    for problem in generate("train", 8, seed=7):
        first, second = teach(problem, mistaken)
        scripted_model.requests.clear()
        scripted_model.script = lambda messages, tools, a=first, b=second: a.reply if tools else b.reply  # type: ignore[misc]
        await solve(problem, scripted_model)
        for example, sent in zip((first, second), scripted_model.requests, strict=True):
            assert sent.get("tools") == example.tools
            theirs = tokenizer.render(sent["messages"], sent.get("tools"))
            assert tokenizer.render(example.messages, example.tools).encode() == theirs.encode()
    assert scripted_model.requests[0]["tools"] == TOOLS


async def test_concurrent_runs_keep_their_own_key_and_reward(scripted_model: Any) -> None:
    problems = generate("train", 32)
    wrong = {problem["question"]: {**problem, "result": "-1"} for problem in problems[::2]}
    scripted_model.script = lambda messages, tools: reply(messages, tools, {**gold_lookup(problems), **wrong})  # type: ignore[dict-item]
    llms = [
        SimpleNamespace(endpoint=scripted_model.endpoint, api_key=f"k{i}", model="tiny") for i in range(32)
    ]
    rewards = await asyncio.gather(*(solve(p, llm) for p, llm in zip(problems, llms, strict=True)))
    assert rewards == [0.0, 1.0] * 16
    assert sorted(scripted_model.keys) == sorted(f"Bearer k{i}" for i in range(32) for _ in range(2))


async def test_bad_model_output_is_graded_and_no_crash(scripted_model: Any) -> None:
    (problem,) = generate("train", 1)
    scripted_model.script = lambda messages, tools: answer_message("nonsense")
    assert await solve(problem, scripted_model) == 0.0
    scripted_model.script = lambda messages, tools: call_message("9**9**9") if tools else answer_message("1")
    assert await solve(problem, scripted_model) == 0.0
    assert scripted_model.requests[-1]["messages"][-1]["content"].startswith("error: ")
    broken = call_message("1")
    broken["tool_calls"][0]["function"]["arguments"] = '{"expr'
    scripted_model.script = lambda messages, tools: broken if tools else answer_message(problem["result"])
    assert await solve(problem, scripted_model) == 1.0


async def test_random_replies_make_whole_runs(scripted_model: Any) -> None:
    rng = random.Random(0)
    scripted_model.script = lambda messages, tools: random_reply(messages, tools, rng)
    rewards = [await solve(problem, scripted_model) for problem in generate("train", 24)]
    assert 0.0 < sum(rewards) / 24 < 0.5


async def test_the_calculator_over_mcp(scripted_model: Any) -> None:
    pytest.importorskip("autogen_ext.tools.mcp", reason="autogen-ext 0.7 needs mcp 1.x", exc_type=ImportError)
    (problem,) = generate("train", 1)
    _serve_oracle(scripted_model, [problem])
    assert await solve_over_mcp(problem, scripted_model) == 1.0
    first, second = scripted_model.requests
    assert first["tools"][0]["function"]["name"] == "calculate"
    assert second["messages"][-1]["content"] == problem["result"]


@pytest.mark.slow
async def test_mcp_reports_bad_input_as_text() -> None:
    pytest.importorskip("autogen_ext.tools.mcp", reason="autogen-ext 0.7 needs mcp 1.x", exc_type=ImportError)
    async with workbench() as calculator:
        result = await calculator.call_tool("calculate", {"expression": "1/0"})
    assert (result.to_text(), result.is_error) == ("error: division by zero", False)


SILENT = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    if request.get("method") == "initialize":
        result = {"protocolVersion": request["params"]["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "silent", "version": "0"}}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"""


async def test_a_server_that_hangs_fails_the_call_and_not_the_run() -> None:
    pytest.importorskip("autogen_ext.tools.mcp", reason="autogen-ext 0.7 needs mcp 1.x", exc_type=ImportError)
    async with workbench(read_timeout_seconds=0.3, command=[sys.executable, "-c", SILENT]) as calculator:
        result = await calculator.call_tool("calculate", {"expression": "1+1"})
    assert result.is_error
    assert "imed out" in result.to_text()


async def test_an_unknown_question_is_named_by_the_oracle() -> None:
    with pytest.raises(KeyError, match="does not know the question 'What"):
        reply([{"role": "user", "content": "What now?"}], None, {})


async def test_the_answer_is_the_last_message(scripted_model: Any) -> None:
    scripted_model.script = lambda messages, tools: call_message("1+1") if tools else answer_message("2")
    assert await answer("One and one?", scripted_model) == "### ANSWER: 2 ###"
