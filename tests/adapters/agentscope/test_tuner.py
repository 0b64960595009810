"""AgentScope's tuner: workflow, judge, dataset and settings of 1.0.12 and later, as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agentscope.tuner", reason="AgentScope 1.0.12 or later is not installed")

from agentscope.tuner import AlgorithmConfig, DatasetConfig, JudgeOutput, TunerModelConfig, WorkflowOutput
from agl_testing import ScriptedModelServer
from contract.running import rolled_out

import agentlightning as agl
from agentlightning.credit.verdicts import verdicts
from agentlightning.store import SQLiteStore
from agentlightning.types import Record, Rollout, UsageError
from agl_agentscope.tuner import tune, workflow

TASK = {"question": "What is 1 + 1?", "answer": "2"}


async def solve(task: dict[str, Any], model: Any, auxiliary_models: dict[str, Any]) -> WorkflowOutput:
    assert auxiliary_models == {} and not model.stream
    said = await model([{"role": "user", "content": task["question"]}])
    return WorkflowOutput(response=said.content[0]["text"], metrics={"length": 1.0})


async def judge(task: dict[str, Any], response: str, logger: Any) -> JudgeOutput:
    logger.info("asked")
    return JudgeOutput(reward=float(task["answer"] in response), metrics={"sure": 0.5})


async def run(agent: Any) -> tuple[Rollout, Record, str, list[dict[str, Any]]]:
    store = SQLiteStore(":memory:")
    try:
        async with ScriptedModelServer(lambda body: "It is 2.", ids="always") as engine:
            return *await rolled_out(agent, TASK, store, engine), [one.body for one in engine.answered()]
    finally:
        await store.close()


async def test_the_judges_reward_is_the_rollouts_and_metrics_have_their_names() -> None:
    rollout, record, why, asked = await run(workflow(solve, judge, {"top_p": 0.5}))
    assert rollout.status == "succeeded", why
    assert [verdict.kind for verdict in verdicts(record).values()] == ["exact"]
    found = {(one.name, one.value, one.final) for one in record.rewards}
    assert found == {("reward", 1.0, True), ("length", 1.0, False), ("sure", 0.5, False)}
    assert asked[0]["top_p"] == 0.5


async def test_without_a_judge_the_reward_is_the_workflows_or_missing() -> None:
    async def scored(task: dict[str, Any], model: Any) -> WorkflowOutput:
        return WorkflowOutput(reward=0.25)

    async def former(task: dict[str, Any], model: Any) -> float:
        return 0.75

    for function, reward in ((scored, 0.25), (former, 0.75)):
        _, record, why, _ = await run(workflow(function))
        assert [one.value for one in record.rewards] == [reward], why
    _, record, _, _ = await run(workflow(solve))
    assert "reward" not in {one.name for one in record.rewards}


def test_settings_are_those_of_a_trainer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    (tmp_path / "train.jsonl").write_text(f"{json.dumps(TASK)}\n" * 10)
    given: dict[str, Any] = {}

    class Noted(agl.Trainer):
        def fit(self, agent: Any, train_dataset: Any = None, val_dataset: Any = None) -> dict[str, Any]:
            given.update(config=self.config, agent=agent, train=train_dataset, val=val_dataset)
            return {}

    monkeypatch.setattr(agl, "Trainer", Noted)
    tune(
        workflow_func=solve,
        judge_func=judge,
        train_dataset=DatasetConfig(path=str(tmp_path), total_epochs=2),
        eval_dataset=[TASK],
        model=TunerModelConfig(model_path=str(tmp_path), max_model_len=512, temperature=0.5),
        auxiliary_models={"helper": TunerModelConfig(model_path=str(tmp_path), max_model_len=512)},
        algorithm=AlgorithmConfig(group_size=4, batch_size=3, learning_rate=1e-4),
        project_name="math",
        options={"threads": 1},
    )
    config = given["config"]
    assert given["train"] == [TASK] * 10 and given["val"] == [TASK] and given["agent"].name == "solve"
    training = config.training
    assert (training.algorithm, training.steps, training.batch_size) == ("grpo", 7, 3)
    assert training.recipe == {"group_size": 4} and training.evaluate_every == 100
    assert config.backend.options == {"lr": 1e-4, "save_every": 100, "threads": 1}
    assert config.agent.name == "math" and list(config.backend.policy) == ["policy", "helper"]
    assert not config.backend.policy["helper"].train


def test_trinitys_own_file_is_refused() -> None:
    with pytest.raises(UsageError, match="a file of Trinity-RFT; give model"):
        tune(workflow_func=solve, config_path="trinity.yaml")
