"""Record agents' turns and their tool calls as spans, current while their code runs.

The block of ``async with agent.iter()`` drives a run's steps. The block is the user's, so that no span is
made current in it. The framework's own hooks wrap the work instead: a :class:`Turn` is one of the run's
capabilities. Invariant: it changes no request, and no run outside an attempt has one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from opentelemetry import context as otel, trace
from pydantic import ValidationError
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import (
    ApprovalRequired,
    CallDeferred,
    ModelRetry,
    SkipToolExecution,
)
from pydantic_ai.messages import ToolReturn, ToolReturnPart

from agentlightning.capture.context import current_attempt
from agentlightning.capture.spans import AgentSpan

Wrapped = Callable[..., Any]
Handler = Callable[[Any], Any]


class Turn(AbstractCapability[Any]):  # type: ignore[misc] # untyped where it is not installed
    """Makes one run's span current around each model request and each tool, and nowhere else."""

    _safe_at_runtime = True  # as the framework's own instrumentation says it: durable agents refuse others

    def __init__(self, span: AgentSpan) -> None:
        super().__init__()
        self.span = span

    async def wrap_model_request(self, ctx: Any, *, request_context: Any, handler: Handler) -> Any:
        """Run ``handler`` within the span: it sends the request, and reads a stream to its end."""
        with self.span.activate():
            return await handler(request_context)

    async def wrap_tool_validate(
        self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Handler
    ) -> Any:
        """Record a span for a call whose arguments are refused: it reaches no tool."""
        try:
            return await handler(args)
        except (ValidationError, ModelRetry) as error:
            with self.span.activate():
                refused = tool_span(call).start()
                refused.set_error(error)
                refused.end()
            raise

    async def wrap_tool_execute(
        self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Handler
    ) -> Any:
        """Record a span for the call. The result of a failed call is the text that the model gets. A deferred
        call has no result yet, and a call that a hook answers has the hook's result: neither failed.
        """
        with self.span.activate(), tool_span(call).run() as span:
            try:
                result = await handler(args)
            except (ApprovalRequired, CallDeferred, SkipToolExecution) as error:
                instead: Exception = error
                if isinstance(error, SkipToolExecution):
                    span.set_result(result_text(call, error.result))
                else:
                    span.set_interrupted()
            except Exception as error:
                span.set_result(error_for_model(error), failed=True)
                raise
            else:
                span.set_result(result_text(call, result))
                return result
        raise instead


def iterate(wrapped: Wrapped, agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``Agent.iter``, which every way of running an agent calls, once the agent's name is known."""
    if current_attempt() is None:
        return wrapped(*args, **kwargs)
    span = AgentSpan.for_agent(agent.name or type(agent).__name__)
    kwargs = {**kwargs, "capabilities": [*(kwargs.get("capabilities") or ()), Turn(span)]}
    return turn(span, wrapped(*args, **kwargs))


@asynccontextmanager
async def turn(span: AgentSpan, manager: AbstractAsyncContextManager[Any]) -> AsyncIterator[Any]:
    """Enter ``manager``, and record the span from its entry to its exit.

    The framework attaches a request's context to the task that reads the stream. If the reader gives the
    stream up, the context stays attached, and would name the reader's next calls.
    """
    before = otel.get_current()
    span.start()
    try:
        async with manager as run:
            yield run
    except BaseException as error:
        span.set_error(error)
        raise
    finally:
        if span.span is not None and trace.get_current_span() is span.span:
            otel.attach(before)
        span.end()


def tool_span(call: Any) -> AgentSpan:
    """Make the span of a ``ToolCallPart``. ``args_as_json_str()`` would rewrite the model's text."""
    written = call.args if isinstance(call.args, str) else call.args_as_json_str()
    return AgentSpan.for_tool(call.tool_name, call.tool_call_id, written)


def result_text(call: Any, result: Any) -> str:
    """Return a tool's result as the model will read it."""
    content = result.return_value if isinstance(result, ToolReturn) else result
    return str(ToolReturnPart(call.tool_name, content, call.tool_call_id).model_response_str())


def error_for_model(error: Exception) -> str:
    """Return the text of a failed call that the model will read, else the error's own message."""
    part = getattr(error, "tool_retry", None) or getattr(error, "tool_failed", None)
    if part is None:
        return str(error)
    return str(part.model_response_str() if isinstance(part, ToolReturnPart) else part.model_response())
