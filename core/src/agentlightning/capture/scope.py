"""Marked classes at work: ``@agl.agent`` enters a mark around each of their entry methods.

A scope names the calls made inside (:func:`agentlightning.capture.identity.apply_scope`) and selects which of
them are trained. Invariant: a call is trained only if the innermost scope with a ``select`` of its own
selects it, and the run's ``select`` too; all other calls are recorded all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from agentlightning.capture.context import AgentScope, _scope, _tags, current_attempt, current_scope, setting
from agentlightning.capture.identity import framework_tags
from agentlightning.types import Tags
from agentlightning.types.select import BadSelect, Predicate, with_role


def open_scope(agent: str, owner: Any, selects: Predicate | None = None) -> AgentScope:
    """A mark that is entered here. An object inside itself is one agent: it keeps one list of calls."""
    scope = AgentScope(agent, owner, selects, outer=current_scope())
    if current_attempt() is not None:
        scope.caller_agent = framework_tags().get("agent")
    outer = scope.outer
    while outer is not None:
        if outer.owner is owner and not outer.suspended:
            scope.outermost, scope.call_span_ids = False, outer.call_span_ids
            break
        outer = outer.outer
    return scope


@contextmanager
def inside_scope(scope: AgentScope) -> Iterator[None]:
    """Code within the block is the mark's. It is nearer than an agent that ``tagged`` named outside."""
    farther = {tag: value for tag, value in _tags.get().items() if tag != "agent"}
    with setting(_tags, farther), setting(_scope, scope):
        yield


def selects_call(tags: Tags, span_id: str) -> bool:
    """Whether the marks around a model call with these tags train it; its agent's mark remembers its span."""
    scope = current_scope()
    if scope is None:
        return True
    if tags.get("agent") == scope.agent:
        scope.call_span_ids.append(span_id)
    while scope is not None and scope.selects is None:
        scope = scope.outer
    if scope is None or scope.selects is None:
        return True
    try:
        return scope.selects(with_role(tags))
    except BadSelect as error:
        if (attempt := current_attempt()) is not None:
            attempt.errors.append(error)
        raise
