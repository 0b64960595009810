"""Structured output and forced tools of each framework, served by the local engine and trained.

    python bench/structured/run.py [--write]        (or: make test-structured)

Every cell of ``cells.py`` makes its call twice, through gateway and store, to a policy of random weights.
*Served*: no call of it failed. *Trained*: credit masked none of its calls, and the trainer's forward, under
masks that it makes again from the records, gives each recorded logprob to 1e-4. What the framework does with
the answer does not count. The last line is one JSON object; ``--write`` keeps it in
``bench/results/structured.json``. Exit status 1 if a cell is not served and trained, but for those that
``cells.REFUSED`` names.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from cells import CELLS, FEATURES, LACKS, REFUSED, Asked, Cell
from record import RESULTS

from agentlightning.credit.assign import assign
from agentlightning.gateway import AttemptInfo, Gateway, SamplingPolicy, Upstream
from agentlightning.keys import Keys
from agentlightning.recipes import GRPO
from agentlightning.store import SQLiteStore
from agentlightning.types import AttemptStatus, Record, Reward, RolloutStatus
from agl_local.http.thread import EngineThread
from agl_local.network.config import ModelConfig
from agl_local.policy.folder import Policy, init_model, load_policy
from agl_local.text.grammar import GrammarCompiler
from agl_local.training.score import logprob_gap

POLICY = Path(__file__).resolve().parents[2] / "examples" / "quickstart" / "policy"
GAP = 1e-4
PACKAGES = {
    "openai, chat": "openai",
    "openai, responses": "openai",
    "Pydantic AI": "pydantic-ai-slim",
    "OpenAI Agents": "openai-agents",
    "AutoGen": "autogen-ext",
    "LangChain": "langchain-openai",
    "Agent Framework": "agent-framework-openai",
}


def random_policy() -> Policy:
    """Random weights behind the quickstarts' tokenizer and template."""
    tokenizer = load_policy(POLICY).tokenizer
    config = ModelConfig(
        hidden_size=32,
        intermediate_size=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        vocab_size=tokenizer.vocab_size,
        max_positions=2048,
    )
    return Policy(init_model(config, 0, std=0.2).eval(), tokenizer, config)


async def roll_out(store: Any, gateway: Gateway, cell: Cell, sample: int) -> tuple[Record, str]:
    """One attempt that makes the cell's call; its record, and what the framework said of the answer."""
    lease = await store.start_rollout({"cell": sample}, worker_id="bench")
    ids = {"rollout_id": lease.rollout.rollout_id, "attempt_id": lease.attempt.attempt_id}
    key = gateway.open_attempt(AttemptInfo(**ids, fence=lease.attempt.fence, seed=sample))
    said = ""
    try:
        await asyncio.wait_for(cell(Asked(gateway.url, key)), 120)
    except Exception as error:
        said = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
    await store.update_attempt(*ids.values(), AttemptStatus.SUCCEEDED)
    (record,) = await store.records([ids["rollout_id"]])
    record.rollout.status, record.rollout.group_id = RolloutStatus.SUCCEEDED, "group"
    record.rewards = [Reward(value=float(sample))]
    return record, said


def judge(records: list[Record], policy: Policy, wanted: int) -> dict[str, Any]:
    """Whether the calls of ``records`` were served and can be trained."""
    calls = [call for record in records for call in record.calls]
    failed = [call.error for call in calls if call.status != "ok"]
    served = len(calls) >= wanted and not failed
    batch = assign(records, GRPO(temperature=1.0), version=0)
    trained = sum(ledger.trained for ledger in batch.ledgers)
    grammars = GrammarCompiler(policy.tokenizer, policy.config.vocab_size)
    gap = logprob_gap(policy.model, batch.rows, eos_ids=policy.tokenizer.eos_ids, grammars=grammars)
    return {
        "calls": len(calls),
        "constrained": sum(call.grammar is not None for call in calls),
        "served": served,
        "trained": served and trained == len(calls) and gap.tokens > 0 and gap.max < GAP,
        "gap": float(f"{gap.max:.1e}"),
        "failed": failed[:1],
        "left_out": {k: v for ledger in batch.ledgers for k, v in ledger.left_out.items()},
    }


async def measure(folder: Path) -> dict[str, dict[str, Any]]:
    policy = random_policy()
    engine = EngineThread(policy, slots=4, max_len=2048)
    store = SQLiteStore(folder / "store.sqlite")
    gateway = Gateway(store, Keys())
    gateway.add_route(Upstream(url=f"{engine.start()}/v1", model="policy", policy="policy"))
    gateway.policy_sampling("policy", SamplingPolicy())
    await gateway.start()
    found: dict[str, dict[str, Any]] = {}
    for framework, features in CELLS.items():
        for feature in FEATURES:
            if feature not in features:
                continue
            made = [await roll_out(store, gateway, features[feature], sample) for sample in range(2)]
            wanted = 4 if feature == "previous_response_id" else 2
            cell = judge([record for record, _ in made], policy, wanted)
            cell["framework_said"] = next((said for _, said in made if said), "")
            found.setdefault(framework, {})[feature] = cell
            print(framework, "|", feature, "|", json.dumps(cell), file=sys.stderr, flush=True)
    await gateway.stop()
    await store.close()
    engine.close()
    return found


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(Path(folder)))
    every = [(name, feature, cell) for name, row in found.items() for feature, cell in row.items()]
    wrong = [
        (name, feature)
        for name, feature, cell in every
        if not cell["trained"] and (name, feature) not in REFUSED
    ]
    undecided = [
        (name, feature)
        for name in CELLS
        for feature in FEATURES
        if feature not in CELLS[name] and feature not in LACKS.get(name, {})
    ]
    line = {
        "engine": "agl-local",
        "versions": {name: version(package) for name, package in PACKAGES.items()},
        "rows": {
            name: {
                f: "trained" if c["trained"] else "served" if c["served"] else "refused"
                for f, c in row.items()
            }
            for name, row in found.items()
        },
        "lacks": LACKS,
        "refused": {f"{name}, {feature}": why for (name, feature), why in REFUSED.items()},
        "gap_max": max(cell["gap"] for _, _, cell in every),
        "cells": len(every),
        "served": sum(cell["served"] for _, _, cell in every),
        "trained": sum(cell["trained"] for _, _, cell in every),
    }
    if "--write" in sys.argv:
        (RESULTS / "structured.json").write_text(json.dumps(line, indent=1, ensure_ascii=False) + "\n")
    for what in (*wrong, *undecided):
        print("wrong:", what, file=sys.stderr)
    print(json.dumps({name: line[name] for name in ("cells", "served", "trained", "gap_max")}))
    return 1 if wrong or undecided else 0


if __name__ == "__main__":
    sys.exit(main())
