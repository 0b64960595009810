"""The gateway's policies before the real engine: guided choice trained exactly, prompts counted by it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

pytest.importorskip("torch")
from agl_gateway.edits.section import RouteSection

from agentlightning.credit.assign import assign
from agentlightning.gateway import AttemptInfo, Gateway, SamplingPolicy, Upstream
from agentlightning.keys import Keys
from agentlightning.recipes import GRPO
from agentlightning.store import SQLiteStore
from agentlightning.types import AttemptStatus, Reward, RolloutStatus
from agl_local.http.thread import EngineThread
from agl_local.training.update import Updater
from plugins.local.tests.driver_fixtures import tiny_policy

VOTES = ["5号", "5号狼人", "弃票"]
ASK = [{"role": "system", "content": "狼人杀"}, {"role": "user", "content": "请投票"}]


@pytest.fixture
async def line(tmp_path: Path) -> AsyncIterator[SimpleNamespace]:
    """Store, gateway and engine in this process; ``ask(attempt, **body)`` calls as an agent would."""
    policy = tiny_policy(std=0.2)
    engine = EngineThread(policy, slots=8, max_len=256)
    store = SQLiteStore(tmp_path / "store.sqlite")
    gateway = Gateway(store, Keys())
    upstream = Upstream(url=f"{engine.start()}/v1", model="policy", policy="policy")
    gateway.add_route(upstream)
    gateway.policy_sampling("policy", SamplingPolicy())
    url = await gateway.start()
    session = aiohttp.ClientSession()

    async def ask(key: str, **body: Any) -> SimpleNamespace:
        headers = {"Authorization": f"Bearer {key}"}
        body = {"model": "policy", "messages": ASK, "max_tokens": 24} | body
        async with session.post(url + "/chat/completions", json=body, headers=headers) as response:
            return SimpleNamespace(status=response.status, raw=await response.read())

    async def attempt(sample: int) -> tuple[Any, str]:
        lease = await store.start_rollout({"q": 1}, worker_id="w")
        rollout, made = lease.rollout, lease.attempt
        ids = {"rollout_id": rollout.rollout_id, "attempt_id": made.attempt_id, "fence": made.fence}
        return lease, gateway.open_attempt(AttemptInfo(**ids, seed=sample))

    yield SimpleNamespace(
        policy=policy,
        engine=engine,
        store=store,
        gateway=gateway,
        upstream=upstream,
        ask=ask,
        attempt=attempt,
    )
    await session.close()
    await gateway.stop()
    await store.close()
    engine.close()


async def test_guided_calls_are_trained_with_the_engines_own_logprobs(line: SimpleNamespace) -> None:
    ways = [{}, {"stream": True}, {"n": 2}, {"temperature": 0.3}]
    rollouts = []
    for sample in range(4):
        lease, key = await line.attempt(sample)
        for way in ways:
            for guide in ({"guided_choice": VOTES}, {"structured_outputs": {"choice": VOTES}}):
                assert (await line.ask(key, **guide, **way)).status == 200
        assert (await line.ask(key)).status == 200, "a free call beside them"
        rollout_id, attempt_id = lease.rollout.rollout_id, lease.attempt.attempt_id
        await line.store.update_attempt(rollout_id, attempt_id, AttemptStatus.SUCCEEDED)
        rollouts.append(rollout_id)
    records = await line.store.records(rollouts)
    for i, record in enumerate(records):
        record.rollout.status, record.rollout.group_id = RolloutStatus.SUCCEEDED, "g"
        record.rewards = [Reward(value=float(i))]
        guided = [call for call in record.calls if call.allowed]
        assert len(guided) == 10 and not any(call.masked for call in record.calls)
        assert all(call.response["content"] in VOTES for call in guided)
        assert (
            len({call.response["content"] for record in records for call in record.calls if call.allowed}) > 1
        )
    batch = assign(records, GRPO(temperature=1.0), version=0)
    assert all(ledger.sums and ledger.trained == 11 for ledger in batch.ledgers)
    assert sum(len(row.allowed) for row in batch.rows) == 40
    eos = line.policy.tokenizer.eos_ids
    metrics = Updater(line.policy.model, GRPO(), eos_ids=eos).update(batch.rows, version=0)
    assert metrics["logprob_gap_tokens"] == metrics["tokens_trained"] > 0
    assert metrics["logprob_gap_max"] <= 1e-4


async def test_the_engine_counts_what_is_then_sent(line: SimpleNamespace) -> None:
    line.gateway.add_route(
        Upstream(
            url=line.upstream.url,
            model="policy",
            policy="policy",
            settings=RouteSection(over_length="truncate", reserve=16),
        )
    )
    _, key = await line.attempt(0)
    chat = [*ASK, *({"role": ("user", "assistant")[i % 2], "content": f"第{i}句话"} for i in range(1, 20))]
    got = await line.ask(key, messages=chat, max_tokens=8)
    assert got.status == 200
    body = json.loads(got.raw)
    prompt = body["prompt_token_ids"]
    assert len(prompt) == body["usage"]["prompt_tokens"] <= 256 - 16
    shown = line.policy.tokenizer.decode(prompt)
    assert "狼人杀" in shown and "请投票" in shown and "第19句话" in shown and "第1句话" not in shown


async def test_tokenize_says_what_the_chat_would_be(line: SimpleNamespace) -> None:
    tokenizer = line.policy.tokenizer
    async with aiohttp.ClientSession() as session:

        async def tokenize(**body: Any) -> tuple[int, dict[str, Any]]:
            async with session.post(f"{line.engine.address}/tokenize", json=body) as response:
                return response.status, await response.json()

        status, got = await tokenize(model="policy", messages=ASK, add_generation_prompt=True)
        want = tokenizer.apply(ASK)
        assert (status, got) == (200, {"count": len(want), "max_model_len": 256, "tokens": want})
        assert (await tokenize(prompt="弃票"))[1]["tokens"] == tokenizer.encode("弃票")
        for bad in (
            {},
            {"messages": []},
            {"messages": "x"},
            {"prompt": 3},
            {"prompt": "x", "temperature": 1},
        ):
            status, got = await tokenize(**bad)
            assert status == 400 and got["error"]["message"]
        assert (await tokenize(model="other", prompt="x"))[0] == 404


@pytest.mark.parametrize(
    "outputs",
    [
        {"grammar": "a"},
        {"regex": "("},
        {"json": {"not": {}}},
        {"choice": ["a"], "regex": "a"},
        {"choice": []},
        {"choice": [1]},
        "choice",
    ],
)
async def test_other_structured_outputs_are_refused(line: SimpleNamespace, outputs: Any) -> None:
    _, key = await line.attempt(0)
    assert (await line.ask(key, structured_outputs=outputs)).status == 400


async def test_answers_that_are_continued_are_one_row_and_images_are_refused(line: SimpleNamespace) -> None:
    openai = pytest.importorskip("openai")
    rollouts = []
    for sample in range(2):
        lease, key = await line.attempt(sample)
        async with openai.AsyncOpenAI(base_url=line.gateway.url, api_key=key) as client:
            before = None
            for turn in range(3):
                answer = await client.responses.create(
                    model="policy",
                    input=f"第{turn}夜 请投票",
                    instructions="狼人杀",
                    previous_response_id=before,
                    max_output_tokens=24,
                    extra_body={"guided_choice": VOTES},
                )
                assert answer.output_text in VOTES
                before = answer.id
            image = [{"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}]
            with pytest.raises(openai.BadRequestError, match="reads text only"):
                await client.responses.create(model="policy", input=[{"role": "user", "content": image}])
        rollout_id, attempt_id = lease.rollout.rollout_id, lease.attempt.attempt_id
        await line.store.update_attempt(rollout_id, attempt_id, AttemptStatus.SUCCEEDED)
        rollouts.append(rollout_id)
    records = await line.store.records(rollouts)
    for i, record in enumerate(records):
        record.rollout.status, record.rollout.group_id = RolloutStatus.SUCCEEDED, "g"
        record.rewards = [Reward(value=float(i))]
    batch = assign(records, GRPO(temperature=1.0), version=0)
    assert [(ledger.trained, ledger.left_out) for ledger in batch.ledgers] == [(3, {"error": 1})] * 2
    assert [sum(segment.trained for segment in row.segments) for row in batch.rows] == [3, 3]
    eos = line.policy.tokenizer.eos_ids
    metrics = Updater(line.policy.model, GRPO(), eos_ids=eos).update(batch.rows, version=0)
    assert metrics["logprob_gap_tokens"] == metrics["tokens_trained"] > 0
    assert metrics["logprob_gap_max"] <= 1e-4
