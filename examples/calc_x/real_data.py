"""The same agent over real problems, 50 of SVAMP and 50 of GSM8K: once with the oracle, once with the policy.

    python examples/calc_x/real_data.py            (or: make real-data)

What it shows is the path, not a score: real texts go through agent, adapter, gateway and store; every call
must be captured exactly, every answer graded, and the account of every rollout must sum. The tiny policy has
never seen such sentences and scores near zero. The last line is one JSON object; the exit status is 1 if a
call was not exact or the oracle fell below 0.98.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from agentlightning import GRPO, Evaluation, Ledger, Trainer  # noqa: E402
from agentlightning.credit import assign  # noqa: E402
from agentlightning.store.pages import pages  # noqa: E402
from calc_x.agent import solve  # noqa: E402
from calc_x.datasets import load  # noqa: E402
from calc_x.headroom import oracle  # noqa: E402


async def run(folder: str) -> tuple[Evaluation, Evaluation, list[Ledger]]:
    """Evaluate both policies on the bundled samples; the account of every rollout comes with them."""
    tasks = [*load("svamp", limit=50), *load("gsm8k", limit=50)]
    trainer = Trainer(
        GRPO(),
        policy=HERE / "policy",
        options={"engine_threads": 1, "max_len": 1024},
        headroom={"oracle": oracle},
        adapters=["autogen"],
        concurrency=32,
        output=folder,
        name="calc_x-real",
        trackers=["console"],
    )
    async with trainer.session(solve, (), tasks) as context:
        by_oracle = await context.evaluate(tasks, name="oracle", policy="oracle")
        by_tiny = await context.evaluate(tasks, name="tiny")
        records = []
        async for page in pages(context.store.query_rollouts, run_id=context.run_id):
            records += await context.store.records([rollout.rollout_id for rollout in page])
    return by_oracle, by_tiny, assign(records, GRPO()).ledgers


def main() -> int:
    """Run, print, and say whether every call was exact."""
    with tempfile.TemporaryDirectory() as folder:
        by_oracle, by_tiny, ledgers = asyncio.run(run(folder))
    both = (by_oracle, by_tiny)
    made = sum(int(e.metrics["calls_made"]) for e in both)
    exact = sum(int(e.metrics["calls_exact"]) for e in both)
    graded = sum(e.n - e.failed for e in both)
    sums = sum(ledger.sums and ledger.made == ledger.recorded for ledger in ledgers)
    accounted = sum(ledger.made for ledger in ledgers)
    print(f"{graded} of {sum(e.n for e in both)} answers graded", file=sys.stderr)
    print(f"{sums} of {len(ledgers)} ledgers sum, over {accounted} of {made} calls", file=sys.stderr)
    result = {
        "tasks": by_oracle.n,
        "calls_made": made,
        "calls_exact": exact,
        "oracle_reward": by_oracle.reward,
        "tiny_reward": by_tiny.reward,
    }
    print(json.dumps(result))
    whole = made == exact == accounted > 0 and graded == len(ledgers) == sums == 2 * by_oracle.n
    return 0 if whole and by_oracle.reward >= 0.98 else 1


if __name__ == "__main__":
    sys.exit(main())
