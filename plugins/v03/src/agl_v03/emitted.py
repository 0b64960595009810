"""Emitters by names of 0.x, ``@reward`` and ``emit_tool_call``, and what reads back what was emitted."""

from __future__ import annotations

import asyncio
import functools
import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from agentlightning import semconv
from agentlightning.capture.context import current_attempt, tagged
from agentlightning.capture.delivery import COUNTS
from agentlightning.capture.emit import BODY, emit_reward, emit_span, get_reward_value
from agentlightning.capture.records import error_text
from agentlightning.proxies import go_direct
from agentlightning.types import LLM, Span, UsageError

Function = TypeVar("Function", bound=Callable[..., Any])


def emit_message(
    message: str, *, attributes: Mapping[str, Any] | None = None, propagate: bool = True
) -> Span:
    """Record a line of text."""
    return emit_span(semconv.MESSAGE_SPAN, {BODY: message}, attributes, propagate=propagate)


def emit_exception(
    exception: BaseException, *, attributes: Mapping[str, Any] | None = None, propagate: bool = True
) -> Span:
    """Record an exception that the agent handled."""
    kind, message = type(exception).__qualname__, error_text(exception)
    about = {
        semconv.EXCEPTION_TYPE: kind,
        semconv.EXCEPTION_MESSAGE: message,
        "exception.stacktrace": "".join(traceback.format_exception(exception)),
    }
    error = f"{kind}: {message}"
    return emit_span(semconv.EXCEPTION_SPAN, about, attributes, error=error, propagate=propagate)


def is_reward_span(span: Span) -> bool:
    """Whether the span carries a reward."""
    return get_reward_value(span) is not None


def get_rewards_from_span(span: Span) -> list[dict[str, Any]]:
    """Return the rewards of a span, each with ``name`` and ``value``; the trained one comes first."""
    value = get_reward_value(span)
    if value is None:
        return []
    dimensions = span.attributes.get(semconv.REWARD_DIMENSIONS)
    if not isinstance(dimensions, dict):
        return [{"name": span.attributes.get(semconv.REWARD_NAME, "reward"), "value": value}]
    pairs = sorted(dimensions.items(), key=lambda pair: pair[1] != value)
    return [{"name": name, "value": number} for name, number in pairs]


def get_message_value(span: Span) -> str | None:
    """Return the text of a message span; ``None`` for any other span."""
    return span.attributes.get(BODY) if span.name == semconv.MESSAGE_SPAN else None


def get_object_value(span: Span) -> Any:
    """Return the value of an object span; ``None`` for any other span."""
    return span.attributes.get(BODY) if span.name == semconv.OBJECT_SPAN else None


def reward(function: Function) -> Function:
    """Decorate a function, plain or a coroutine function, that returns a reward: each call in a rollout emits
    it. Elsewhere the function only returns it, and the call is counted.
    """

    def emit(value: Any) -> Any:
        if isinstance(value, int | float):
            if current_attempt() is None:
                COUNTS.add("emit-outside-attempt")
            else:
                emit_reward(float(value))
        return value

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return emit(function(*args, **kwargs))

    @functools.wraps(function)
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        return emit(await function(*args, **kwargs))

    return call_async if inspect.iscoroutinefunction(function) else call  # type: ignore[return-value]


def emit_tool_call(
    *,
    messages: Sequence[Mapping[str, Any]],
    model: str | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
    context: Mapping[str, Any] | None = None,
    **request: Any,
) -> Any:
    """Ask the current attempt's model endpoint and return its answer, the openai SDK's ``ChatCompletion``.

    ``model``: the name to ask for; default: the endpoint's. ``context``: tags of the recorded call, e.g.
    ``{"phase": "search"}``. ``request``: further fields, which outrank the endpoint's
    ``sampling_parameters``. On a running event loop, return an awaitable, because a request that blocks the
    loop might wait for itself: ``await agl.emit_tool_call(…)``. Raise UsageError outside an attempt, and
    without an endpoint.
    """
    attempt = current_attempt()
    if attempt is None:
        raise UsageError(
            "emit_tool_call() was called outside an attempt, where there is no model to ask: call it inside "
            "an agent that a runner runs"
        )
    llm = attempt.llm
    tags = {str(key): str(value) for key, value in (context or {}).items()}
    body = {
        **{k: v for k, v in llm.sampling_parameters.items() if k != "return_token_ids"},
        **request,
        "model": model or llm.model,
        "messages": list(messages),
        **({"tools": list(tools)} if tools else {}),
    }
    answer = _ask(llm, body, tags)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(answer)
    return answer


async def _ask(llm: LLM, body: dict[str, Any], tags: dict[str, str]) -> Any:
    from openai import AsyncOpenAI

    go_direct()
    with tagged(**tags):
        async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none") as client:
            return await client.chat.completions.create(**body)
