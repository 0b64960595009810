"""An agent of which a fifth of the attempts fail, trained beside the healthy one with the same seed.

    python bench/failing_agent/run.py [--seed 1] [--steps 40] [--driver verl] [--write]   (or: make failing)

Both are trained for the demo's steps and evaluated on the held-out problems, where neither fails. The
failures (``agent.py``) go through the default failure table. The last line is one JSON object: held-out
rewards, their difference in points, failures by kind, and whether the ledgers account for every call that the
gateway recorded. ``--write`` keeps it in ``bench/results/failing_agent.json``. Exit status 1 if the
difference is above 5 points, a call is missing, or a kind of failure did not occur.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from failing_agent import agent as failing
from record import machine

from agentlightning.algorithms.context import Context
from agentlightning.algorithms.rl import RL
from agentlightning.gateway import Upstream
from agentlightning.hookspecs import hookimpl
from agentlightning.store.base import Conflict
from agentlightning.train.configured import configure
from agentlightning.train.run_file import load_config
from agentlightning.types import Attempt, AttemptStatus, Batch, Evaluation, Rollout, RolloutStatus

BENCH = Path(__file__).resolve().parents[1]
CALC_X = BENCH.parent / "examples" / "calc_x"
CONFIGS = {"local": CALC_X / "cpu.yaml", "verl": CALC_X / "verl.yaml"}
PATIENCE = 2.0
"""An attempt's time is up after this many times the longest attempt of the healthy run: short, because every
step waits for those that hang, and long enough for those that do not.
"""
SHORTEST = 3.0
"""Seconds, at least."""
POINTS = 5.0
KINDS = {
    "agent-raised", "no-call", "bad-reward", "timeout", "cancelled", "model-4xx", "model-5xx", "over-length",
}  # fmt: skip
"""What the ways of failing must come out as."""


class Account:
    """What the run says of its calls and failures."""

    def __init__(self) -> None:
        self.ledgered = 0
        self.sums = True
        self.failed: Counter[str] = Counter()
        """Kind → rollouts left out."""
        self.retried: Counter[str] = Counter()
        """Kind → attempts after which there was another."""
        self.longest = 0.0
        """Seconds of the longest attempt in training that succeeded."""

    @hookimpl
    def agl_rollout_finished(self, rollout: Rollout, attempt: Attempt) -> None:
        if rollout.mode == "train" and attempt.status == AttemptStatus.SUCCEEDED and attempt.end_time:
            self.longest = max(self.longest, attempt.end_time - attempt.start_time)

    @hookimpl
    def agl_rows_built(self, batch: Batch) -> None:
        self.sums = self.sums and all(ledger.sums for ledger in batch.ledgers)
        self.ledgered += sum(ledger.made for ledger in batch.ledgers)
        for name, n in batch.metrics.items():
            where, _, kind = name.partition("/")
            if where in ("failed", "retried"):
                getattr(self, where)[kind] += int(n)

    @hookimpl
    def agl_evaluated(self, evaluation: Evaluation) -> None:
        self.ledgered += int(evaluation.metrics["calls_made"])


async def train(
    name: str, target: str, seed: int, steps: int | None, driver: str, timeout: float
) -> dict[str, Any]:
    """One run; what it reached, and its account."""
    overrides: dict[str, Any] = {
        "agent.target": target,
        "agent.name": name,
        "agent.timeout_seconds": timeout,
        "training.seed": seed,
        "pythonpath": ["..", str(BENCH)],
        "environment.headroom": {},
        **({} if steps is None else {"training.steps": steps}),
    }
    if driver == "verl":
        overrides["backend.options.python"] = environment("verl")
    config = load_config(CONFIGS[driver], overrides)
    trainer, agent, tasks, held_out = configure(config)
    account = Account()
    trainer.plugins = trainer.plugins.with_listeners([account])
    rl = RL(trainer.recipe, trainer.config.training)
    began = time.perf_counter()
    async with trainer.session(agent, tasks, held_out) as context, mischief(context):
        summary = await context.guard(rl.run(context))
        made, lost = sum(context.gateway.metrics.calls.values()), context.gateway.metrics.lost_records
    return {
        "agent": name,
        "reward_before": summary["reward_before"],
        "reward_after": summary["reward_after"],
        "ci_after": summary["ci_after"],
        "rollouts": summary["totals"]["rollouts"],
        "rollouts_failed": summary["totals"]["rollouts_failed"],
        "calls_made": made,
        "calls_lost": lost,
        "calls_ledgered": account.ledgered,
        "ledger_sums": account.sums and made == account.ledgered and lost == 0,
        "left_out": dict(sorted(account.failed.items())),
        "retried": dict(sorted(account.retried.items())),
        "timeout_seconds": timeout,
        "longest_seconds": round(account.longest, 3),
        "seconds": round(time.perf_counter() - began, 1),
    }


def environment(name: str) -> str:
    """Interpreter of one of our environments, made if it is not there."""
    command = [sys.executable, str(BENCH.parent / "scripts" / "environment"), name]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.decode().split()[-1]


@asynccontextmanager
async def mischief(context: Context) -> AsyncIterator[None]:
    """A model whose engine cannot be reached, and somebody who cancels rollouts."""
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        context.gateway.add_route(
            Upstream(policy=failing.BROKEN, model=failing.BROKEN, url=url, trainable=False)
        )
        failing.cancel = asyncio.Queue()
        canceller = asyncio.create_task(cancel(context))
        try:
            yield
        finally:
            if canceller.done():
                canceller.result()  # raises what it died of
            canceller.cancel()


async def cancel(context: Context) -> None:
    """Cancel the rollouts whose agents ask for it."""
    while True:
        rollout_id = await failing.cancel.get()
        try:
            await context.store.update_rollout(
                rollout_id, RolloutStatus.CANCELLED, reason="cancelled: by the benchmark"
            )
        except Conflict:  # its time was up first
            print(f"rollout {rollout_id} had ended before it was cancelled", file=sys.stderr)


def main() -> int:
    """Train both, compare, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, help="instead of the demo's")
    parser.add_argument("--driver", choices=sorted(CONFIGS), default="local")
    parser.add_argument("--write", action="store_true", help="keep the figures in bench/results")
    arguments = parser.parse_args()
    if arguments.write and (arguments.steps is not None or arguments.driver != "local"):
        parser.error("--write keeps the figures of the whole demo: leave out --steps and --driver")
    before = machine()
    given = arguments.seed, arguments.steps, arguments.driver
    healthy = asyncio.run(train("healthy", "calc_x.agent:solve", *given, timeout=60.0))
    timeout = round(max(SHORTEST, PATIENCE * healthy["longest_seconds"]), 1)
    broken = asyncio.run(train("failing", "failing_agent.agent:solve", *given, timeout=timeout))
    difference = 100 * (healthy["reward_after"] - broken["reward_after"])
    result = {
        "healthy": healthy["reward_after"],
        "failing": broken["reward_after"],
        "difference_points": round(difference, 2),
        "ledger_sums": healthy["ledger_sums"] and broken["ledger_sums"],
        "calls_made": broken["calls_made"],
        "calls_ledgered": broken["calls_ledgered"],
        "failures": dict(sorted((Counter(broken["left_out"]) + Counter(broken["retried"])).items())),
    }
    if arguments.write:
        kept = {
            "command": f"python bench/failing_agent/run.py --seed {arguments.seed} --write",
            **result,
            "runs": [healthy, broken],
            "machine": before,
        }
        (BENCH / "results" / "failing_agent.json").write_text(
            json.dumps(kept, indent=2) + "\n", encoding="utf-8"
        )
    print(json.dumps(result))
    if missing := KINDS - result["failures"].keys():
        print(f"no attempt failed by {', '.join(sorted(missing))}", file=sys.stderr)
    return 0 if difference <= POINTS and result["ledger_sums"] and not missing else 1


if __name__ == "__main__":
    sys.exit(main())
