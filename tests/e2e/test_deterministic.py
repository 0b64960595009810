"""Deterministic mode: the digests of a run do not depend on timing, concurrency, or where it broke off."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from inspect import iscoroutinefunction
from itertools import count
from pathlib import Path
from random import SystemRandom
from typing import Any

import pytest
from e2e.test_line import POLICY, Watch
from marks import sampled
from openai import AsyncOpenAI

import agentlightning as agl
import agl_cluster.plugin
import agl_local.plugin
import agl_local.policy.checkpoint
from agentlightning import GRPO, LLM, Rollout, Trainer
from agentlightning.algorithms import context, queue, rl
from agentlightning.algorithms.schedule import InOrder
from agentlightning.plugins.manager import build
from agentlightning.store import SQLiteStore
from agentlightning.trackers.files import FilesTracker
from agentlightning.types import UsageError
from agl_audit.locations import RunLocation
from agl_audit.run import run_in
from agl_audit.verification.verify import verify
from agl_local.driver import LocalDriver

OPTIONS = {
    "threads": 1,
    "engine": "thread",
    "max_num_seqs": 16,
    "max_len": 256,
    "deterministic": True,
    "lr": 1e-3,
}
chance = SystemRandom()
"""What no seed reaches: it stands for the timing of a real agent."""


def trainer(folder: Path, watch: Watch, **options: Any) -> Trainer:
    save_every = options.pop("save_every", 2)
    defaults: dict[str, Any] = dict(
        algorithm=GRPO(group_size=4),
        policy=POLICY,
        options={**OPTIONS, "save_every": save_every},
        steps=2,
        batch_size=1,
        output=folder,
        run="r",
        trackers=["files"],
        plugins=build([agl_cluster.plugin, agl_local.plugin, watch], discover=False),
    )
    return Trainer(**{**defaults, **options})


def digests(watch: Watch) -> dict[int, tuple[str | None, str | None]]:
    return {r.step: (r.rows_digest, r.params_digest) for r in watch.reports}


async def ask(client: AsyncOpenAI, llm: LLM, text: str, **more: Any) -> str:
    """One question. Its answer takes as long as it takes."""
    for _ in range(chance.randrange(20)):
        await asyncio.sleep(0)
    answer = await client.chat.completions.create(
        model=llm.model, messages=[{"role": "user", "content": text}], max_tokens=4, **more
    )
    if not more.get("stream"):
        return "/".join(choice.message.content or "" for choice in answer.choices)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in answer if chunk.choices])


def parallel(store: SQLiteStore) -> Callable[..., Any]:
    """An agent whose calls come at once, and whose worker may be gone half-way."""

    async def agent(task: int, llm: LLM, rollout: Rollout) -> float:
        """Three questions at once, one of them for two answers and one streamed; two agents beside them; then
        the same question twice.
        """
        async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:

            async def named(name: str, text: str) -> str:
                with agl.tagged(agent=name):
                    first = await ask(client, llm, text)
                    return await ask(client, llm, f"{text} {first}")

            work: list[Callable[[], Any]] = [
                lambda: ask(client, llm, f"{task} coins"),
                lambda: ask(client, llm, f"{task} apples", n=2),
                lambda: ask(client, llm, f"{task} pears", stream=True),
                lambda: named("one", f"{task} balls"),
                lambda: named("two", f"{task} balls"),
            ]
            chance.shuffle(work)
            said = sorted(await asyncio.gather(*(one() for one in work)))
            await perhaps_lost(store, rollout)
            said += [await ask(client, llm, " ".join(said)[:80]) for _ in range(2)]
        await perhaps_lost(store, rollout)
        return float(sum(map(len, said)) % 7)

    return agent


async def perhaps_lost(store: SQLiteStore, rollout: Rollout) -> None:
    """The worker is taken for dead: the rollout goes to another."""
    if chance.random() < 0.15 or (rollout.sample == 0 and rollout.attempts == 1):
        await store.requeue_rollouts([rollout.rollout_id], reason="unresponsive: for this test")
        raise ConnectionAbortedError


@pytest.mark.slow
async def test_the_timing_of_parallel_calls_and_attempts_cut_short_change_nothing(tmp_path: Path) -> None:
    found, attempts = [], 0
    for n_runners in (1, 16):
        watch, store = Watch(), SQLiteStore(tmp_path / f"{n_runners}.sqlite")
        made = trainer(tmp_path / str(n_runners), watch, concurrency=n_runners, batch_size=2, store=store)
        await made.afit(parallel(store), [3, 5, 8])
        found.append(digests(watch))
        assert all(r.metrics["optimizer_steps"] and r.metrics["rollouts"] == 8 for r in watch.reports)
        assert all(not r.metrics["rollouts_failed"] for r in watch.reports)
        attempts += sum(rollout.attempts for rollout in await store.query_rollouts(run_id="r"))
        await store.close()
    assert found[0] == found[1] and len(found[0]) == 2
    assert attempts > 32  # some were cut short


# --------------------------------------------------------------------------------- broken off, anywhere
class Crash(BaseException):
    """Stands for whatever ends a process: nothing catches it."""


def breaking(owner: Any, name: str, when: str, nth: int, patch: pytest.MonkeyPatch) -> None:
    """Let the ``nth`` call of ``owner.name`` end the process, ``before`` or ``after`` it is done."""
    original, calls = getattr(owner, name), count(1)

    def trip(this: str, number: int) -> None:
        if this == when and number == nth:
            raise Crash(f"{when} {name}")

    def plain(*args: Any, **kwargs: Any) -> Any:
        number = next(calls)
        trip("before", number)
        result = original(*args, **kwargs)
        trip("after", number)
        return result

    async def waiting(*args: Any, **kwargs: Any) -> Any:
        number = next(calls)
        trip("before", number)
        result = await original(*args, **kwargs)
        trip("after", number)
        return result

    patch.setattr(owner, name, waiting if iscoroutinefunction(original) else plain)


async def two_turns(task: int, llm: LLM) -> float:
    """An agent that is quick."""
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        said = await ask(client, llm, f"{task} coins")
        said += await ask(client, llm, f"{task} coins {said}")
    return float(len(said) % 5)


async def life(folder: Path, *, resume: bool = False, **options: Any) -> tuple[Watch, dict[str, Any]]:
    """One life of the run ``r``: three steps, a checkpoint after the second, evaluations between."""
    watch = Watch()
    made = trainer(folder, watch, **{"steps": 3, "evaluate_every": 1, **options}, resume=resume)
    return watch, await made.afit(two_turns, [3, 5, 8, 9], [1, 2])


async def whole(folder: Path) -> dict[str, Any]:
    """What a run is in the end, wherever it lies and however it came about. (Calls that earlier attempts made
    are in the ledger as well.)
    """
    run = folder / "r"
    lines = {
        name: [json.loads(line) for line in (run / f"{name}.jsonl").read_text().splitlines()]
        for name in ("metrics", "evaluations")
    }
    store = SQLiteStore(run / "store.sqlite")
    steps = await store.query_steps("r")
    fingerprints = [await store.query_fingerprints("r", step) for step in range(3)]
    checked = await verify(await run_in(store, RunLocation(str(run / "store.sqlite"), run, "r")))
    (info,) = await store.query_runs()
    await store.close()
    assert not checked.differences and checked.rollouts == 12
    assert info["summary"] == json.loads((run / "summary.json").read_text(), parse_constant=float)
    return {
        "digests": [(s.step, s.rows_digest, s.params_digest) for s in steps],
        "lines": [(one["step"], one["rows_digest"], one["params_digest"]) for one in lines["metrics"]],
        "fingerprints": [
            sorted((s.rollout_id, s.tokens_digest, s.weights_digest) for s in of) for of in fingerprints
        ],
        "evaluations": sorted((one["name"], one["rewards"]) for one in lines["evaluations"]),
        "totals": {
            k: v for k, v in info["summary"]["totals"].items() if k not in ("calls", "calls_left_behind")
        },
        "rewards": [info["summary"][f"reward_{when}"] for when in ("before", "after")],
    }


POINTS = [
    (queue, "enqueue", "after", 2),
    (InOrder, "wait", "after", 1),
    (rl, "add_rows", "after", 3),
    (LocalDriver, "_update", "before", 3),
    (LocalDriver, "_update", "after", 3),
    (LocalDriver, "_publish", "after", 2),
    (SQLiteStore, "add_step", "before", 2),
    (SQLiteStore, "add_step", "after", 3),
    (FilesTracker, "step", "before", 3),
    (agl_local.policy.checkpoint, "save_shared", "after", 2),
    (agl_local.policy.checkpoint, "write_folder", "after", 1),
    (rl.RLJob, "evaluate", "after", 2),
    (context, "evaluate", "after", 4),
    (SQLiteStore, "update_run", "after", 3),
    (LocalDriver, "export", "before", 1),
]
"""Where a run is broken off: what is called, before or after it is done, at which call of it."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("undisturbed")

    async def run() -> dict[str, Any]:
        await life(folder)
        return await whole(folder)

    return asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "when", "nth"), sampled(POINTS, 3, 10), ids=lambda v: getattr(v, "__name__", str(v))
)
async def test_a_run_broken_off_anywhere_becomes_the_run_it_was_to_be(
    owner: Any, name: str, when: str, nth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    undisturbed: dict[str, Any],
) -> None:  # fmt: skip
    with monkeypatch.context() as patch:
        breaking(owner, name, when, nth, patch)
        with pytest.raises(Crash):
            await life(tmp_path)
    await life(tmp_path, resume=True, concurrency=1)
    assert await whole(tmp_path) == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("file", sampled(["trainer.pt", "manifest.json", "policy/model.safetensors"], 1))
async def test_a_damaged_checkpoint_is_refused_and_the_one_before_gone_on_from(
    file: str, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    await life(tmp_path, save_every=1)
    last = tmp_path / "r" / "checkpoints" / "step-000003"
    (last / file).write_bytes((last / file).read_bytes()[:-100])
    with pytest.raises(UsageError, match=r"step-000003.*damaged.*[\s\S]*remove the folder"):
        await life(tmp_path, resume=True)
    shutil.move(tmp_path / "r", tmp_path / "elsewhere" / "r")  # a run goes on wherever its folder lies
    shutil.rmtree(tmp_path / "elsewhere" / "r" / "checkpoints" / "step-000003")
    watch, _ = await life(tmp_path / "elsewhere", resume=True, save_every=1, concurrency=3)
    assert [report.step for report in watch.reports] == [2]
    assert await whole(tmp_path / "elsewhere") == undisturbed
