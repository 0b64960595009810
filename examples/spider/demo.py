"""Train the agent on generated questions, then let it loose on the real ones.

    python examples/spider/demo.py [--seed N] [--steps N] [--real N] [--set KEY=VALUE ...]   (or: make spider)

First `agl train` with cpu.yaml: before, training, after, on generated questions over real databases. Then the
real development questions of Spider go through the same agent, gateway and store, by the scripted oracle and
by the trained policy. That shows the path, not a score: every call must be captured exactly, every answer
graded, and the account of every rollout must sum. The small policy knows neither these databases nor such
sentences. The last line is one JSON object; the exit status is 1 if the oracle fell short of 1.0 or a call
was not exact.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from agentlightning import GRPO, Evaluation, Ledger, Trainer  # noqa: E402
from agentlightning.cli import run_command  # noqa: E402
from agentlightning.cli.options import read  # noqa: E402
from agentlightning.credit import assign  # noqa: E402
from agentlightning.train.configured import configure  # noqa: E402
from spider.agent import brief  # noqa: E402
from spider.datasets import load  # noqa: E402
from spider.headroom import oracle  # noqa: E402


async def real(policy: str, folder: str, limit: int | None) -> tuple[list[Evaluation], list[Ledger]]:
    """Both evaluations on the real questions, and the account of every rollout."""
    tasks = load("dev", limit=limit)
    trainer = Trainer(
        GRPO(),
        policy=policy,
        options={"engine_threads": 2, "max_len": 2048, "max_num_seqs": 32},
        headroom={"oracle": oracle},
        adapters=["langgraph"],
        concurrency=32,
        timeout_seconds=300.0,
        output=folder,
        name="spider-real",
        trackers=["console"],
        note="The real development questions, by the scripted oracle and by the policy.",
    )
    async with trainer.session(brief, (), tasks) as context:
        by_oracle = await context.evaluate(tasks, name="real, oracle", policy="oracle")
        by_tiny = await context.evaluate(tasks, name="real, tiny")
        rollouts = await context.store.query_rollouts(run_id=context.run_id, limit=100_000)
        records = await context.store.records([rollout.rollout_id for rollout in rollouts])
    return [by_oracle, by_tiny], assign(records, GRPO()).ledgers


def sound(evaluations: list[Evaluation], ledgers: list[Ledger]) -> bool:
    """Whether every answer was graded, every call exact, and every account sums; says so."""
    n = sum(e.n for e in evaluations)
    graded = n - sum(e.failed for e in evaluations)
    made = sum(int(e.metrics["calls_made"]) for e in evaluations)
    exact = sum(int(e.metrics["calls_exact"]) for e in evaluations)
    sums = sum(ledger.sums and ledger.made == ledger.recorded for ledger in ledgers)
    print(f"{graded} of {n} answers graded, {exact} of {made} calls exact", file=sys.stderr)
    print(f"{sums} of {len(ledgers)} ledgers sum", file=sys.stderr)
    return graded == n == len(ledgers) == sums and exact == made == sum(x.made for x in ledgers) > 0


def main() -> int:
    """Train, go through the real questions, print."""
    parser = argparse.ArgumentParser(prog="demo.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--real", type=int, metavar="N", help="so many of the real questions (default: all)")
    parser.add_argument("--set", action="append", metavar="KEY=VALUE", help="as of `agl train`")
    given = parser.parse_args()
    config = read(HERE / "cpu.yaml", given.set, training__seed=given.seed, training__steps=given.steps)
    trainer, agent, train, val = configure(config)
    summary: dict[str, Any] = trainer.fit(agent, train, val)
    with tempfile.TemporaryDirectory() as folder:
        evaluations, ledgers = asyncio.run(real(summary["policy"], folder, given.real))
    right = sound(evaluations, ledgers)
    by_oracle, by_tiny = evaluations
    result = {
        "accuracy_before": summary["reward_before"],
        "accuracy_after": summary["reward_after"],
        "ci_before": summary["ci_before"],
        "ci_after": summary["ci_after"],
        "real_dev_oracle": by_oracle.reward,
        "real_dev_tiny": by_tiny.reward,
        "train_seconds": summary["train_seconds"],
        "seed": summary["seed"],
        "accuracy_tasks": summary["eval_tasks"],
        "real_dev_tasks": by_oracle.n,
        "run_id": summary["run_id"],
    }
    print(json.dumps(result), flush=True)
    return 0 if right and by_oracle.reward == 1.0 else 1


if __name__ == "__main__":
    run_command(lambda: sys.exit(main()))
