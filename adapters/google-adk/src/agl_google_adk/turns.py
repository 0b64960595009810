"""Record agents' turns as spans, current while their code runs, and tag the nodes of workflows."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

from agentlightning.capture.context import ContextEntry, attached, current_attempt
from agentlightning.capture.identity import caller_context, inherited_tags
from agentlightning.capture.spans import AgentSpan
from agentlightning.types import Tags

Wrapped = Callable[..., Any]
OpenTools = dict[str, AgentSpan]
"""Tool calls whose results have not come yet, by the call's id."""
OPEN_TOOLS: Final = ContextEntry[OpenTools]("agl-google-adk-tools")
"""Those of the agent's turn."""


class Turn(AgentSpan):
    """An agent's turn. It ends each tool call when the event with the tool's response passes by: only that
    has what the model will read, after all callbacks. What has no response by then ends with the turn.
    """

    def __init__(self, operation: str, name: str, attributes: dict[str, Any], tags: Tags) -> None:
        super().__init__(operation, name, attributes, tags)
        self.tools: OpenTools = {}

    def activate(self) -> AbstractContextManager[None]:
        """Make the span current within the block, and the turn's tool calls known in it."""
        return attached(OPEN_TOOLS.set(self.tools, caller_context(self.tags, self.span)))

    def read(self, event: Any) -> None:
        """End the tool calls that this event answers."""
        for response in event.get_function_responses():
            if tool := self.tools.pop(str(response.id), None):
                tool.set_result(as_text(response.response))
                tool.end()

    def end(self) -> None:
        """End the turn, and the tool calls that got no response: broken off, or long-running."""
        for tool in self.tools.values():
            tool.end()
        self.tools.clear()
        super().end()


def as_text(value: Any) -> str:
    """Return arguments or a response as the framework's models send them: it keeps them parsed."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def run(wrapped: Wrapped, agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``BaseAgent.run_async``, an async generator of events."""
    events = wrapped(*args, **kwargs)
    if current_attempt() is None:
        return events
    turn = Turn.for_agent(str(agent.name))
    return turn.wrap_stream(events, begin=True, on_item=turn.read)


def node_class() -> Any:
    """Return the class of workflows' nodes; ``None`` in Google ADK 1, which has no workflows."""
    try:
        from google.adk.workflow import BaseNode
    except ImportError:
        return None
    return BaseNode


def run_node(wrapped: Wrapped, node: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``BaseNode.run``, an async generator of events. The runner runs a lone agent as a node, too: only
    a node below another is tagged. It makes no span.
    """
    events = wrapped(*args, **kwargs)
    context = kwargs["ctx"] if "ctx" in kwargs else args[0]
    if current_attempt() is None or getattr(context.parent_ctx, "node", None) is None:
        return events
    return AgentSpan("", "", {}, inherited_tags({"node": str(node.name)})).wrap_stream(events)
