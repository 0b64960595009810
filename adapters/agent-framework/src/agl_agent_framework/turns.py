"""Tag agents, nodes of a workflow, and the manager of a group chat.

Agent Framework's ``invoke_agent`` spans name every agent, and core reads them. They do not name the running
node of a workflow, a group chat's orchestrator that chooses the next speaker, or any agent when the user
has switched the framework's spans off. Invariant: tags hold while the agent's own code runs, also in a
stream that is read elsewhere, and never while the reader works between two updates.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from agentlightning.capture.context import capture_tags, current_attempt
from agentlightning.capture.identity import agent_tags


def run(wrapped: Callable[..., Any], agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``run`` of agents, which returns at once: the work is done when the result is awaited or read.

    The work keeps the tags that hold at the call (``@agl.agent``, ``tagged``).
    """
    result = wrapped(*args, **kwargs)
    if current_attempt() is None:
        return result
    name, tags_at_call = str(agent.name or agent.id), capture_tags()

    @contextmanager
    def agent_turn() -> Iterator[None]:
        with agent_tags(agent=name), tags_at_call():
            yield

    if hasattr(result, "with_pull_context_manager"):
        return result.with_pull_context_manager(agent_turn)
    return _awaited(result, agent_turn)


async def _awaited(result: Awaitable[Any], agent_turn: Callable[[], Any]) -> Any:
    with agent_turn():
        return await result


async def execute(
    wrapped: Callable[..., Any], executor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Wraps ``Executor.execute``: one node of a workflow handles one message."""
    tags = {"node": str(executor.id)}
    if _manages(executor):
        tags["role"] = "manager"
    with agent_tags(**tags):
        return await wrapped(*args, **kwargs)


def _manages(executor: Any) -> bool:
    orchestrations = sys.modules.get("agent_framework_orchestrations")
    manager = getattr(orchestrations, "BaseGroupChatOrchestrator", None)
    return manager is not None and isinstance(executor, manager)
