"""The callback handler that every callback manager of the process gets.

It is registered as a configure hook whose context variable has the handler as its *default*, so that every
task and thread has it without ``callbacks=`` in user code. Invariant: it attaches nothing to a context
(LangChain calls back from other tasks), and never raises into the chain.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from langchain_core.callbacks.base import BaseCallbackHandler
from langchain_core.tracers import context as tracers

from agentlightning.capture.delivery import COUNTS
from agentlightning.capture.identity import CALLER_SOURCES
from agl_langchain import runs, tools
from agl_langchain.metadata import read_agent
from agl_langchain.runs import Run


def _counted(callback: Callable[..., None]) -> Callable[..., None]:
    """Return ``callback`` with its errors counted. LangChain logs them and goes on."""

    @functools.wraps(callback)
    def counted(handler: Handler, *args: Any, **kwargs: Any) -> None:
        try:
            if handler.active:
                callback(handler, *args, **kwargs)
        except Exception:
            COUNTS.add("langchain-callback-error")
            raise

    return counted


class Handler(BaseCallbackHandler):  # type: ignore[misc]
    """Keeps the table of runs, and delivers the spans of agents and tools."""

    run_inline = True
    """Makes LangChain call it in the caller's context, and in order."""
    ignore_retry = ignore_custom_event = True
    active = False

    def __reduce__(self) -> str:
        """Copy and pickle by name: a process has one handler."""
        return "HANDLER"

    @_counted
    def on_chain_start(self, serialized: Any, inputs: Any, **event: Any) -> None:
        """A chain, graph or node begins."""
        runs.begin(event, event.get("name") or "")

    @_counted
    def on_tool_start(self, serialized: Mapping[str, Any] | None, input_str: str, **event: Any) -> None:
        """A tool begins."""
        name, given = (serialized or {}).get("name") or event.get("name") or "tool", event.get("inputs")
        if run := runs.begin(event, name):
            tools.began(run, input_str if given is None else given)

    def on_chain_end(self, outputs: Any, **event: Any) -> None:
        """It ends."""
        self._end(runs.finish, None, **event)

    def on_chain_error(self, error: BaseException, **event: Any) -> None:
        """It raised."""
        self._end(runs.finish, error, **event)

    on_retriever_start, on_retriever_end, on_retriever_error = on_chain_start, on_chain_end, on_chain_error

    def on_tool_end(self, output: Any, **event: Any) -> None:
        """It answered."""
        self._end(tools.ended, output, **event)

    def on_tool_error(self, error: BaseException, **event: Any) -> None:
        """It raised."""
        self._end(tools.raised, error, **event)

    @_counted
    def _end(self, end_span: Callable[[Run, Any], None], result: Any, *, run_id: UUID, **event: Any) -> None:
        runs.end(run_id, end_span, result)

    @_counted
    def on_llm_start(self, serialized: Any, asked: Any, **event: Any) -> None:
        """A model run begins; the wire layer records the call itself."""
        if run := runs.record(event, event.get("name") or ""):
            run.title = None  # the call has a span of its own
            runs.MODELS[event["run_id"]] = run
            runs.CURRENT_MODEL_RUN.set(run)

    on_chat_model_start = on_llm_start

    def on_llm_end(self, response: Any, **event: Any) -> None:
        """It answered."""
        self.on_llm_error(response, **event)

    @_counted
    def on_llm_error(self, error: Any, *, run_id: UUID, **event: Any) -> None:
        """It failed, or answered if ``error`` is an answer."""
        if run := runs.MODELS.pop(run_id, None):
            run.live = False
            for take in tuple(runs.ANSWER_LISTENERS) if hasattr(error, "generations") else ():
                take(run, error)


HANDLER = Handler()
_HOOK: ContextVar[Handler | None] = ContextVar("agl_langchain", default=HANDLER)
_users = 0


def register() -> None:
    """Register the handler. Adapters that build on this one register it too; the last ``unregister`` removes
    it.
    """
    global _users
    _users += 1
    if _users == 1:
        tracers.register_configure_hook(_HOOK, inheritable=True)
        runs.RUN_READERS.insert(0, read_agent)
        CALLER_SOURCES.append(runs.current_caller)
        HANDLER.active = True


def unregister() -> None:
    """Remove the handler. LangChain cannot unregister a hook, so remove it from LangChain's list; a handler
    that stays is inert.
    """
    global _users
    _users -= 1
    if _users == 0:
        HANDLER.active = False
        hooks = getattr(tracers, "_configure_hooks", [])
        hooks[:] = [hook for hook in hooks if hook[0] is not _HOOK]
        CALLER_SOURCES.remove(runs.current_caller)
        runs.RUN_READERS.remove(read_agent)
        for run_id in tuple(runs.RUNS):
            runs.end(run_id, runs.finish, runs.CutShort("the adapter was switched off"))
