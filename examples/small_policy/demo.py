"""The demo of an example with a small policy: evaluate, train, evaluate, and put it beside a script."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agentlightning.cli.options import last_line, read
from agentlightning.hookspecs import hookimpl
from agentlightning.train.configured import configure
from agentlightning.types import Evaluation


class Evaluated:
    """Counts the calls of a run's evaluations, which its summary leaves out."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    @hookimpl
    def agl_evaluated(self, evaluation: Evaluation) -> None:
        for name in ("calls_made", "calls_exact"):
            self.counts[name] += int(evaluation.metrics[name])


def main(
    example: Path, about: str, baseline: Callable[[Sequence[Any]], float], words: Sequence[str] | None
) -> int:
    """Train by ``cpu.yaml`` of the folder ``example`` and print one JSON object as the last line.

    ``about``: the docstring of the demo; ``baseline``: the mean reward of a script on the held-out tasks;
    ``words``: of the command line (None: this process's). Return 1 if a call was not captured exactly, or if
    the oracle of ``environment.headroom``, where there is one, fell short of 1.0.
    """
    parser = argparse.ArgumentParser(prog="demo.py", description=about.partition("\n")[0])
    parser.add_argument("--seed", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--set", action="append", metavar="KEY=VALUE", help="as of `agl train`")
    given = parser.parse_args(words)
    began, evaluated = time.perf_counter(), Evaluated()
    config = read(example / "cpu.yaml", given.set, training__seed=given.seed, training__steps=given.steps)
    trainer, agent, train, held_out = configure(config)
    callbacks = [*trainer.config.callbacks, evaluated]
    trainer.config = trainer.config.model_copy(update={"callbacks": callbacks})
    summary: dict[str, Any] = trainer.fit(agent, train, held_out)
    totals, made = summary["totals"], evaluated.counts
    calls = int(totals["calls"]) + made["calls_made"]
    exact = int(totals["calls_exact"]) + made["calls_exact"]
    last_line(
        {
            "before": summary["reward_before"],
            "after": summary["reward_after"],
            "ci_before": summary["ci_before"],
            "ci_after": summary["ci_after"],
            "baseline": round(baseline(held_out), 4),
            "calls": calls,
            "calls_exact": exact,
            "seconds": round(time.perf_counter() - began, 1),
        }
    )
    return int(calls != exact or (summary.get("headroom") or {}).get("oracle", 1.0) != 1.0)
