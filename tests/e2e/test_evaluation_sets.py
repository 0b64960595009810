"""Evaluation sets by name: each has its own figures, one chooses the best policy, `agl eval` scores them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from agl_testing import ScriptedModelServer
from e2e.playing import TASKS, Play, equal, line
from e2e.test_line import POLICY, Watch
from typer.testing import CliRunner

from agentlightning import Rollout, Trainer
from agentlightning.algorithms.evaluations import sets_summary
from agentlightning.train.configured import configure
from agentlightning.train.run_file import load_config
from agentlightning.types import Evaluation, UsageError
from agentlightning.types.base import ConfigError
from agl_audit.commands.evaluate import register
from agl_audit.verification.evaluations import headline
from plugins.schedules.tests.test_best import HELD_OUT, TRAIN, Scripted, made


def one(name: str, reward: float, failed: int = 0) -> Evaluation:
    ci = (reward - 0.1, reward + 0.1)
    return Evaluation(name=name, n=4, reward=reward, ci=ci, interval="Wilson", failed=failed)


def test_the_summary_of_sets_by_hand() -> None:
    made = {
        "before": {"hard": one("before/hard", 0.25, 1), "easy": one("before/easy", 0.5)},
        "step-2": {"hard": one("step-2/hard", 0.9)},
        "after": {"hard": one("after/hard", 0.75)},
    }
    hard = {
        "reward_before": 0.25, "ci_before": [0.15, 0.35], "reward_after": 0.75, "ci_after": [0.65, 0.85],
        "interval_before": "Wilson", "interval_after": "Wilson",
        "tasks": 4, "failed": [1, 0], "left_out": [0, 0],
    }  # fmt: skip
    easy = {
        "reward_before": 0.5, "ci_before": [0.4, 0.6], "reward_after": None, "ci_after": None,
        "interval_before": "Wilson", "interval_after": None, "tasks": 4, "failed": [0], "left_out": [0],
    }  # fmt: skip
    found = sets_summary(made)
    assert found == {"easy": easy, "hard": hard} and list(found) == ["easy", "hard"]
    batches = {f"eval/{e.name}/1": e for of in made.values() for e in of.values()}
    assert headline(batches) == {"sets": found}


async def solved(step: int, rollout: Rollout) -> float:
    """Of the set ``hard`` one task of two, of others all, of training every second rollout."""
    if rollout.mode == "train":
        return float(rollout.sample)
    return float(rollout.input % 2) if rollout.metadata["evaluation"].endswith("/hard") else 1.0


@pytest.mark.slow
async def test_each_set_is_evaluated_at_every_evaluation_and_verified(tmp_path: Path) -> None:
    sets: Mapping[str, Any] = {"easy": [100, 101], "hard": [200, 201, 202, 203]}
    async with ScriptedModelServer() as server:
        run = line(server, tmp_path, 0, steps=4, evaluate_every=2, evaluate_sampled=False, sets=sets)
        summary = await run.fit(Play(run, solved), TASKS, TASKS[:3])
    lines = [json.loads(text) for text in (tmp_path / "r" / "evaluations.jsonl").read_text().splitlines()]
    assert [found["name"] for found in lines] == [
        *("before", "before/easy", "before/hard", "step-2", "step-2/easy", "step-2/hard"),
        *("after", "after/easy", "after/hard"),
    ]
    assert {found["name"]: (found["n"], found["reward"]) for found in lines}["step-2/hard"] == (4, 0.5)
    assert summary["reward_after"] == 1.0 and summary["eval_tasks"] == 3
    assert {name: of["reward_after"] for name, of in summary["sets"].items()} == {"easy": 1.0, "hard": 0.5}
    assert summary["sets"]["hard"]["tasks"] == 4 and summary["sets"]["hard"]["failed"] == [0, 0]
    assert await equal(tmp_path)


@pytest.mark.slow
@pytest.mark.plugins
async def test_the_best_policy_is_chosen_by_a_named_set(tmp_path: Path) -> None:
    rewards = {
        **{"before": 0.1, "step-1": 0.9, "step-2": 0.2, "after": 0.3},
        **{"before/hard": 0.1, "step-1/hard": 0.2, "step-2/hard": 0.6, "after/hard": 0.4},
    }
    run = made(tmp_path, Watch(), steps=3, keep_best="hard", sets={"hard": HELD_OUT[:2]})
    summary = await run.afit(Scripted(rewards), TRAIN, HELD_OUT)
    assert (summary["best"]["step"], summary["best"]["evaluation"]) == (2, "step-2/hard")
    assert summary["best"]["reward"] == pytest.approx(0.6) and summary["best"]["tasks"] == 2


@pytest.mark.slow
@pytest.mark.plugins
async def test_training_ends_when_the_reward_on_a_named_set_no_longer_rises(tmp_path: Path) -> None:
    rewards = {
        **{"before": 0.1, "step-1": 0.2, "step-2": 0.3, "step-3": 0.4},
        **{"before/hard": 0.1, "step-1/hard": 0.6, "step-2/hard": 0.5, "step-3/hard": 0.5},
    }
    early = {"patience": 1, "on": "hard"}
    run = made(tmp_path, Watch(), early_stopping=early, sets={"hard": HELD_OUT[:2]})
    summary = await run.afit(Scripted(rewards), TRAIN, HELD_OUT)
    assert summary["steps"] == 2
    assert summary["ended"] == "the reward on hard was best after step 1 (0.600), 1 evaluation ago"


@pytest.mark.slow
def test_what_is_no_set_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"early_stopping\.on: no evaluation set is called 'hard'"):
        Trainer(early_stopping={"patience": 1, "on": "hard"}, evaluate_every=1, sets={"easy": [1]})
    with pytest.raises(ConfigError, match="keep_best: no evaluation set is called 'hard'; known: easy"):
        Trainer(keep_best="hard", sets={"easy": [1]})
    with pytest.raises(ConfigError, match="'a/b' is no name"):
        Trainer(sets={"a/b": [1]})
    with pytest.raises(ConfigError, match="fil: Extra inputs"):
        Trainer(sets={"easy": {"fil": "x"}})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "what"),
    [
        (
            "nowhere.jsonl",
            r"sets.easy: no file .* and no task set is 'nowhere.jsonl'. Known here: math",
        ),
        (3, r"evaluation.sets.easy: give a task set, a file"),
        ({"target": "calc_x.datasets:lod"}, r"evaluation.sets.easy.target: .*no 'lod'"),
    ],
)
def test_a_file_names_what_it_cannot_read(tmp_path: Path, given: Any, what: str) -> None:
    written = {
        "agent": {"target": "calc_x.agent:solve"},
        "training": {"steps": 0},
        "evaluation": {"sets": {"easy": given}},
        "backend": {"policy": str(POLICY)},
    }
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(written))
    with pytest.raises(ConfigError, match=what):
        configure(load_config(file))


@pytest.mark.slow
async def test_an_algorithm_of_ones_own_refuses_them(tmp_path: Path) -> None:
    async with ScriptedModelServer() as server:
        run = line(server, tmp_path, 0, algorithm="baseline", sets={"hard": [1]})
        with pytest.raises(UsageError, match=r"evaluation.sets: only training with a recipe"):
            await run.fit(Play(run), TASKS)


@pytest.mark.slow
@pytest.mark.plugins
def test_agl_eval_scores_the_sets_that_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "easy.jsonl").write_text("\n".join(json.dumps(task) for task in HELD_OUT[:2]) + "\n")
    config = {
        "agent": {"target": "calc_x.agent:solve", "adapters": ["autogen"]},
        "training": {"steps": 0},
        "evaluation": {
            "sets": {
                "easy": "easy.jsonl",
                "hard": {"target": "calc_x.datasets:load", "args": {"spec": "generated:heldout", "limit": 3}},
                "sums": "math",
            }
        },
        "backend": {"policy": str(POLICY), "options": {"threads": 1, "engine": "thread", "max_len": 512}},
        "output": str(tmp_path / "runs"),
        "trackers": [],
    }
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    app = typer.Typer()
    app.callback()(lambda: None)
    register(app)
    done = CliRunner().invoke(app, ["eval", "--config", str(file), "--on", "easy", "--on", "hard"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert {name: of["n"] for name, of in found["sets"].items()} == {"easy": 2, "hard": 3}
    assert all(of["ci"] and of["calls_exact"] == of["calls_made"] for of in found["sets"].values())
    wrong = CliRunner().invoke(app, ["eval", "--config", str(file), "--on", "none"])
    assert wrong.exit_code != 0 and "evaluation.sets: easy, hard, sums" in str(wrong.exception)
