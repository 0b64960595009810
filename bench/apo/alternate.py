"""The ablation of ``Alternate``: the same two agents with weights, prompt, or both.

python bench/apo/alternate.py      # with examples/ on the path, in an environment with LangGraph
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from agl_testing import ScriptedModelServer

import agentlightning as agl
from two_agents import scripted
from two_agents.agent import FIRST, agent, tasks

STEPS, EVERY = 12, 3
POLICY = Path(__file__).resolve().parents[2] / "examples" / "quickstart" / "policy"
ARMS: dict[str, dict[str, str]] = {
    "weights": {"solver": "weights", "reporter": "freeze"},
    "prompt": {"solver": "freeze", "reporter": "prompt"},
    "both": {"solver": "weights", "reporter": "prompt"},
}


def ablation(folder: Path) -> dict[str, Any]:
    """Return what each arm reached: reward before and after on the same held-out tasks, with intervals."""
    found: dict[str, Any] = {}
    train, held_out = tasks("generated:train", 400), tasks("generated:heldout", 64)
    for name, agents in ARMS.items():
        reporter = ScriptedModelServer(scripted.reporter, model="scripted")
        helper = ScriptedModelServer(scripted.helper, model="scripted")
        with reporter, helper:
            algorithm = agl.Alternate(
                agents,
                every=EVERY,
                critic=agl.LLM(endpoint=helper.url, model="scripted"),
                prompts={"reporter": FIRST},
                val_batch_size=24,
                branch_factor=2,
            )
            solver = agl.PolicyFolder(str(POLICY), train=agents["solver"] == "weights")
            trainer = agl.Trainer(
                algorithm,
                policy={"solver": solver, "writer": agl.LLM(endpoint=reporter.url, model="scripted")},
                select=["solver"],
                steps=STEPS,
                output=folder,
                run=name,
                evaluate_sampled=False,
                trackers=["files"],
            )
            summary = trainer.fit(agent, train, held_out)
        found[name] = {
            "before": summary["reward_before"],
            "after": summary["reward_after"],
            "ci_before": summary["ci_before"],
            "ci_after": summary["ci_after"],
            "steps": summary["steps"],
            "rounds": len(summary["rounds"]),
            "calls_of_critic_and_editor": sum(
                summary["spent"]["by_role"][role]["calls"] for role in ("critic", "editor")
            ),
            "failures": summary["failures"],
            "prompt": summary["prompts"],
        }
        print(f"{name}: {json.dumps(found[name])}", file=sys.stderr, flush=True)
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="agl-alternate-") as scratch:
        print(json.dumps(ablation(Path(scratch))))
