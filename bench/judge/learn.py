"""Learns from a judge's ranks alone, beside the run with the reward: python bench/judge/learn.py

Two tasks (``tasks.py``): calc_x, with the settings of `make demo`, and a small game of werewolf. In training
the agent returns no number: the rewards of a group are the ranks that a scripted judge gives its rollouts. It
is wrong about a share of the candidates (0, 10, 30 %), drawn by their text. Beside it: the reward itself, and
where answers are texts their agreement, which needs no judge. Held-out tasks are graded by the rule in each
arm, and so is the curve: the training rollouts of each step, of which the rule tells this program alone.

After training ``agl judge rescore`` grades the stored groups of a judged arm again, by the judge's scores
instead of ranks: ``cached`` questions were answered from the record, and none was sent.

SmolLM2-135M is measured as a judge on labelled pairs of both tasks (`--pairs`), beside a coin's agreement of
a half; nothing is trained with it. ``--write`` puts the tasks that ran in the place of what was found of them
before, and draws all. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from agl_testing import ScriptedModelServer
from tasks import ROOT, TASKS, Given, Task

import agentlightning as agl
from agentlightning.cli.options import last_line, read
from agentlightning.plugins.manager import load as load_plugins
from agentlightning.train.configured import configure
from agentlightning.train.trainer import algorithm_of
from agl_judge.check import check
from agl_judge.own_gateway import open_client

RESULTS = ROOT / "bench" / "results"
AGL = Path(sys.executable).parent / "agl"
FORM = {
    "type": "json_schema",
    "json_schema": {
        "name": "verdict",
        "schema": {
            "type": "object",
            "properties": {"better": {"enum": [0, 1, 2]}},
            "required": ["better"],
            "additionalProperties": False,
        },
    },
}
"""The form of a verdict, for engines that force it."""
ARMS = ("reward", "ranks, noise 0", "ranks, noise 0.1", "ranks, noise 0.3", "agree")


class Judge:
    """Ranks candidates by the rule, and is wrong about a share of them."""

    def __init__(self, task: Task, noise: float) -> None:
        self.task, self.noise = task, noise

    def __call__(self, body: dict[str, Any]) -> str:
        text = body["messages"][1]["content"]
        given = json.loads(re.search(r"<task>\n(.*?)\n</task>", text, re.DOTALL)[1])  # type: ignore[index]
        found = re.findall(r'<candidate number="\d+">\n(.*?)\n</candidate>', text, re.DOTALL)
        return json.dumps({"scores": [self.score(one, given) for one in found]})

    def score(self, candidate: str, given: Given) -> float:
        right = self.task.right(given, candidate)
        drawn = hashlib.sha256(f"{given[self.task.show[0]]}\n{candidate}".encode()).digest()
        wrong = int.from_bytes(drawn[:8], "big") / 2**64 < self.noise
        return 1.0 - right if wrong else right


class Told:
    """What the rule says of training rollouts, step by step; no run is told of it."""

    def __init__(self) -> None:
        self.curve: list[float] = []
        self.step: list[float] = []

    @agl.hookimpl
    def agl_policy_updated(self) -> None:
        self.curve.append(round(sum(self.step) / len(self.step), 4))
        self.step = []


def silent(task: Task, rewarded: bool, told: Told) -> Any:
    """The task's agent; in training only the arm with the reward (``rewarded``) has a number."""

    @agl.rollout
    async def solve(given: dict[str, Any], llm: agl.LLM, rollout: agl.Rollout) -> float | None:
        found = await task.agent(given, llm, rollout)
        if rollout.mode != "train":
            return found
        told.step.append(found)
        return found if rewarded else None

    return solve


def sets_of(task: Task, group_reward: dict[str, Any], url: str, seed: int, steps: int) -> list[str]:
    """What differs from the example's own configuration."""
    config = ROOT / task.config
    policies = {
        "student": {"path": str(config.parent / "policy")},
        "judge": {"endpoint": url, "model": "scripted"},
    }
    return [
        f"training.steps={steps}",
        f"training.seed={seed}",
        f"backend.policy={json.dumps(policies)}",
        f"agent.policies={json.dumps({'re:.*': 'student'})}",
        "trackers=[files]",
        *([f"group_reward={json.dumps(group_reward)}"] if group_reward else []),
        *task.sets,
    ]


def given_by(arm: str, task: Task) -> dict[str, Any]:
    """The group reward of an arm; none for the reward itself."""
    ranked = {"rank": {"judge": "judge", "values": "ranks", "show": list(task.show)}}
    return {"reward": {}, "agree": {"agree": {"read": task.read}}}.get(arm, ranked)


