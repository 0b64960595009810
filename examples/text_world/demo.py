"""Train the agent and put it beside the best script that knows no kitchen: ``make text-world``.

    python examples/text_world/demo.py [--seed N] [--steps N] [--set KEY=VALUE ...]

The last line is one JSON object. ``baseline`` is the careful reader, on the same games. The exit status is
1 if a call was not captured exactly.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from agentlightning.cli.options import last_line, read  # noqa: E402
from agentlightning.train.configured import configure  # noqa: E402
from text_world.baselines import careful_reader, rewards  # noqa: E402
from text_world.games import Task  # noqa: E402


def result(
    summary: dict[str, Any], held_out: Sequence[Task], made: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """The last line of a finished run, without its seconds. ``made``: the metrics of its evaluations."""
    totals = summary["totals"]
    return {
        "before": summary["reward_before"],
        "after": summary["reward_after"],
        "ci_before": summary["ci_before"],
        "ci_after": summary["ci_after"],
        "baseline": round(mean(rewards(careful_reader, held_out)), 4),
        "calls": int(totals["calls"] + sum(one["calls_made"] for one in made)),
        "calls_exact": int(totals["calls_exact"] + sum(one["calls_exact"] for one in made)),
    }


def main(words: Sequence[str] | None = None) -> int:
    """Train and print. ``words``: of the command line."""
    parser = argparse.ArgumentParser(prog="demo.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--set", action="append", metavar="KEY=VALUE", help="as of `agl train`")
    given = parser.parse_args(words)
    began = time.perf_counter()
    config = read(HERE / "cpu.yaml", given.set, training__seed=given.seed, training__steps=given.steps)
    trainer, agent, train, held_out = configure(config)
    summary: dict[str, Any] = trainer.fit(agent, train, held_out)
    lines = (config.path(config.output) / summary["run_id"] / "evaluations.jsonl").read_text(encoding="utf-8")
    done = [json.loads(line)["metrics"] for line in lines.splitlines()]
    line = result(summary, held_out, done)
    last_line({**line, "seconds": round(time.perf_counter() - began, 1)})
    return 0 if line["calls"] == line["calls_exact"] else 1


if __name__ == "__main__":
    sys.exit(main())
