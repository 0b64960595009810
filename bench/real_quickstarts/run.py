"""Quickstarts with a pretrained model: trained as they are, then asked for tool calls and for JSON.

    python bench/real_quickstarts/run.py [FRAMEWORK …] [--policy smollm2] [--steps 3] [--sums 16]

Per framework, ``agl train --config examples/quickstart/smollm2.yaml`` trains the agent of its quickstart, in
the environment that holds the frameworks. Then ``agl eval`` puts the held-out sums to the agents of
``forms.py``, greedily: with a first answer that must be a tool call (``forced``), with an answer asked for as
JSON by a schema (``schema``) and in the same words alone (``words``). All figures are counted from the calls
that the gateway recorded (``counts.py``). The last line is one JSON object. Exit status 1 if a run fails, or
an answered call is not exact.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from counts import of_calls, of_form, of_tools
from quickstarts import FRAMEWORKS, environment

from agentlightning.types import Record
from agl_audit.run import open_run

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CONFIG = ROOT / "examples" / "quickstart" / "smollm2.yaml"
DEFAULT = ("autogen", "openai-agents", "pydantic-ai")
ENVIRONMENT = "latest"


def agl(python: Path, command: str, *sets: str) -> dict[str, Any]:
    """The last line of ``agl COMMAND``. CalledProcessError if it fails."""
    words = [str(python.parent / "agl"), command, "--config", str(CONFIG)]
    for one in sets:
        words += ["--set", one]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, check=True, env=os.environ)
    found: dict[str, Any] = json.loads(done.stdout.decode().splitlines()[-1])
    return found


def version(name: str, python: Path) -> str:
    """The version of a framework in the environment of ``python``."""
    code = f"import importlib.metadata as m; print(m.version({FRAMEWORKS[name][1]!r}))"
    done = subprocess.run([str(python), "-c", code], stdout=subprocess.PIPE, check=True)
    return done.stdout.decode().strip()


async def recorded(run: str) -> list[Record]:
    """The records of a run."""
    async with open_run(str(ROOT / "runs" / run)) as opened:
        rollouts = await opened.store.query_rollouts(run_id=opened.run_id, limit=100_000)
        return await opened.store.records([rollout.rollout_id for rollout in rollouts])


def train(name: str, python: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Train the quickstart of a framework; what its run shows."""
    began = time.perf_counter()
    made = agl(
        python,
        "train",
        f"agent.target=quickstart_{name.replace('-', '_')}:solve",
        f"backend.policy={given.policy}",
        f"training.steps={given.steps}",
    )
    seconds = time.perf_counter() - began
    folder = ROOT / "runs" / made["run_id"]
    totals = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["totals"]
    steps = [
        json.loads(line)["metrics"]
        for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    records = asyncio.run(recorded(made["run_id"]))
    return {
        "version": version(name, python),
        "before": made["reward_before"],
        "after": made["reward_after"],
        "training_rewards": [round(step["reward_mean"], 4) for step in steps],
        "tokens_trained": int(totals["tokens_trained"]),
        "logprob_gap_max": totals.get("logprob_gap_max"),
        "failed": int(totals["rollouts_failed"]),
        **of_calls(records),
        **of_tools(records),
        "seconds": round(seconds, 1),
    }


def ask_in_forms(names: Sequence[str], python: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Put the held-out sums to each framework in each form, without training."""
    args = {"frameworks": list(names), "limit": given.sums}
    made = agl(
        python,
        "eval",
        "agent.target=forms:solve",
        f"pythonpath=[.., {HERE}]",
        f"backend.policy={given.policy}",
        f"environment.val={json.dumps({'target': 'forms:load', 'args': args})}",
    )
    records = asyncio.run(recorded(made["run_id"]))

    def chosen(name: str, form: str) -> list[Record]:
        return [
            one
            for one in records
            if (one.rollout.input["framework"], one.rollout.input["form"]) == (name, form)
        ]

    return {
        **of_calls(records),
        "frameworks": {
            name: {
                "forced": of_tools(chosen(name, "forced")),
                "schema": of_form(chosen(name, "schema")),
                "words": of_form(chosen(name, "words")),
            }
            for name in names
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Quickstarts with a pretrained model.")
    parser.add_argument("frameworks", nargs="*", default=DEFAULT, help=f"of {', '.join(DEFAULT)}")
    parser.add_argument("--policy", default="smollm2")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--sums", type=int, default=16, help="held-out sums in each form")
    given = parser.parse_args()
    if unknown := sorted(set(given.frameworks) - set(DEFAULT)):
        parser.error(f"unknown: {', '.join(unknown)}; the frameworks are {', '.join(DEFAULT)}")
    python = environment(ENVIRONMENT)
    trained = {name: train(name, python, given) for name in given.frameworks}
    asked = ask_in_forms(given.frameworks, python, given)
    inexact = [name for name, one in trained.items() if one["exact"] != one["answered"]]
    if asked["exact"] != asked["answered"]:
        inexact.append("forms")
    told = {
        "policy": given.policy,
        "steps": given.steps,
        "sums": given.sums,
        "frameworks": trained,
        "forms": asked,
        "inexact": inexact,
    }
    print(json.dumps(told))
    return 1 if inexact else 0


if __name__ == "__main__":
    sys.exit(main())
