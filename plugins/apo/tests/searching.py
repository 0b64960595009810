"""A search in a process of its own, to be killed: ``python searching.py FOLDER MODEL CRITIC [--resume]``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))
sys.path.insert(0, str(Path(__file__).parents[3] / "tests"))

import agentlightning as agl
from agentlightning.plugins.manager import build
from agl_apo import plugin
from agl_apo.beam import APO
from plugins.apo.tests.conftest import FIRST, TASKS, ask

if __name__ == "__main__":
    folder, model, critic = sys.argv[1:4]
    search = APO(
        critic=agl.LLM(endpoint=critic, model="helper"),
        beam_width=2,
        branch_factor=2,
        beam_rounds=4,
        concurrency=2,
        prompts={"prompt_template": FIRST},
        budget={"calls": 400},
    )
    trainer = agl.Trainer(
        search,
        plugins=build([plugin], discover=False),
        policy={"agent": agl.LLM(endpoint=model, model="small")},
        output=folder,
        run="search",
        trackers=[],
        seed=3,
        resume="--resume" in sys.argv,
    )
    print(json.dumps(trainer.fit(ask, TASKS[:8], TASKS[8:])))
