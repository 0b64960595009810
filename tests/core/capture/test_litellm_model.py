"""Which of LiteLLM's calls are made through the openai SDK; ``test_litellm.py`` has LiteLLM make them."""

from __future__ import annotations

from typing import Any

import pytest

from agentlightning.capture.adapter import _through_sdk
from agentlightning.capture.context import AttemptContext, attempt_context

GATEWAY = "http://127.0.0.1:8000/v1"
ATTEMPT = AttemptContext("ro-1", "at-1", sink=lambda span: None, gateway=GATEWAY)


def called(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        (
            (),
            {"model": "hosted_vllm/m", "api_base": GATEWAY},
            ((), {"model": "openai/m", "api_base": GATEWAY}),
        ),
        (("hosted_vllm/m", []), {"base_url": GATEWAY}, (("openai/m", []), {"base_url": GATEWAY})),
    ],
)
def test_a_call_at_the_gateway_goes_through_the_sdk(args: Any, kwargs: Any, expected: Any) -> None:
    words, given = expected
    with attempt_context(ATTEMPT):
        assert _through_sdk(called, None, args, kwargs) == (words, {**given, "api_key": "agl-context"})
        own = {**kwargs, "api_key": "mine"}
        assert _through_sdk(called, None, args, own) == (words, {**given, "api_key": "mine"})


@pytest.mark.parametrize(
    "kwargs",
    [
        {"model": "hosted_vllm/m", "api_base": "http://127.0.0.1:9000/v1"},
        {"model": "hosted_vllm/m"},
        {"model": "openai/m", "api_base": GATEWAY},
        {"model": None, "api_base": GATEWAY},
    ],
)
def test_any_other_call_stays_as_it_is(kwargs: dict[str, Any]) -> None:
    with attempt_context(ATTEMPT):
        assert _through_sdk(called, None, (), kwargs) == ((), kwargs)


def test_outside_an_attempt_nothing_changes() -> None:
    kwargs = {"model": "hosted_vllm/m", "api_base": GATEWAY}
    assert _through_sdk(called, None, (), kwargs) == ((), kwargs)
