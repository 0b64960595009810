"""Generators of reasoning-gym: the same entries each time, no answers in the tasks, exact graders."""

from __future__ import annotations

import json
from typing import Any

import pytest
from agl_testing import ScriptedModelServer
from contract.running import rolled_out
from contract.turn_limit import TurnLimit

from agentlightning.store import SQLiteStore
from agentlightning.types import UsageError
from agl_examples.bundled import reasoning_gym
from agl_examples.bundled.task_set import answer_of


def test_the_answer_is_what_stands_in_the_last_tag() -> None:
    assert answer_of("so <answer>1</answer>, no: <answer> 2 </answer>.") == "2"
    assert answer_of(" 3\n") == "3" and answer_of("<answer>4") == "4"


def test_without_the_library_its_line_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "reasoning_gym", None)
    reasoning_gym._dataset.cache_clear()
    with pytest.raises(UsageError, match="pip install 'reasoning-gym"):
        reasoning_gym.tasks("chain_sum", 2)


def test_tasks_are_those_of_the_seed_and_hold_no_answer() -> None:
    pytest.importorskip("reasoning_gym.factory")
    first, again = (reasoning_gym.tasks("chain_sum", 4, seed=7) for _ in range(2))
    assert first == again != reasoning_gym.tasks("chain_sum", 4, seed=1000)
    assert json.loads(json.dumps(first)) == first and all("answer" not in task for task in first)
    hard = reasoning_gym.tasks("chain_sum", 1, config={"min_terms": 6, "max_terms": 6})
    assert hard[0]["question"].count(" + ") + hard[0]["question"].count(" - ") >= 5
    with pytest.raises(UsageError, match=r"no generator 'chain'; it has .*chain_sum"):
        reasoning_gym.tasks("chain", 1)
    with pytest.raises(UsageError, match=r"chain_sum refuses its parameters: .*colour"):
        reasoning_gym.tasks("chain_sum", 1, config={"colour": 1})


MIXED = {"datasets": [{"name": "chain_sum", "weight": 2, "config": {"min_terms": 2}}, {"name": "gcd"}]}


def test_composite_is_set_by_mappings() -> None:
    pytest.importorskip("reasoning_gym.factory")
    mixed = reasoning_gym.tasks("composite", 12, seed=3, config=MIXED)
    assert json.loads(json.dumps(mixed)) == mixed
    assert 0 < sum("Divisor" in task["question"] for task in mixed) < 12
    made = reasoning_gym._dataset("composite", 12, 3, json.dumps(MIXED, sort_keys=True))
    for task in mixed:
        assert reasoning_gym.grade(task, made[task["index"]]["answer"]) == 1.0
        assert reasoning_gym.grade(task, "no number") < 1.0


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "chain_sum",
        {"config": {"size": 7, "seed": 1}},
        r"config has \['seed', 'size'\]; give it beside config",
    ),
    ("chain_sum", {"size": "3"}, "size is '3'; give an integer"),
    ("chain_sum", {"seed": 1.5}, "seed is 1.5; give an integer"),
    ("chain_sum", {"config": [1]}, r"config is \[1\]; give a mapping of parameters"),
    ("chain_sum", {"size": 0}, "refuses its parameters: size must be positive"),
    ("chain_sum", {"config": {"max_terms": "4"}}, "refuses its parameters: "),
    ("chain_sum", {"config": {"operators": {1}}}, "refuses its parameters: .*not JSON serializable"),
    ("composite", {}, "refuses its parameters: Must specify at least one dataset"),
    ("composite", {"config": {"datasets": ["gcd"]}}, "refuses its parameters: "),
    ("composite", {"config": {"datasets": [{"weight": 1}]}}, "refuses its parameters: .*'name'"),
    (
        "composite",
        {"config": {"datasets": [{"name": "no"}]}},
        "refuses its parameters: .*'no' not registered",
    ),
]


@pytest.mark.parametrize(("generator", "given", "told"), REFUSED)
def test_parameters_of_another_form_are_told(generator: str, given: dict[str, Any], told: str) -> None:
    pytest.importorskip("reasoning_gym.factory")
    with pytest.raises(UsageError, match=f"^reasoning-gym: {generator}:? {told}"):
        reasoning_gym.tasks(generator, **{"size": 2, **given})


class TestTurnLimit(TurnLimit):
    longest = 1

    async def limited(self, turns: int) -> Any:
        factory = pytest.importorskip("reasoning_gym.factory")
        [task] = reasoning_gym.tasks("chain_sum", 1)
        right = factory.create_dataset("chain_sum", size=1, seed=0)[0]["answer"]
        return await self.play(reasoning_gym.solver, task, lambda body: f"<answer>{right}</answer>")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_every_generators_grader_gives_its_own_answer_all() -> None:
    factory = pytest.importorskip("reasoning_gym.factory")
    wrong, refused = [], []
    for name in sorted(factory.DATASETS):
        try:
            task = reasoning_gym.tasks(name, 2, seed=1)[0]
        except UsageError:
            refused.append(name)
            continue
        answer = reasoning_gym._dataset(name, 2, 1, "{}")[0]["answer"]
        if answer is not None and reasoning_gym.grade(task, str(answer)) != 1.0:
            wrong.append(name)
        if reasoning_gym.grade(task, "no answer of any generator") == 1.0:
            wrong.append(f"{name}: nonsense")
    # One is made of others, which it has to be told; the seed of the other does not determine it.
    assert refused == ["composite", "list_functions"]
    # Its grader takes whatever is not "True" for "False".
    assert wrong in ([], ["game_of_life_halting: nonsense"])


async def test_the_agent_is_scored_by_the_generator() -> None:
    pytest.importorskip("reasoning_gym.factory")
    task = reasoning_gym.tasks("chain_sum", 1, seed=3)[0]
    right = reasoning_gym._dataset("chain_sum", 1, 3, "{}")[0]["answer"]
    for answer, reward in ((f"<answer>{right}</answer>", 1.0), ("no number", 0.0)):
        async with ScriptedModelServer(lambda body, answer=answer: answer) as server:
            store = SQLiteStore(":memory:")
            rollout, record, why = await rolled_out(reasoning_gym.solver, task, store, server)
            await store.close()
        assert rollout.status == "succeeded", why
        assert (record.rewards[-1].value == 1.0) is (reward == 1.0) and len(record.calls) == 1