async def run_arm(name: str, arm: str, seed: int, steps: int) -> dict[str, Any]:
    """Train one arm, and return its curve and what the judge cost."""
    task, told = TASKS[name], Told()
    noise = float(arm.rpartition(" ")[2]) if arm.startswith("ranks") else 0.0
    with tempfile.TemporaryDirectory(prefix="agl-judge-") as output:
        with ScriptedModelServer(Judge(task, noise), model="scripted", ids="never") as server:
            sets = sets_of(task, given_by(arm, task), server.url, seed, steps)
            trainer, _, train, val = configure(read(ROOT / task.config, [*sets, f"output={output}"]))
            trainer.config = trainer.config.model_copy(update={"callbacks": [told]})
            async with trainer.session(silent(task, arm == "reward", told), train, val) as context:
                context.val = ()  # it is evaluated here, as the task says
                before = await context.evaluate(val, name="before", greedy=task.greedy)
                algorithm = algorithm_of(trainer.config, trainer.plugins, trainer)
                await context.guard(algorithm.run(context))
                after = await context.evaluate(val, name="after", greedy=task.greedy)
                counts = dict[str, Any]()
                for one in context.guards:
                    counts |= one.summary() if one.name == "group_reward" else {}
                folder = str(context.folder)
        again = rescored(folder, task) if arm.startswith("ranks") else {}
    return {
        "arm": arm,
        "seed": seed,
        "before": round(before.reward, 4),
        "after": round(after.reward, 4),
        "ci_after": after.ci and [round(one, 4) for one in after.ci],
        "curve": told.curve,
        "judge_calls": int(counts.get("judge_calls", 0)),
        "judge_tokens": int(counts.get("judge_tokens", 0)),
        "cached": int(counts.get("cached", 0)),
        "groups": int(counts.get("groups", 0)),
        "missing": {key: n for key, n in counts.items() if key.startswith("missing/")},
        "rescored": again,
    }


def rescored(folder: str, task: Task) -> dict[str, int]:
    """Grade the groups of a finished run again, by scores; the judge's server has gone."""
    options = json.dumps({"judge": "judge", "show": list(task.show)})
    command = [AGL, "judge", "rescore", folder, "--reward", "rank", "--options", options]
    done = subprocess.run(command, stdout=subprocess.PIPE, encoding="utf-8", check=True)
    found = json.loads(done.stdout)
    return {what: int(found.get(what, 0)) for what in ("groups", "scored", "cached", "judge_calls")}


async def measure_real(task: Task, pairs: int, forced: bool) -> dict[str, Any]:
    """Measure SmolLM2-135M on pairs of a better and a worse one. ``forced``: a grammar forces the form."""
    counts: Counter[str] = Counter()

    def count(what: str, n: float) -> None:
        counts[what] += int(n)

    plugins = load_plugins()
    store = agl.open_store(":memory:", plugins=plugins)
    try:
        judges = {"judge": agl.PolicyFolder("smollm2", train=False, options={"threads": 2, "max_len": 1024})}
        settings = {"count": count, "asks": 2, "concurrency": 4}
        async with open_client(store, judges, "real", plugins, **settings) as client:
            more = {"response_format": FORM} if forced else {}
            made = task.pairs(pairs)
            found = await check(client, "judge", made, counts, repeats=1, max_tokens=16, **more)
    finally:
        await store.close()
    return {"judge": "SmolLM2-135M", "forced": forced, **found, "asked_again": counts["asked_again"]}


def plot(tasks: dict[str, Any]) -> Any:
    """Return the figure: for each task the curves of its arms, with what their judge cost."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "agl"
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(len(tasks), figsize=(7, 4 * len(tasks)), squeeze=False)
    for (axes,), (name, found) in zip(panels, tasks.items(), strict=True):
        for one in found["arms"]:
            label = f"{one['arm']}, seed {one['seed']}: {one['after']:.2f} held out"
            if again := one["rescored"]:
                label += f"; {one['judge_calls']} calls, {one['judge_tokens']:,} tokens"
                label += f"; rescored: {again['cached']} cached, {again['judge_calls']} calls"
            axes.plot(range(1, len(one["curve"]) + 1), one["curve"], marker=".", label=label)
        axes.set_title(name)
        axes.set_xlabel("step")
        axes.set_ylabel("right, of its training rollouts")
        axes.legend(fontsize=6)
    figure.tight_layout()
    return figure


def learned(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Run all arms of a task."""
    task, arms = TASKS[name], list[dict[str, Any]]()
    for seed in given.seeds:
        for arm in given.arms:
            if arm == "agree" and not task.read:
                continue
            arms.append(asyncio.run(run_arm(name, arm, seed, given.steps or task.steps)))
            print(json.dumps({"task": name, **arms[-1]}), file=sys.stderr, flush=True)
    real = [asyncio.run(measure_real(task, given.pairs, f)) for f in (False, True)] if given.pairs else []
    return {"steps": given.steps or task.steps, "arms": arms, "reached": reached(arms), "real": real}


def reached(arms: list[dict[str, Any]]) -> dict[str, bool]:
    """Arm and seed → whether it ended within the interval of the run with the reward, or above it."""
    low = {one["seed"]: one["ci_after"][0] for one in arms if one["arm"] == "reward"}
    return {
        f"{one['arm']}, seed {one['seed']}": one["after"] >= low[one["seed"]]
        for one in arms
        if one["arm"] != "reward" and one["seed"] in low
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=[*TASKS], default=[*TASKS])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--steps", type=int, help="default: the task's")
    parser.add_argument("--pairs", type=int, default=24, help="0: do not measure SmolLM2-135M")
    parser.add_argument("--write", action="store_true", help="write bench/results/judge.json and judge.svg")
    given = parser.parse_args()
    found = {name: learned(name, given) for name in given.tasks}
    if given.write:
        place = RESULTS / "judge.json"
        known = json.loads(place.read_text(encoding="utf-8")).get("tasks", {}) if place.exists() else {}
        every = {name: one for name in TASKS if (one := {**known, **found}.get(name))}
        kept = {"command": "make bench-judge", "tasks": every}
        place.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        plot(every).savefig(RESULTS / "judge.svg", metadata={"Date": None})
    last_line({"tasks": found})


if __name__ == "__main__":
    main()
