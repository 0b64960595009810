"""Learns calc_x from a judge's ranks alone, beside the run with the reward: python bench/judge/learn.py

The agent, tasks, policy and settings are those of `make demo`. In training the agent returns no number: the
rewards of a group are the ranks that a scripted judge gives its rollouts, which sees the gold answer. The
judge is wrong about a share of the candidates (0, 10, 30 %), drawn by their text. Beside it: the reward
itself, and agreement of the answers, which needs no judge. Held-out tasks are graded by the rule in each arm.

SmolLM2-135M is measured as a judge on labelled pairs of the same tasks (`--pairs`), beside a coin's agreement
of a half; nothing is trained with it.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import re
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))

from agl_testing import ScriptedModelServer  # noqa: E402

import agentlightning as agl  # noqa: E402
from calc_x.agent import answer  # noqa: E402
from calc_x.datasets import load  # noqa: E402
from calc_x.grading import grade  # noqa: E402

RESULTS = ROOT / "bench" / "results"
OPTIONS = {"lr": 1.0e-4, "threads": 2, "engine_threads": 1, "max_num_seqs": 64, "max_len": 512}
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


@agl.rollout
async def solve(task: dict[str, Any], llm: agl.LLM, rollout: agl.Rollout) -> float | None:
    """Answer a problem; only held-out tasks, and the arm with the reward, have a number."""
    said = await answer(task["question"], llm)
    silent = rollout.mode == "train" and not task.get("rewarded")
    return None if silent else grade(said, task["result"], task["question"])


class Judge:
    """Ranks candidates by the rule, and is wrong about a share of them."""

    def __init__(self, noise: float) -> None:
        self.noise = noise

    def __call__(self, body: dict[str, Any]) -> str:
        text = body["messages"][1]["content"]
        task = json.loads(re.search(r"<task>\n(.*?)\n</task>", text, re.DOTALL)[1])  # type: ignore[index]
        found = re.findall(r'<candidate number="\d+">\n(.*?)\n</candidate>', text, re.DOTALL)
        return json.dumps({"scores": [self.score(one, task) for one in found]})

    def score(self, candidate: str, task: dict[str, Any]) -> float:
        right = grade(candidate.rpartition("assistant: ")[2], task["result"], task["question"])
        drawn = hashlib.sha256(f"{task['question']}\n{candidate}".encode()).digest()
        wrong = int.from_bytes(drawn[:8], "big") / 2**64 < self.noise
        return 1.0 - right if wrong else right


def run_arm(arm: str, seed: int, steps: int, every: int, held_out: int) -> dict[str, Any]:
    """Train one arm, and return its curve and what the judge cost."""
    noise = float(arm.rpartition(" ")[2]) if arm.startswith("ranks") else 0.0
    train = [{**one, "rewarded": arm == "reward"} for one in load("generated:train", limit=4000, seed=1)]
    val = load("generated:heldout", limit=held_out, seed=1)
    given = {
        "reward": None,
        "agree": agl.Agree(read=lambda text: grade_form(text)),
    }.get(arm, agl.Rank("judge", values="ranks", show=["question", "result"]))
    folder = Path(tempfile.mkdtemp(prefix="agl-judge-"))
    curve: list[tuple[int, float]] = []

    class Watch:
        @agl.hookimpl
        def agl_evaluated(self, evaluation: agl.Evaluation) -> None:
            if re.fullmatch(r"step-\d+", evaluation.name):
                curve.append((int(evaluation.name[5:]), round(evaluation.reward, 4)))

    try:
        with ScriptedModelServer(Judge(noise), model="scripted", ids="never") as server:
            trainer = agl.Trainer(
                agl.GRPO(group_size=8),
                policy={
                    "student": ROOT / "examples" / "calc_x" / "policy",
                    "judge": agl.LLM(endpoint=server.url, model="scripted"),
                },
                policies={"re:.*": "student"},
                options=OPTIONS,
                adapters=["autogen"],
                concurrency=64,
                steps=steps,
                batch_size=8,
                seed=seed,
                evaluate_every=every,
                evaluate_sampled=False,
                group_reward=given,
                callbacks=[Watch()],
                trackers=[],
                output=folder,
            )
            summary = trainer.fit(solve, train, val)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    counts = summary.get("group_reward", {})
    whole = [(0, summary["reward_before"]), *curve, (summary["steps"], summary["reward_after"])]
    return {
        "arm": arm,
        "seed": seed,
        "before": round(summary["reward_before"], 4),
        "after": round(summary["reward_after"], 4),
        "ci_after": [round(one, 4) for one in summary["ci_after"]],
        "curve": [[step, round(value, 4)] for step, value in whole],
        "judge_calls": int(counts.get("judge_calls", 0)),
        "judge_tokens": int(counts.get("judge_tokens", 0)),
        "cached": int(counts.get("cached", 0)),
        "groups": int(counts.get("groups", 0)),
        "missing": {key: n for key, n in counts.items() if key.startswith("missing/")},
    }


def grade_form(text: str) -> str:
    """The answer that a text marks, which agreement compares."""
    from calc_x.grading import extract

    return extract(text)


async def measure_real(pairs: int, forced: bool) -> dict[str, Any]:
    """Measure SmolLM2-135M on pairs of a right and a wrong answer. ``forced``: a grammar forces the form."""
    from agentlightning.plugins.manager import load as load_plugins
    from agl_judge.check import Pair, check
    from agl_judge.own_gateway import open_client

    tasks = load("generated:heldout", limit=pairs, seed=2)
    made = []
    for number, task in enumerate(tasks):
        right, wrong = (
            f"### ANSWER: {task['result']} ###",
            f"### ANSWER: {int(float(task['result'])) + 7} ###",
        )
        both = (right, wrong) if number % 2 == 0 else (wrong, right)
        made.append(Pair(task["question"], both, 1 if number % 2 == 0 else 2))
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
            found = await check(client, "judge", made, counts, repeats=1, max_tokens=16, **more)
    finally:
        await store.close()
    return {"judge": "SmolLM2-135M", "forced": forced, **found, "asked_again": counts["asked_again"]}


def plot(arms: list[dict[str, Any]]) -> Any:
    """Return the figure with the curves of all arms."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "agl"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for one in arms:
        steps, values = zip(*one["curve"], strict=True)
        label = f"{one['arm']} (seed {one['seed']}; {one['judge_calls']} calls)"
        axes.plot(steps, values, marker="o", label=label)
    axes.set_xlabel("step")
    axes.set_ylabel("held-out reward")
    axes.legend(fontsize=7)
    figure.tight_layout()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--every", type=int, default=8)
    parser.add_argument("--held-out", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=24, help="0: do not measure SmolLM2-135M")
    parser.add_argument("--write", action="store_true", help="write bench/results/judge.json and judge.svg")
    given = parser.parse_args()
    arms = []
    for seed in map(int, given.seeds.split(",")):
        for arm in ARMS:
            arms.append(run_arm(arm, seed, given.steps, given.every, given.held_out))
            print(json.dumps(arms[-1]), file=sys.stderr)
    found: dict[str, Any] = {
        "command": "make bench-judge",
        "seeds": given.seeds,
        "steps": given.steps,
        "held_out": given.held_out,
        "arms": arms,
        "reached": reached(arms),
    }
    if given.pairs:
        found["real"] = [asyncio.run(measure_real(given.pairs, forced)) for forced in (False, True)]
    if given.write:
        (RESULTS / "judge.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        plot(arms).savefig(RESULTS / "judge.svg", metadata={"Date": None})
    print(json.dumps(found))


def reached(arms: list[dict[str, Any]]) -> dict[str, bool]:
    """Arm and seed → whether it ended within the interval of the run with the reward, or above it."""
    low = {one["seed"]: one["ci_after"][0] for one in arms if one["arm"] == "reward"}
    return {
        f"{one['arm']}, seed {one['seed']}": one["after"] >= low[one["seed"]]
        for one in arms
        if one["arm"] != "reward"
    }


if __name__ == "__main__":
    main()
