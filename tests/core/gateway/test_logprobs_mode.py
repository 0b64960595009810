"""What a call's logprobs are of, as its route declares it, and whether they show all that shaped it."""

from __future__ import annotations

from typing import Any

import pytest

from agentlightning.gateway import SamplingPolicy, Upstream

TOOLS = [{"type": "function", "function": {"name": "vote", "parameters": {"type": "object"}}}]


@pytest.fixture
def run(world: Any) -> Any:
    world.gateway.policy_sampling("default", SamplingPolicy())
    return world


@pytest.mark.parametrize(
    ("extra", "masked", "mode"),
    [
        ({}, None, "processed"),
        ({"temperature": 0.3}, None, "processed"),  # overruled
        ({"response_format": {"type": "json_object"}}, "off-policy-sampling", "processed"),
        ({"tools": TOOLS, "tool_choice": "required"}, "off-policy-sampling", "processed"),
        ({"structured_outputs": {"choice": ["yes"]}}, "off-policy-sampling", "processed"),
        ({"logit_bias": {"5": 1}}, "off-policy-sampling", "processed"),
        ({"min_tokens": 3}, "off-policy-sampling", "processed"),
        ({"use_beam_search": True}, "off-policy-sampling", None),
        ({"ignore_eos": True, "logit_bias": {"5": 1}}, "off-policy-sampling", None),
    ],
)
async def test_it_is_recorded(run: Any, extra: dict[str, Any], masked: str | None, mode: str | None) -> None:
    run.gateway.add_route(Upstream(url=run.engine.url, model="tiny", logprobs_mode="processed"))
    assert (await run.post(extra)).status == 200
    (call,) = run.store.calls
    assert (call.masked, call.logprobs_mode) == (masked, mode)


@pytest.mark.parametrize("mode", ["raw", None])
async def test_other_routes(run: Any, mode: Any) -> None:
    run.gateway.add_route(Upstream(url=run.engine.url, model="tiny", logprobs_mode=mode))
    assert (await run.post({})).status == 200
    assert run.store.calls[0].logprobs_mode == mode


def test_another_word_is_refused() -> None:
    with pytest.raises(ValueError, match="logprobs_mode is 'sampled'; use one of processed, raw"):
        Upstream(url="http://127.0.0.1:1/v1", model="m", logprobs_mode="sampled")  # type: ignore[arg-type]
