"""Reward functions that fail.

A rubric of verifiers writes the error of a reward function into the log and goes on with 0.0. A missing
reward is not zero, so the errors are collected here, and the attempt fails.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_errors: ContextVar[list[str] | None] = ContextVar("agl_verifiers_errors", default=None)


@contextmanager
def scoring_errors() -> Iterator[list[str]]:
    """Collect the errors of reward functions that are called within, in tasks begun within too."""
    found: list[str] = []
    token = _errors.set(found)
    try:
        yield found
    finally:
        _errors.reset(token)


def watch(environment: Any) -> None:
    """Make the reward functions of an environment, and of those inside it, report their errors."""
    for inner in getattr(environment, "envs", ()):
        watch(inner)
    _watch_rubric(environment.rubric)


def _watch_rubric(rubric: Any) -> None:
    for inner in getattr(rubric, "rubrics", ()):
        _watch_rubric(inner)
    rubric.funcs[:] = [_reporting(function) for function in rubric.funcs]


def _reporting(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function; what it raises is noted and raised on."""
    if hasattr(function, "reports_errors"):
        return function

    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        try:
            value = function(*args, **kwargs)
            return await value if inspect.isawaitable(value) else value
        except Exception as error:
            if (found := _errors.get()) is not None:
                found.append(f"{function.__name__}: {type(error).__name__}: {error}")
            raise

    call.reports_errors = True  # type: ignore[attr-defined]
    return call
