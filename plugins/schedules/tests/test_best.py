"""A real run ends early, keeps its best policy beyond the rotation of checkpoints, and exports it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from callbacks.callbacks import BestSoFar, Budget
from e2e.test_line import THREAD, Watch, trainer

from agentlightning.decorator.agents import RunnableAgent
from agentlightning.hookspecs import hookimpl
from agentlightning.types.base import ConfigError
from agl_audit.commands.export import register
from agl_audit.exported_policy import find_best
from agl_audit.policies import NoPolicy
from agl_local.policy.folder import fingerprint, load_policy
from calc_x.agent import solve
from calc_x.datasets import load

TRAIN, HELD_OUT = load("generated:train", limit=50), load("generated:heldout", limit=3)


class Scripted(RunnableAgent):
    """Calls the policy as the calculator agent does; its held-out reward is what the test says."""

    def __init__(self, rewards: dict[str, float]) -> None:
        self.rewards = rewards

    async def rollout(self, task: Any, resources: Any, rollout: Any) -> float:
        reward = await solve(task, resources["llm"])
        return reward if rollout.mode == "train" else self.rewards.get(rollout.metadata["evaluation"], 0.0)


def made(folder: Path, watch: Watch, **fields: Any) -> Any:
    options = {**THREAD, "save_every": 1, "keep_checkpoints": 1, "digest_every": 1, "lr": 1e-3}
    given = {"steps": 5, "batch_size": 2, "evaluate_every": 1, "evaluate_sampled": False, "run": "r"}
    return trainer(folder, watch, **{"options": options, **given, **fields})


@pytest.mark.slow
async def test_the_best_policy_stays_when_its_checkpoint_is_gone_and_training_ends_early(
    tmp_path: Path,
) -> None:
    watch = Watch()
    rewards = {"before": 0.1, "step-1": 0.5, "step-2": 0.4, "step-3": 0.5, "after": 0.3}
    one = made(tmp_path, watch, keep_best=True, early_stopping={"patience": 2})
    summary = await one.afit(Scripted(rewards), TRAIN, HELD_OUT)
    run = tmp_path / "r"
    assert len(watch.reports) == summary["steps"] == 3 and summary["reward_after"] == pytest.approx(0.3)
    assert summary["ended"] == "the held-out reward was best after step 1 (0.500), 2 evaluations ago"
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-000003"]
    # the kept weights are those of the step, not the last ones
    kept = find_best(str(run))
    assert kept.step == 1 and [path.name for path in (run / "best").iterdir()] == ["step-000001"]
    digests = [report.params_digest for report in watch.reports]
    assert fingerprint(load_policy(kept.folder).model) == digests[0] != digests[2]
    assert summary["best"] == json.loads((run / "best.json").read_text())
    assert (summary["best"]["evaluation"], summary["best"]["tasks"]) == ("step-1", 3)

    # as a user exports it
    import typer
    from typer.testing import CliRunner

    app = typer.Typer()
    app.callback()(lambda: None)
    register(app)
    done = CliRunner().invoke(app, ["export", str(run), str(tmp_path / "out"), "--best", "--json"])
    assert done.exit_code == 0 and json.loads(done.stdout)["step"] == 1
    assert fingerprint(load_policy(tmp_path / "out").model) == digests[0]
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Greedy reward on 3 held-out tasks: 0.500" in card and "best of the run's evaluations" in card

    # a resumed run decides as before, and trains no further
    again = Watch()
    more = made(tmp_path, again, keep_best=True, early_stopping={"patience": 2}, resume=True)
    assert (await more.afit(Scripted(rewards), TRAIN, HELD_OUT))["steps"] == 3 and again.reports == []


@pytest.mark.slow
async def test_training_that_ends_between_two_checkpoints_saves_one(tmp_path: Path) -> None:
    options = {**THREAD, "save_every": 4}
    one = made(tmp_path, Watch(), options=options, early_stopping={"patience": 1, "min_delta": 0.2})
    summary = await one.afit(Scripted({"step-1": 0.3, "step-2": 0.45}), TRAIN, HELD_OUT)
    assert summary["steps"] == 2
    assert [path.name for path in (tmp_path / "r" / "checkpoints").iterdir()] == ["step-000002"]
    with pytest.raises(NoPolicy, match="keeps no best policy"):
        find_best(str(tmp_path / "r"))


@pytest.mark.slow
async def test_a_policy_that_only_got_worse_is_kept_as_it_was(tmp_path: Path) -> None:
    one = made(tmp_path, Watch(), steps=1, evaluate_every=0, keep_best=True)
    summary = await one.afit(Scripted({"before": 0.9, "after": 0.1}), TRAIN, HELD_OUT)
    assert summary["best"]["step"] == 0 and find_best(str(tmp_path / "r")).step == 0


@pytest.mark.slow
async def test_callbacks_of_a_file_end_training_and_one_that_raises_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Raises:
        @hookimpl
        def agl_end_training(self) -> str:
            raise OSError("no such service")

    monkeypatch.setattr(Budget, "TOKENS", 1)
    one = made(tmp_path, Watch(), callbacks=[Budget, BestSoFar(), Raises])
    summary = await one.afit(Scripted({"before": 0.25, "step-1": 0.5}), TRAIN, HELD_OUT)
    assert summary["steps"] == 1 and "more than the budget of 1" in summary["ended"]
    assert summary["accounts"]["hooks"] == {"agl_end_training": 1}
    said = [line for line in capsys.readouterr().out.splitlines() if line.endswith("the best so far")]
    assert said == ["before: 0.250, the best so far", "step-1: 0.500, the best so far"]


class NoHook:
    pass


class Misspelt:
    @hookimpl
    def agl_step_done(self) -> None: ...


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"callbacks": NoHook}, "callbacks: NoHook has no hook"),
        ({"callbacks": [Misspelt()]}, "callbacks: Misspelt: unknown hook 'agl_step_done'"),
        ({"early_stopping": {"patience": 1}, "evaluate_every": 0}, "without training.evaluate_every"),
        ({"early_stopping": {"patience": 0}}, "early_stopping.patience"),
        ({"keep_best": True, "driver": "verl"}, "driver 'verl' cannot carry out training.keep_best"),
    ],
)
async def test_what_cannot_be_carried_out_is_refused_before_the_run_begins(
    tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    from agentlightning.plugins.manager import build
    from agl_local import plugin as local
    from agl_schedules import plugin as schedules
    from agl_verl import plugin as verl

    with pytest.raises(ConfigError) as error:
        one = made(tmp_path, Watch(), plugins=build([local, schedules, verl], discover=False), **fields)
        await one.afit(solve, TRAIN, HELD_OUT)
    assert said in str(error.value)
    assert not list(tmp_path.iterdir())
