"""Two engine processes serve one policy of a training run: both get every version, every call is exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from e2e.test_line import Watch, trainer
from openai import AsyncOpenAI

import agentlightning as agl
import agl_local.driver
import agl_local.plugin
from agentlightning import GRPO, LLM
from agentlightning.credit.verdicts import verdicts
from agentlightning.plugins.manager import build
from agentlightning.store import SQLiteStore
from agl_local.generation.engine import PauseMode
from agl_local.generation.request import EngineError
from agl_local.http.engines import Engines
from agl_local.option_values import OptionError
from agl_local.options import read_options
from agl_local.policy.shared import Handover, SharedWeights
from agl_local.policy.weights import StateError
from plugins.local.tests.driver_fixtures import saved_policy

TASKS = [3, 5, 8, 13]


async def talk(task: int, llm: LLM) -> float:
    """Two turns, one of them streamed."""
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        asked: dict[str, Any] = {"model": llm.model, "max_tokens": 4}
        turns: list[Any] = [{"role": "user", "content": f"{task} coins"}]
        with agl.tagged(agent="one"):
            first = await client.chat.completions.create(messages=turns, **asked)
            said = first.choices[0].message.content or ""
            turns += [{"role": "assistant", "content": said}, {"role": "user", "content": "and?"}]
            stream = await client.chat.completions.create(messages=turns, stream=True, **asked)
            said += "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
    return float(sum(map(ord, said)) % 5)


@pytest.mark.slow
@pytest.mark.plugins
async def test_two_engines_serve_one_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    close = Engines.close

    def told(self: Engines) -> None:
        """What each engine did, before it ends."""
        if not seen:
            seen.extend(one.metrics() | {"version": one.version()} for one in self.each)  # type: ignore[attr-defined]
        close(self)

    monkeypatch.setattr(Engines, "close", told)
    watch = Watch()
    made = trainer(
        tmp_path / "runs",
        watch,
        run="r",
        adapters=[],
        algorithm=GRPO(group_size=4),
        policy=saved_policy(tmp_path / "policy", 1),
        options={"threads": 1, "engines": 2, "max_len": 256, "lr": 1e-2},
        steps=3,
        batch_size=2,
        plugins=build([agl_local.plugin, watch], discover=False),
    )
    await made.afit(talk, TASKS)
    assert [r.policy_version for r in watch.reports] == [1, 2, 3]
    assert [one["version"] for one in seen] == [3, 3]
    assert all(one["requests"] > 0 for one in seen), seen
    assert max(r.metrics["logprob_gap_max"] for r in watch.reports) < 1e-4
    for step, batch in enumerate(watch.batches):
        assert {v for row in batch.rows for v in row.versions if v >= 0} == {step}
    store = SQLiteStore(tmp_path / "runs" / "r" / "store.sqlite")
    rollouts = await store.query_rollouts(run_id="r", mode="train")
    records = await store.records([r.rollout_id for r in rollouts])
    await store.close()
    found = [v for record in records for v in verdicts(record).values()]
    assert len(found) == 3 * 8 * 2 == watch.calls
    assert {v.kind for v in found} == {"exact"}, {v.reason for v in found}


def test_options_are_checked() -> None:
    with pytest.raises(OptionError, match="engines must be at least 1, got 0"):
        read_options({"engines": 0})
    with pytest.raises(OptionError, match="engines must be 1 with engine: thread, got 2"):
        read_options({"engines": 2, "engine": "thread"})


class Fake:
    """An engine that does as it is told."""

    def __init__(self, name: str, serves: int | None = None, fails: bool = False) -> None:
        self.address, self.serves, self.fails, self.did = f"http://{name}", serves, fails, [""]

    def start(self) -> str:
        self.did.append("start")
        if self.fails:
            raise EngineError(f"{self.address} does not start")
        return self.address

    def update(self, handover: Handover, version: int, mode: PauseMode = "drain") -> int:
        return version if self.serves is None else self.serves

    def close(self) -> None:
        self.did.append("close")


def test_one_that_does_not_start_is_said_and_all_are_closed() -> None:
    each = [Fake("a"), Fake("b", fails=True), Fake("c")]
    engines = Engines(each, SharedWeights())
    with pytest.raises(EngineError, match="http://b does not start"):
        engines.start()
    engines.close()
    assert [one.did[1:] for one in each] == [["start", "close"]] * 3
    assert engines.llm("m") == LLM(
        endpoint="http://a/v1",
        replicas=["http://b/v1", "http://c/v1"],
        model="m",
        logprobs_mode="processed",
    )


def test_versions_must_agree() -> None:
    engines = Engines([Fake("a"), Fake("b", serves=3)], SharedWeights())
    with pytest.raises(EngineError, match=r"serve different versions: \[4, 3\]"):
        engines.update({"w": torch.zeros(2)}, 4)
    with pytest.raises(StateError, match="start the engines anew"):
        engines.update({"w": torch.zeros(2)}, 5)
    engines.close()
