"""Rollouts that misbehave in every way we know, three hundred in one run of the demo, beside the healthy run.

    python bench/hostile_agents/run.py [--seed 1] [--steps 40] [--write]        (or: make hostile)

One rollout of a group misbehaves until ``--rollouts`` have; agents run in processes of their own, since some
of them end theirs. The agent's own record of what it did (``agent.py``) is compared with what the store
explains: ``lost`` counts calls that were answered and are in no ledger, and misdeeds of which nothing is on
record. The last line is one JSON object; exit status 1 unless the run finished, its ledgers sum and nothing
is lost. Results are written to ``bench/results/hostile_agents.json`` with ``--write`` and not otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hostile_agents.agent import MOST, WITNESS, watch
from hostile_agents.vices import ASIDE, FINE, VICES
from record import machine

from agentlightning import semconv
from agentlightning.algorithms.rl import RL
from agentlightning.hookspecs import hookimpl
from agentlightning.store.base import Store
from agentlightning.train.configured import configure
from agentlightning.train.run_file import load_config
from agentlightning.types import Batch, Evaluation, RolloutStatus
from agentlightning.types.failure import failure_kind

BENCH = Path(__file__).resolve().parents[1]
CONFIG = BENCH.parent / "examples" / "calc_x" / "cpu.yaml"


class Account:
    """What the run's ledgers say."""

    def __init__(self) -> None:
        self.made: Counter[str] = Counter()
        """Rollout → calls in its ledger."""
        self.evaluated = 0
        self.sums = True
        self.failed: Counter[str] = Counter()

    @hookimpl
    def agl_rows_built(self, batch: Batch) -> None:
        self.sums = self.sums and all(ledger.sums for ledger in batch.ledgers)
        for ledger in batch.ledgers:
            self.made[ledger.rollout_id] += ledger.made
        for name, n in batch.metrics.items():
            where, _, kind = name.partition("/")
            if where == "failed":
                self.failed[kind] += int(n)

    @hookimpl
    def agl_evaluated(self, evaluation: Evaluation) -> None:
        self.evaluated += int(evaluation.metrics["calls_made"])


async def train(given: argparse.Namespace, output: Path, **agent: Any) -> dict[str, Any]:
    """One run; what it reached, its account, and what of the agent's own record nothing explains."""
    overrides: dict[str, Any] = {
        **{f"agent.{name}": value for name, value in agent.items()},
        "training.seed": given.seed,
        "training.steps": given.steps,
        "pythonpath": ["..", str(BENCH)],
        "environment.headroom": {},
        "output": str(output),
    }
    config = load_config(CONFIG, overrides)
    trainer, what, tasks, held_out = configure(config)
    account = Account()
    trainer.plugins = trainer.plugins.with_listeners([account])
    rl = RL(trainer.recipe, trainer.config.training)
    began = time.perf_counter()
    async with trainer.session(what, tasks, held_out) as context:
        summary = await context.guard(rl.run(context))
        found = await unexplained(context.store, context.run_id, account, witness())
        metrics = context.gateway.metrics
        recorded, lost = sum(metrics.calls.values()), metrics.lost_records
        accounts = await context.accounts()
    ledgered = sum(account.made.values()) + account.evaluated
    return {
        "reward_before": summary["reward_before"],
        "reward_after": summary["reward_after"],
        "ci_after": summary["ci_after"],
        "rollouts": summary["totals"]["rollouts"],
        "ledger_sums": account.sums and recorded + found.pop("handed_in") == ledgered and not lost,
        "calls_ledgered": ledgered,
        "failed": dict(sorted(account.failed.items())),
        "accounts": accounts,
        **found,
        "seconds": round(time.perf_counter() - began, 1),
    }


def witness() -> dict[str, list[tuple[str, str]]]:
    """What the agents noted: ``answered`` and ``misdeed``, each a list of (rollout, what)."""
    found: dict[str, list[tuple[str, str]]] = {"answered": [], "misdeed": []}
    path = Path(os.environ[WITNESS])
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        what, rollout_id, text = json.loads(line)
        found[what].append((rollout_id, text))
    return found


