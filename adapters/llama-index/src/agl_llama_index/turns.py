"""Record agents' turns as spans, current while their steps run.

``run`` starts a workflow and returns at once. The workflow's tasks take over the context in which ``run`` was
called, and with it the run's :class:`Turns`. Invariant: a turn ends with the next agent's, or with its run.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, Final

from agentlightning.capture.context import ContextEntry, attached, current_attempt
from agentlightning.capture.identity import agent_tags
from agentlightning.capture.spans import AgentSpan

Wrapped = Callable[..., Any]
STEPS: Final = ("setup_agent", "parse_agent_output", "aggregate_tool_results")
"""The other steps of several agents' workflow: there an agent may ask for a structured or a last answer."""


class Turns:
    """The turns of one run, one after the other."""

    def __init__(self, flow: Any = None) -> None:
        self.flow = flow
        """The workflow that runs."""
        self.open: AgentSpan | None = None

    def take(self, name: str) -> AgentSpan:
        """Return the turn of this agent: the open one, or a new one if another agent's was open."""
        if self.open is None or self.open.name != name:
            self.end()
            self.open = AgentSpan.for_agent(name).start()
        return self.open

    def activate(self) -> AbstractContextManager[None]:
        """Make the open turn current within the block."""
        return nullcontext() if self.open is None else self.open.activate()

    def end(self, error: BaseException | None = None) -> None:
        """End the open turn, as failed if there is an error."""
        if self.open is not None:
            if error is not None:
                self.open.set_error(error)
            self.open.end()
        self.open = None

    def end_with(self, handler: Any) -> None:
        """End the open turn when the run is over. The handler is a future; in later versions it has one."""
        result = handler if isinstance(handler, asyncio.Future) else handler._result_task
        result.add_done_callback(lambda done: self.end(None if done.cancelled() else done.exception()))


TURNS: Final = ContextEntry[Turns]("agl-llama-index-turns")
"""Those of the running workflow."""


def run_agent(wrapped: Wrapped, agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``BaseWorkflowAgent.run``: the run is the agent's turn."""
    return started(Turns(agent), str(agent.name), wrapped, args, kwargs)


def run_agents(wrapped: Wrapped, flow: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``AgentWorkflow.run``: its steps say whose turn it is."""
    return started(Turns(flow), None, wrapped, args, kwargs)


def run_flow(wrapped: Wrapped, flow: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``Workflow.run``, which those of agents call: the run of a user's workflow is a turn of its
    class.
    """
    if (turns := TURNS.get()) is not None and turns.flow is flow:
        return wrapped(*args, **kwargs)
    return started(Turns(flow), type(flow).__name__, wrapped, args, kwargs)


def steps_of(cls: type) -> list[str]:
    """Return the steps that a user's workflow defines; none of LlamaIndex's own."""
    own = cls.__module__.startswith(("llama_index.core.", "workflows."))
    return [] if own else [name for name, step in vars(cls).items() if hasattr(step, "_step_config")]


def flow_step(wrapped: Wrapped, flow: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps a step of a user's workflow: its name is the tag ``node``. Tasks of the runtime run it, within
    the context of their run.
    """
    if (turns := TURNS.get()) is None or turns.flow is not flow:
        return wrapped(*args, **kwargs)

    def active() -> ExitStack:
        with ExitStack() as stack:
            stack.enter_context(turns.activate())
            stack.enter_context(agent_tags(node=str(wrapped.__name__)))
            return stack.pop_all()

    async def awaited() -> Any:
        with active():
            return await work

    with active():
        work = wrapped(*args, **kwargs)
    return awaited() if inspect.iscoroutine(work) else work


def started(turns: Turns, name: str | None, wrapped: Wrapped, args: Any, kwargs: dict[str, Any]) -> Any:
    """Start a workflow that carries ``turns``, the first of them if its agent is known."""
    if current_attempt() is None:
        return wrapped(*args, **kwargs)
    if name is not None:
        turns.take(name)
    try:
        with turns.activate(), attached(TURNS.set(turns)):
            handler = wrapped(*args, **kwargs)
    except BaseException as error:
        turns.end(error)
        raise
    turns.end_with(handler)
    return handler


async def step_of(wrapped: Wrapped, flow: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``AgentWorkflow.run_agent_step``, whose event names the agent."""
    if (turns := TURNS.get()) is None:
        return await wrapped(*args, **kwargs)
    event = kwargs["ev"] if "ev" in kwargs else args[-1]
    with turns.take(str(event.current_agent_name)).activate():
        return await wrapped(*args, **kwargs)


async def step(wrapped: Wrapped, flow: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps the steps that go on with the turn."""
    with (TURNS.get() or Turns()).activate():
        return await wrapped(*args, **kwargs)
