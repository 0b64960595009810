"""Record tool calls as spans: those that a model asks for by name, and those in the code that it writes.

``execute_tool_call`` runs a tool or a managed agent, in a thread of its own where the model asked for
several. Only ``process_tool_calls`` knows the call's id. A ``CodeAgent``'s code calls the tool itself.
Invariant: a call leaves one span, and ``final_answer``, by which an agent ends its turn, none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from threading import Lock
from typing import Any, Final

from agentlightning.capture.call_hooks import CallHooks, hooked_generator
from agentlightning.capture.context import ContextEntry, attached, current_attempt
from agentlightning.capture.spans import AgentSpan

Wrapped = Callable[..., Any]
FINAL: Final = "final_answer"


class Requested(CallHooks):
    """The calls that one answer of the model asks for, known while they are processed."""

    def __init__(self, calls: list[Any]) -> None:
        self._calls, self._lock = calls, Lock()

    def activate(self) -> AbstractContextManager[None]:
        """Make them known within the block."""
        return attached(REQUESTED.set(self))

    def take(self, name: str, arguments: Any) -> str | None:
        """Return the id of the first call that asks for this and was not taken yet."""
        with self._lock:
            for call in self._calls:
                if call.function.name == name and (call.function.arguments or {}) == arguments:
                    self._calls.remove(call)
                    return str(call.id)
        return None


REQUESTED: Final = ContextEntry[Requested]("agl-smolagents-requested")
EXECUTING: Final = ContextEntry[str]("agl-smolagents-executing")
"""The tool that runs and has its span already."""


def requested(
    wrapped: Wrapped, agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Generator[Any, Any, Any]:
    """Wraps ``ToolCallingAgent.process_tool_calls``, a generator."""
    message = kwargs["chat_message"] if "chat_message" in kwargs else args[0]
    hooks = Requested(list(message.tool_calls or ()))
    return hooked_generator(wrapped, lambda _args, _kwargs: hooks)(*args, **kwargs)


def execute(wrapped: Wrapped, agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``ToolCallingAgent.execute_tool_call``, which raises what the model reads of a failure."""
    name = kwargs["tool_name"] if "tool_name" in kwargs else args[0]
    arguments = kwargs["arguments"] if "arguments" in kwargs else args[-1]
    if name == FINAL or current_attempt() is None:
        return wrapped(*args, **kwargs)
    asked = REQUESTED.get()
    call_id = None if asked is None else asked.take(name, arguments)
    return recorded(str(name), call_id, arguments, wrapped, args, kwargs)


def call(wrapped: Wrapped, tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``Tool.__call__``, for the tools that an agent's code calls."""
    if tool.name in (EXECUTING.get(), FINAL) or current_attempt() is None:
        return wrapped(*args, **kwargs)
    given = {key: value for key, value in kwargs.items() if key != "sanitize_inputs_outputs"}
    arguments = {**dict(zip(tool.inputs, args, strict=False)), **given}
    return recorded(str(tool.name), None, arguments, wrapped, args, kwargs)


def recorded(
    name: str, call_id: str | None, arguments: Any, wrapped: Wrapped, args: Any, kwargs: dict[str, Any]
) -> Any:
    """Run ``wrapped`` within a tool's span. The framework keeps arguments parsed and tells the result."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)
    with AgentSpan.for_tool(name, call_id, text).run() as span:
        try:
            with attached(EXECUTING.set(name)):
                result = wrapped(*args, **kwargs)
        except Exception as error:
            span.set_result(str(error), failed=True)
            raise
        span.set_result(str(result).strip())
        return result
