"""Read back what emitters wrote, and ``@reward``, by names of v0.3."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from agentlightning import semconv
from agentlightning.capture.context import current_attempt
from agentlightning.capture.delivery import COUNTS
from agentlightning.capture.emit import BODY, DIMENSIONS, emit_reward, get_reward_value
from agentlightning.types import Span

Function = TypeVar("Function", bound=Callable[..., Any])


def is_reward_span(span: Span) -> bool:
    """Whether the span carries a reward."""
    return get_reward_value(span) is not None


def get_rewards_from_span(span: Span) -> list[dict[str, Any]]:
    """Return the rewards of a span, each with ``name`` and ``value``; the trained one comes first."""
    value = get_reward_value(span)
    if value is None:
        return []
    dimensions = span.attributes.get(DIMENSIONS)
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
