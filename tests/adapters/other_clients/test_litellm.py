"""litellm: its openai-compatible models go over the openai SDK and are exact; its own HTTP is recorded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks the network when imported
pytest.importorskip("litellm")

import litellm
from contract.through_gateway import leased_attempt

from agentlightning import capture
from agentlightning.capture.context import tagged
from agentlightning.keys import CONTEXT_KEY
from agentlightning.testing import ScriptedModelServer, tool_call

MESSAGES = [{"role": "user", "content": "hi"}]
TOOLS = [
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
]

pytestmark = pytest.mark.filterwarnings("ignore")  # litellm's own, of pydantic


@pytest.fixture(autouse=True)
def capturing() -> Iterator[None]:
    capture.install()
    yield
    capture.uninstall()


async def test_openai_compatible_models_are_exact(tmp_path: Path) -> None:
    async with ScriptedModelServer() as engine, leased_attempt(engine, tmp_path) as leased:
        here: dict[str, Any] = {"api_base": leased.context.gateway, "api_key": CONTEXT_KEY}
        with leased.active(), tagged(agent="solver"):
            whole = await litellm.acompletion("openai/policy", MESSAGES, **here)
            stream = await litellm.acompletion("openai/policy", MESSAGES, stream=True, **here)
            said = [chunk.choices[0].delta.content or "" async for chunk in stream]
            engine.reply = lambda body: tool_call("add", '{"a":  1}')
            called = await litellm.acompletion("openai/policy", MESSAGES, tools=TOOLS, **here)
        record, verdicts = await leased.finish()
    assert whole.choices[0].message.content == "".join(said) == "ok"
    assert called.choices[0].message.tool_calls[0].function.arguments == '{"a":  1}'
    assert [verdict.kind for verdict in verdicts] == ["exact"] * 3, verdicts
    assert {call.tags["agent"] for call in record.calls} == {"solver"}


async def test_models_over_its_own_http_are_recorded(tmp_path: Path) -> None:
    async with ScriptedModelServer() as engine, leased_attempt(engine, tmp_path) as leased:
        base = (leased.context.gateway or "").removesuffix("/v1")
        with leased.active():
            answer = await litellm.acompletion(
                "anthropic/policy", MESSAGES, api_base=base, api_key=leased.context.key, max_tokens=20
            )
        record, verdicts = await leased.finish()
    assert answer.choices[0].message.content == "ok"
    assert [verdict.kind for verdict in verdicts] == ["gateway-only"]
    assert record.calls[0].edited == {"api": "messages"} and record.calls[0].has_ids
