"""AgentOps' real client beside capture: one model call is one triplet, and its rewards are rewards."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("agentops")

SCRIPT = """
import asyncio, json, os, sys
import agentops
agentops.init(  # loopback's discard port: nothing leaves this machine
    api_key="00000000-0000-0000-0000-000000000000", endpoint="http://127.0.0.1:9",
    exporter_endpoint="http://127.0.0.1:9/v1/traces", auto_start_session=False, fail_safe=True,
)
import openai
from agentops.sdk.decorators import operation
from agentlightning import LLM, TracerTraceToTriplet
from agentlightning.capture.installation import capturing
from agentlightning.credit import assign
from agentlightning.gateway import Gateway, Upstream
from agentlightning.keys import Keys
from agentlightning.runner.runner import Runner
from agentlightning.store import SQLiteStore
from agl_testing import ScriptedModelServer
from agentlightning.types import Recipe

CALL = "openai.chat.completion"
stream, n = json.loads(sys.argv[1])

@operation
def judge():
    return {"type": "reward", "value": 0.75}

async def agent(task, llm: LLM):
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as client:
        answer = await client.chat.completions.create(
            model="policy", messages=[{"role": "user", "content": "hi"}], n=n, stream=stream)
        if stream:
            async for _ in answer:
                pass
    judge()

async def main():
    store = SQLiteStore(":memory:")
    gateway = Gateway(store, Keys())
    async with ScriptedModelServer(lambda body: ["ok"] * n if n > 1 else "ok") as engine:
        gateway.add_route(Upstream(policy="policy", url=engine.url, model=engine.model, version=lambda: 0))
        await gateway.start()
        given = await store.add_resources({"llm": LLM(endpoint=gateway.url, model="policy")})
        with capturing([]):
            rollout = await Runner(agent, store, attempt_keys=gateway).step(1, given.resources_id)
        spans = await store.query_spans(rollout.rollout_id)
        [record] = await store.records([rollout.rollout_id])
        batch = assign([record], Recipe(name="t", baseline="none", scale="none", merge=False))
        triplets = TracerTraceToTriplet().adapt(spans)
        print(json.dumps({
            "status": [rollout.status, rollout.reason],
            "asked": len(engine.log),
            "theirs": sum(s.name == CALL and "agl.choice" not in s.attributes for s in spans),
            "triplets": [[len(t.prompt_ids) > 0, len(t.response_ids) > 0] for t in triplets],
            "rewards": [[r.value, r.final] for r in record.rewards],
            "advantages": [row.segments[0].advantage for row in batch.rows],
        }))
        await gateway.stop()
    await store.close()

asyncio.run(main())
sys.stdout.flush()
os._exit(0)  # AgentOps would still try to reach its server
"""


@pytest.mark.parametrize(("stream", "n"), [(False, 1), (True, 1), (False, 2)])
async def test_one_call_is_one_triplet_and_a_reward_is_read(stream: bool, n: int) -> None:
    found = await asyncio.to_thread(run, stream, n)
    assert found["status"] == ["succeeded", None] and found["asked"] == 1
    assert found["theirs"] == 1  # AgentOps does instrument the call: without, this test shows nothing
    assert found["triplets"] == [[True, True]] * n
    assert found["rewards"] == [[0.75, True]] and found["advantages"] == [0.75] * n


def run(stream: bool, n: int) -> dict[str, Any]:
    """The script's last line, in a process of its own: AgentOps sets the process's tracer provider."""
    given = [sys.executable, "-c", SCRIPT, json.dumps([stream, n])]
    done = subprocess.run(
        given,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "AGENTOPS_LOG_LEVEL": "CRITICAL"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer
