"""Wolves and town as two policies of one run, playing against each other, with three rules of credit.

    python bench/werewolf_two_policies.py [--steps 40] [--deals 8] [--games 400] [--rules …]
    python bench/werewolf_two_policies.py --draw bench/results/NAME.json          # its curves, as NAME.png

Both start from the shipped policy with random weights; how it plays before is measured once. ``outcome``:
every decision gets the result of its side; ``discounted``: less for early ones (0.9 for each later decision
of the seat); ``aimed``: 0.2 more or less for whom a vote or an attack strikes. Before and after, each policy
plays ``games`` sampled games against the script, and both play each other. The last line is one JSON object:
win rates with 95 % intervals, the share of won decisions by role, the curve of self-play, and what it took,
as they come out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from agentlightning.algorithms.context import Context
from agentlightning.algorithms.rl import RL
from agentlightning.hookspecs import hookimpl
from agentlightning.store.pages import pages
from agentlightning.train.configured import configure
from agentlightning.train.run_file import load_config
from agentlightning.types import StepReport
from werewolf.tasks import EVALUATION, games

CONFIG = Path(__file__).resolve().parents[1] / "examples" / "werewolf" / "cpu.yaml"
RULES: dict[str, dict[str, float]] = {"outcome": {}, "discounted": {"discount": 0.9}, "aimed": {"aim": 0.2}}
PAIRS = {
    "wolves against the script": ("wolves", {"wolves": "policy", "town": "scripted"}),
    "town against the script": ("town", {"wolves": "scripted", "town": "policy"}),
    "wolves against the town": ("wolves", {"wolves": "policy", "town": "policy"}),
}


class Curve:
    """The wolves' share of the games of each step."""

    def __init__(self) -> None:
        self.won: list[float] = []

    @hookimpl
    def agl_policy_updated(self, report: StepReport) -> None:
        if report.step == len(self.won):  # both policies report the step
            self.won.append(round(report.metrics["reward_mean"], 4))


async def pairs(context: Context, when: str, n: int) -> dict[str, Any]:
    """Win rates of the policies as they are, and by role the share of decisions in won games."""
    out: dict[str, Any] = {}
    for name, (side, sides) in PAIRS.items():
        tasks = games(n, EVALUATION, trained=side, sides=sides)
        label = f"{when}: {name}"
        evaluation = await context.evaluate(tasks, name=label, greedy=False)
        low, high = evaluation.ci or (0.0, 1.0)
        out[name] = {
            "win": round(evaluation.reward, 4),
            "ci": [round(low, 4), round(high, 4)],
            "n": evaluation.n,
            "failed": evaluation.failed,
            "by_role": await by_role(context, label),
        }
    return out


async def by_role(context: Context, evaluation: str) -> dict[str, dict[str, float]]:
    """Role → decisions, and the mean of their rewards."""
    rollouts = []
    async for page in pages(context.store.query_rollouts):
        rollouts += [r for r in page if r.metadata.get("evaluation") == evaluation]
    rewards: dict[str, list[float]] = defaultdict(list)
    for record in await context.store.records([r.rollout_id for r in rollouts]):
        roles = {call.response_id: call.tags["role"] for call in record.calls}
        roles |= {call.span_id: call.tags["role"] for call in record.calls if call.span_id}
        roles |= {call.call_id: call.tags["role"] for call in record.calls}
        for reward in record.rewards:
            if role := roles.get(reward.call_id) or roles.get(reward.span_id):
                rewards[role].append(reward.value)
    return {
        role: {"decisions": len(values), "reward": round(sum(values) / len(values), 4)}
        for role, values in sorted(rewards.items())
    }


async def train(
    rule: str, given: argparse.Namespace, folder: str, before: dict[str, Any] | None
) -> dict[str, Any]:
    """One run of both policies with a rule of credit. ``before``: what another run found, for all start from
    the same policies.
    """
    steps, n = given.steps, given.games
    self_play = {"wolves": "policy", "town": "policy"}
    start = str(CONFIG.parent / "policy")
    config = load_config(
        CONFIG,
        {
            "agent.name": f"two-{rule}",
            "agent.select": None,
            "agent.policies": {"re:wolf.*": "wolves", "re:villager|seer|witch": "town"},
            "training.steps": steps,
            "training.batch_size": given.deals,
            "training.seed": given.seed,
            "environment.train.args": {"n": 4000, "sides": self_play, "rewards": RULES[rule]},
            "environment.val": None,
            "backend.policy": {"wolves": {"path": start}, "town": {"path": start}},
            "output": folder,
        },
    )
    trainer, agent, tasks, _ = configure(config)
    curve = Curve()
    trainer.plugins = trainer.plugins.with_listeners([curve])
    rl = RL(trainer.recipe, trainer.config.training)
    async with trainer.session(agent, tasks, ()) as context:
        before = before or await pairs(context, "before", n)
        summary = await context.guard(rl.run(context))
        after = await pairs(context, "after", n)
    return {
        "rule": rule,
        "rewards": RULES[rule],
        "steps": steps,
        "before": before,
        "after": after,
        "self_play": curve.won,
        "train_seconds": summary["train_seconds"],
        "calls_trained": summary["totals"]["calls_trained"],
        "logprob_gap_max": summary["totals"]["logprob_gap_max"],
    }


def cpu() -> dict[str, float]:
    """Seconds of CPU so far, of this process and of the engines that have ended."""
    of = {"main": resource.RUSAGE_SELF, "engines": resource.RUSAGE_CHILDREN}
    used = {name: resource.getrusage(who) for name, who in of.items()}
    return {name: round(one.ru_utime + one.ru_stime, 1) for name, one in used.items()}


def draw(kept: Path) -> None:
    """The wolves' share of the games of each step, mean of eight steps, as a picture beside ``kept``."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 3.5), layout="constrained")
    for rule in json.loads(kept.read_text(encoding="utf-8"))["result"]["rules"]:
        won = rule["self_play"]
        near = [won[max(0, i - 7) : i + 1] for i in range(len(won))]
        axes.plot(range(1, len(won) + 1), [sum(part) / len(part) for part in near], label=rule["rule"])
    axes.set(xlabel="step", ylabel="games that the wolves win", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(kept.with_suffix(".png"), dpi=130)


def main() -> None:
    """All rules, one after the other."""
    parser = argparse.ArgumentParser(description="Wolves and town as two policies in one run.")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--deals", type=int, default=8, help="of a step; each is played eight times")
    parser.add_argument("--games", type=int, default=400, help="of each evaluation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=list(RULES))
    parser.add_argument("--draw", type=Path, metavar="FILE", help="draw the curves of a kept result")
    given = parser.parse_args()
    if given.draw:
        return draw(given.draw)
    found: list[dict[str, Any]] = []
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for rule in given.rules:
            before = found[0]["before"] if found else None
            found.append(asyncio.run(train(rule, given, folder, before)))
            for when in ("before", "after"):
                for name, one in found[-1][when].items():
                    print(f"{rule:11} {when:7} {name:26} {one['win']:.3f}  {one['ci']}", flush=True)
    cost = {"seconds": round(time.monotonic() - start, 1), "cpu_seconds": cpu()}
    print(
        json.dumps({"seed": given.seed, "games": given.games, "deals": given.deals, "rules": found, **cost})
    )


if __name__ == "__main__":
    main()
