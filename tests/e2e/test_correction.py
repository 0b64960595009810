"""A correction that is configured, from Python and by a file: trained with, recorded, resumed, verified."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e.test_line import POLICY, THREAD, Watch, trainer
from typer.testing import CliRunner

from agentlightning import GRPO
from agentlightning.cli import app
from agentlightning.train.run_folder import RunError
from agl_audit.run import open_run
from agl_audit.verification.verify import verify
from calc_x.agent import solve
from calc_x.datasets import load as tasks

GIVEN: list[dict[str, Any]] = [{"kind": "mask"}, {"level": "sequence"}, {"cap": 3.0}]


def checked(folder: Path) -> tuple[dict[str, Any], bool]:
    """The correction on the run's record, and whether `agl verify` finds all as it was."""

    async def read() -> tuple[dict[str, Any], bool]:
        async with open_run(str(folder)) as run:
            return run.info["recipe"]["correction"], (await verify(run)).equal

    return asyncio.run(read())


@pytest.mark.slow
@pytest.mark.plugins
@pytest.mark.parametrize("given", GIVEN, ids=lambda given: next(iter(given)))
def test_a_file_may_configure_it(tmp_path: Path, given: dict[str, Any]) -> None:
    config = {
        "agent": {"target": "calc_x.agent:solve", "adapters": ["autogen"]},
        "training": {"steps": 1, "batch_size": 1, "evaluate_sampled": False, "recipe": {"group_size": 2}},
        "environment": {
            "train": {"target": "calc_x.datasets:load", "args": {"spec": "generated:train", "limit": 2}}
        },
        "backend": {"policy": str(POLICY), "options": THREAD},
        "output": str(tmp_path / "runs"),
        "trackers": ["files"],
    }
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    setting = f"training.recipe.correction={json.dumps(given)}"
    done = CliRunner().invoke(
        app(["train"]),
        ["train", "--config", str(file), "--run", "r", "--set", setting],
        standalone_mode=False,
    )
    assert done.exception is None or done.exit_code == 3, done.output
    recorded, equal = checked(tmp_path / "runs" / "r")
    assert equal and {name: recorded[name] for name in given} == given


@pytest.mark.slow
@pytest.mark.plugins
def test_python_may_give_it_and_a_resume_goes_on_with_it_alone(tmp_path: Path) -> None:
    def run(steps: int, **more: Any) -> dict[str, Any]:
        options = {**THREAD, "save_every": 1}
        fields = {"steps": steps, "batch_size": 1, "run": "r", "evaluate_sampled": False, "options": options}
        made = trainer(tmp_path, Watch(), **{**fields, "algorithm": recipe("mask"), **more})
        return made.fit(solve, tasks("generated:train", limit=2))

    def recipe(kind: Any) -> Any:
        return GRPO(group_size=2, correction={"kind": kind, "cap": 4.0})

    run(1)
    with pytest.raises(RunError, match=r"recipe\.correction\.kind was 'mask' when it began and is"):
        run(2, resume=True, algorithm=recipe("truncate"))
    assert run(2, resume=True)["steps"] == 2
    recorded, equal = checked(tmp_path / "r")
    assert equal and (recorded["kind"], recorded["cap"]) == ("mask", 4.0)
