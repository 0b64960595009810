"""A run with a judge in a process of its own, to be killed: ``python judging.py FOLDER JUDGE [--resume]``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))
sys.path.insert(0, str(Path(__file__).parents[3] / "tests"))

import agentlightning as agl
from agl_judge.graders.relative import Rank
from plugins.judge.tests.conftest import KEY, OPTIONS, plugins, say
from plugins.local.tests.driver_fixtures import saved_policy

if __name__ == "__main__":
    folder, judge = Path(sys.argv[1]), sys.argv[2]
    if not (folder / "policy").exists():
        saved_policy(folder / "policy", 1)
    trainer = agl.Trainer(
        agl.GRPO(group_size=4),
        policy={
            "student": folder / "policy",
            "judge": agl.LLM(endpoint=judge, model="judge-1", api_key=KEY),
        },
        policies={"re:.*": "student"},
        options={**OPTIONS, "save_every": 1},
        steps=3,
        batch_size=2,
        group_reward=Rank("judge"),
        plugins=plugins(),
        output=folder,
        run="r",
        trackers=[],
        evaluate_sampled=False,
        resume="--resume" in sys.argv,
    )
    print(json.dumps(trainer.fit(say, ["a", "b", "c", "d"])))
