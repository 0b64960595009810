"""The demo: wolves play 1,000 games against the scripted town, are trained, and play other 1,000: ``make
werewolf``.

The policy *samples* its moves in both evaluations, as it does in training: at the start it plays any legal
move alike, which is the honest baseline. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from agentlightning.cli import run_command
from agentlightning.cli.options import read
from agentlightning.train.configured import configure
from agentlightning.types import Evaluation
from werewolf.engine import Side
from werewolf.tournament import pairing

CONFIG = Path(__file__).resolve().parent / "cpu.yaml"


def headroom(games: int) -> dict[str, float]:
    """The share of the evaluated deals that local wolves win against the same town."""
    return {
        w: pairing("mini7", w, "scripted", games).rate(Side.WOLVES) for w in ("random", "scripted", "oracle")
    }


async def evaluate(sets: list[str], policy: str | None, name: str) -> Evaluation:
    """The held-out games with a policy that samples."""
    trainer, agent, _, tasks = configure(read(CONFIG, sets, training__steps=0, backend__policy=policy))
    async with trainer.session(agent, (), tasks) as context:
        return await context.evaluate(tasks, name=name, greedy=False)


def main() -> None:
    """Evaluate, train, evaluate."""
    parser = argparse.ArgumentParser(prog="python -m werewolf.demo", description=__doc__)
    parser.add_argument("--set", action="append", default=[], dest="sets", help="key=value of cpu.yaml")
    sets = parser.parse_args().sets
    before = asyncio.run(evaluate(sets, None, "before"))
    room = headroom(before.n)
    print(
        "Wolves against the scripted town: " + ", ".join(f"{k} {v:.3f}" for k, v in room.items()),
        file=sys.stderr,
    )
    trainer, agent, train, _ = configure(read(CONFIG, sets))
    summary = trainer.fit(agent, train, ())
    after = asyncio.run(evaluate(sets, summary["policy"], "after"))
    print(json.dumps(result(before, after, room, summary)), flush=True)


def result(
    before: Evaluation, after: Evaluation, room: dict[str, float], summary: dict[str, Any]
) -> dict[str, Any]:
    """The last line."""
    wolves = {
        "win_before": before.reward,
        "win_after": after.reward,
        "ci_before": before.ci and list(before.ci),
        "ci_after": after.ci and list(after.ci),
        "games": [before.n, after.n],
        "failed": [before.failed, after.failed],
    }
    calls = before.metrics["calls_made"] + after.metrics["calls_made"]
    return {
        "sides": {"wolves": wolves},
        "headroom": {name: round(value, 4) for name, value in room.items()},
        "train_seconds": summary["train_seconds"],
        "evaluation_seconds": round(before.seconds + after.seconds, 1),
        "evaluation_calls": int(calls),
        "steps": summary["steps"],
        "run_id": summary["run_id"],
    }


if __name__ == "__main__":
    run_command(main)