async def unexplained(
    store: Store, run_id: str, account: Account, noted: Mapping[str, Sequence[tuple[str, str]]]
) -> dict[str, Any]:
    """Calls that were answered and are in no ledger, and misdeeds of which nothing is on record."""
    answered = Counter(rollout_id for rollout_id, _ in noted["answered"])
    misdeeds = dict(noted["misdeed"])
    handed_in = bad = lost_calls = 0
    missing: dict[str, str] = {}
    kinds: Counter[str] = Counter()
    rollouts = [r for page in [await store.query_rollouts(run_id=run_id, limit=100_000)] for r in page]
    for rollout in rollouts:
        calls = await store.query_calls(rollout.rollout_id, attempt_id=None)
        handed_in += sum(call.api == "supplied" for call in calls)
        explained = account.made[rollout.rollout_id] if rollout.mode == "train" else len(calls)
        lost_calls += max(0, answered[rollout.rollout_id] - explained)
        if (name := misdeeds.get(rollout.rollout_id)) is None:
            continue
        aside = await store.spans(rollout.rollout_id, name=semconv.BAD_RECORD_SPAN)
        ended = "" if rollout.status == RolloutStatus.SUCCEEDED else failure_kind(rollout.reason) or "failed"
        standing = {ended or FINE, *([ASIDE] if aside else [])}
        kinds[ended or FINE] += 1
        bad += ended in ("bad-record", "bad-reward") or bool(aside)
        if not standing & set(VICES[name].explained):
            missing[name] = f"{rollout.status}: {rollout.reason}"
    return {
        "hostile": len(misdeeds),
        "vices": len(set(misdeeds.values())),
        "answered": sum(answered.values()),
        "handed_in": handed_in,
        "bad_records": bad,
        "ends": dict(kinds.most_common()),
        "lost_calls": lost_calls,
        "lost_records": len(missing),
        "unexplained": missing,
    }


def main() -> int:
    """Train both, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rollouts", type=int, default=300, help="that misbehave")
    parser.add_argument("--write", action="store_true", help="write bench/results/hostile_agents.json")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="agl-hostile-") as base:
        watch()  # of the healthy agent, which runs in this process
        os.environ[MOST] = str(given.rollouts)
        os.environ[WITNESS] = str(Path(base) / "healthy.jsonl")
        healthy = asyncio.run(
            train(given, Path(base), name="healthy", target="calc_x.agent:solve", timeout_seconds=60.0)
        )
        os.environ[WITNESS] = str(Path(base) / "hostile.jsonl")
        hostile = asyncio.run(
            train(
                given,
                Path(base),
                name="hostile",
                target="hostile_agents.agent:solve",
                isolation="process",
                concurrency=8,
                timeout_seconds=20.0,
            )
        )
    result = {
        "rollouts": hostile["hostile"],
        "ways": hostile["vices"],
        "run_finished": True,
        "ledger_sums": hostile["ledger_sums"],
        "lost": hostile["lost_calls"] + hostile["lost_records"],
        "bad_records": hostile["bad_records"],
        "calls_answered": hostile["answered"],
        "calls_ledgered": hostile["calls_ledgered"],
        "healthy": healthy["reward_after"],
        "hostile": hostile["reward_after"],
    }
    if given.write:
        kept = {"command": "python bench/hostile_agents/run.py", **result, "machine": machine()}
        file = BENCH / "results" / "hostile_agents.json"
        file.write_text(json.dumps({**kept, "runs": [healthy, hostile]}, indent=2) + "\n", encoding="utf-8")
    print(json.dumps({"healthy": healthy, "hostile": hostile}), file=sys.stderr)
    print(json.dumps(result))
    if not hostile["answered"]:
        print("the agents noted no answered call: nothing was compared", file=sys.stderr)
        return 1
    return 0 if result["ledger_sums"] and not result["lost"] else 1


if __name__ == "__main__":
    sys.exit(main())
