"""An agent that posts with plain HTTP: recorded under its attempt's key, though nobody confirms its ids."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx")

import httpx
from agl_testing import ScriptedModelServer
from agl_testing.contract.through_gateway import leased_attempt

BODIES: dict[str, dict[str, Any]] = {
    "/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/responses": {"input": "hi"},
    "/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 20},
}


@pytest.mark.parametrize("stream", [False, True])
async def test_it_is_recorded_and_attributed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    async with ScriptedModelServer() as engine, leased_attempt(engine, tmp_path) as leased:
        monkeypatch.setenv("OPENAI_BASE_URL", leased.context.gateway or "")
        monkeypatch.setenv("OPENAI_API_KEY", leased.context.key or "")

        def agent() -> list[str]:
            key = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
            with httpx.Client(base_url=os.environ["OPENAI_BASE_URL"], headers=key) as client:
                asked = {path: {"model": "m", "stream": stream, **body} for path, body in BODIES.items()}
                return [client.post(path, json=body).raise_for_status().text for path, body in asked.items()]

        answers = await asyncio.to_thread(agent)
        record, verdicts = await leased.finish()
    assert all("ok" in answer for answer in answers)
    assert [verdict.kind for verdict in verdicts] == ["gateway-only"] * 3
    assert [call.edited.get("api") for call in record.calls] == [None, "responses", "messages"]
    assert {call.attempt_id for call in record.calls} == {leased.context.attempt_id}
    assert all(call.has_ids for call in record.calls)
    assert [exchange.body["messages"] for exchange in engine.log] == [BODIES["/messages"]["messages"]] * 3


async def test_a_traceparent_of_its_own_joins_its_retries(tmp_path: Path) -> None:
    async with ScriptedModelServer() as engine, leased_attempt(engine, tmp_path) as leased:
        headers = {
            "Authorization": f"Bearer {leased.context.key}",
            "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        }
        async with httpx.AsyncClient(base_url=leased.context.gateway, headers=headers) as client:
            for retry in range(2):
                again = {"x-stainless-retry-count": str(retry)}
                await client.post("/responses", json={"model": "m", **BODIES["/responses"]}, headers=again)
        record, _ = await leased.finish()
    assert [(call.span_id, call.retry) for call in record.calls] == [
        ("b7ad6b7169203331", 0),
        ("b7ad6b7169203331", 1),
    ]
