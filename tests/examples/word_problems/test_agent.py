"""The agent before a scripted model, the scripted policies, the configuration and the demo."""

from __future__ import annotations

import asyncio
import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agl_testing import ScriptedModelServer

import word_problems
from agentlightning import LLM
from agentlightning.train.run_file import load_config
from word_problems.agent import MAX_TOKENS, Solver, solve, solve_few_shot
from word_problems.baselines import BASELINES, larger_first, oracle, rewards
from word_problems.problems import gsm8k_one_step, load
from word_problems.prompts import few_shot, prompt

EXAMPLE = Path(word_problems.__file__).parent
TASKS = load("val", limit=8)


async def run(agent: Any, script: Any) -> tuple[list[float], list[dict[str, Any]]]:
    """The rewards of ``TASKS``, all at once, and the requests."""
    async with ScriptedModelServer(script) as server:
        llm = LLM(endpoint=server.url, model="scripted")
        found = await asyncio.gather(*(agent.function(task, llm=llm) for task in TASKS))
        return list(found), [exchange.body for exchange in server.log]


@pytest.mark.parametrize(("agent", "messages"), [(solve, prompt), (solve_few_shot, few_shot)])
async def test_the_oracle_earns_everything_with_one_call_a_problem(agent: Any, messages: Any) -> None:
    earned, requests = await run(agent, oracle(TASKS))
    assert earned == [1.0] * len(TASKS) and len(requests) == len(TASKS)
    wanted = [messages(task["question"]) for task in TASKS]
    assert all(request["messages"] in wanted and request["max_tokens"] == MAX_TOKENS for request in requests)


async def test_an_answer_that_is_no_expression_earns_nothing() -> None:
    earned, _ = await run(solve, lambda body: f"The answer is {oracle(TASKS)(body)}.")
    assert earned == [0.0] * len(TASKS)
    earned, _ = await run(solve, lambda body: "")
    assert earned == [0.0] * len(TASKS)


async def test_a_model_that_cannot_be_reached_is_an_error_and_no_reward() -> None:
    solver = Solver(LLM(endpoint="http://127.0.0.1:9/v1", model="nobody"))
    with pytest.raises(Exception, match="Connection error"):
        await solver.run(prompt("How many?"))


def test_scripted_policies_stand_in_order() -> None:
    tasks = load("test")
    found = {name: sum(rewards(factory, tasks)) / len(tasks) for name, factory in BASELINES.items()}
    assert found["oracle"] == 1.0
    assert 0 < found["random_operator"] < found["common_operator"] < found["larger_first"] < 0.25
    assert found["linear"] == pytest.approx(101 / 303)  # as good as the fine-tuned model: the page says so
    assert sum(rewards(oracle, gsm8k_one_step())) == 213


def test_a_scripted_policy_sees_the_question_only() -> None:
    asked = {"messages": prompt("He had 3 pens and lost 12 of 40.")}
    assert larger_first([])(asked) == "12-3"
    assert larger_first([])({"messages": prompt("How many?")}) == "0"


def test_the_configuration_trains_and_validates_on_other_splits_than_the_test() -> None:
    config = load_config(EXAMPLE / "cpu.yaml")
    train, val = config.environment.train, config.environment.val
    assert train is not None and train.args == {"split": "train"}
    assert val is not None and val.args == {"split": "val"}
    assert config.agent.target == "word_problems.agent:solve"


def test_the_table_and_the_last_line() -> None:
    demo = runpy.run_path(str(EXAMPLE / "demo.py"))
    found = demo["baselines"](4)
    for stage in demo["STAGES"]:
        four = demo["scored"]([1.0, 0.0, 0.0, 1.0], load("test", limit=4))
        found[stage] = dict.fromkeys(demo["SETS"], four)
    line = demo["figures"](found, "svamp")
    assert (line["base"], line["sft"], line["sft_rl"], line["n"]) == (0.5, 0.5, 0.5, 4)
    assert line["baselines"]["oracle"]["reward"] == 1.0 and set(line["ci"]) == {"base", "sft", "sft_rl"}
    assert demo["table"](found).row_count == len(found)


@pytest.mark.nightly
@pytest.mark.plugins
def test_the_demo_with_a_tiny_policy(tmp_path: Path) -> None:
    """Every command of the demo, with a policy that knows nothing: it ends with the line and its figures."""
    tiny = EXAMPLE.parent / "quickstart/policy"
    settings = ["training.batch_size=2", "training.recipe.group_size=2", "backend.options.max_len=1024"]
    options = ["--policy", str(tiny), "--output", str(tmp_path), "--epochs", "1", "--steps", "1"]
    options += ["--limit", "4"]
    sets = [word for value in settings for word in ("--set", value)]
    command = [sys.executable, str(EXAMPLE / "demo.py"), *options, *sets]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    line = json.loads(done.stdout.splitlines()[-1])
    assert {"base", "sft", "sft_rl", "ci", "n", "gsm8k_one_step", "seconds"} <= set(line)
    # Three evaluations of two sets, and one step of two groups of two.
    assert line["n"] == 4 and line["calls"] == line["calls_exact"] == 3 * 2 * 4 + 2 * 2
