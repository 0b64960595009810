"""Capture for the length of a session with a tracer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from agentlightning.capture.installation import capturing


@contextmanager
def capturing_for(tracer: Any, instrumentors: Sequence[Any]) -> Iterator[None]:
    """Capture within the block, unless ``tracer.captures`` is false. The tracer, if there is one, is told of
    the session's begin and end.
    """
    with ExitStack() as session:
        if getattr(tracer, "captures", True):
            session.enter_context(capturing(instrumentors))
        if tracer is not None:
            tracer.init()
            session.callback(tracer.teardown)
            tracer.init_worker(0)
            session.callback(tracer.teardown_worker, 0)
        yield
