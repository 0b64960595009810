"""LangChain's own door: one callback handler that every callback manager of the process is given.

It is registered as a configure hook whose context variable has the handler as its *default*, so that it is
there in every task and thread without ``callbacks=`` in user code. Invariant: it attaches nothing to a
context (LangChain calls back from other tasks), and never raises into the chain.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from threading import Lock
from typing import Any
from uuid import UUID

from langchain_core.callbacks.base import BaseCallbackHandler
from langchain_core.tracers import context as tracers

from agentlightning.capture.counts import COUNTS
from agentlightning.capture.identity import IDENTITY, PARENTS
from agl_langchain import tools
from agl_langchain.identity import read_agent
from agl_langchain.runs import ANSWERED, READERS, RUNS, begin, finish, here, identity

_LOG = logging.getLogger(__name__)


def _guarded(callback: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(callback)
    def guarded(handler: Handler, *args: Any, **kwargs: Any) -> None:
        if not handler.active:
            return
        try:
            callback(handler, *args, **kwargs)
        except Exception:
            COUNTS.add("langchain-callback-error")
            _LOG.warning("%s could not be recorded", callback.__name__, exc_info=True)

    return guarded


class Handler(BaseCallbackHandler):
    """Keeps the table of runs, and delivers the spans of agents and tools."""

    run_inline = True
    """In the caller's context, and in order."""
    ignore_chat_model = ignore_retriever = ignore_retry = ignore_custom_event = True
    active = False

    def __reduce__(self) -> tuple[Callable[[], Handler], tuple[()]]:
        """There is one a process: a copied or pickled configuration names that one."""
        return handler, ()

    @_guarded
    def on_chain_start(self, serialized: Any, inputs: Any, **facts: Any) -> None:
        """A chain, graph or node begins."""
        begin(facts, facts.get("name") or "")

    @_guarded
    def on_chain_end(self, outputs: Any, **facts: Any) -> None:
        """It ends."""
        self.on_chain_error(None, **facts)

    @_guarded
    def on_chain_error(self, error: BaseException | None, *, run_id: UUID, **facts: Any) -> None:
        """It raised."""
        if run := RUNS.pop(run_id, None):
            finish(run, error)

    @_guarded
    def on_tool_start(self, serialized: Mapping[str, Any] | None, input_str: str, **facts: Any) -> None:
        """A tool begins."""
        name, given = (serialized or {}).get("name") or facts.get("name") or "tool", facts.get("inputs")
        if run := begin(facts, name):
            tools.began(run, input_str if given is None else given)

    @_guarded
    def on_tool_end(self, output: Any, *, run_id: UUID, **facts: Any) -> None:
        """It answered."""
        if run := RUNS.pop(run_id, None):
            tools.ended(run, output)

    @_guarded
    def on_tool_error(self, error: BaseException, *, run_id: UUID, **facts: Any) -> None:
        """It raised."""
        if run := RUNS.pop(run_id, None):
            tools.raised(run, error)

    @_guarded
    def on_llm_end(self, response: Any, *, parent_run_id: UUID | None = None, **facts: Any) -> None:
        """A model answered; the call itself is the wire layer's."""
        if run := RUNS.get(parent_run_id):  # type: ignore[arg-type]
            for answered in tuple(ANSWERED):
                answered(run, response)


_handler = Handler()
_DOOR: ContextVar[Handler | None] = ContextVar("agl_langchain", default=_handler)
_lock = Lock()
_users = 0


def handler() -> Handler:
    """The process's handler."""
    return _handler


def open_door() -> None:
    """Listen to LangChain. Adapters that build on this one open it too; it closes with the last."""
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            tracers.register_configure_hook(_DOOR, inheritable=True)
            READERS.insert(0, read_agent)
            IDENTITY.append(identity)
            PARENTS.append(here)
            _handler.active = True


def close_door() -> None:
    """Listen no more. LangChain cannot unregister a hook: ours is taken out of its list, else it is inert."""
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            _handler.active = False
            hooks = getattr(tracers, "_configure_hooks", [])
            hooks[:] = [hook for hook in hooks if hook[0] is not _DOOR]
            PARENTS.remove(here)
            IDENTITY.remove(identity)
            READERS.remove(read_agent)
            RUNS.clear()
