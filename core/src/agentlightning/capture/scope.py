"""The scopes that ``@agl.agent`` opens around the entry methods of decorated classes.

A scope names the calls inside (:func:`agentlightning.capture.identity.apply_scope`) and selects which of them
are trained. Invariant: a call is trained only if the innermost scope with a ``select`` of its own selects it,
and the run's ``select`` too. All calls are recorded.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from opentelemetry import baggage

from agentlightning.capture.context import SCOPE, AgentScope, attached, current_attempt
from agentlightning.capture.identity import framework_tags
from agentlightning.semconv import BAGGAGE_PREFIX
from agentlightning.types import Tags
from agentlightning.types.select import BadSelect, Predicate, with_role


def open_scope(agent: str, owner: Any, selects: Predicate | None = None) -> AgentScope:
    """Return a new scope inside the present one. Entry methods of one object that call each other are one
    agent, with one list of calls.
    """
    scope = AgentScope(agent, owner, selects, outer=SCOPE.get())
    if current_attempt() is not None:
        scope.caller_agent = framework_tags().get("agent")
    outer = scope.outer
    while outer is not None:
        if outer.owner is owner and not outer.suspended:
            scope.outermost, scope.call_span_ids = False, outer.call_span_ids
            break
        outer = outer.outer
    return scope


def inside_scope(scope: AgentScope) -> AbstractContextManager[None]:
    """Enter the scope within the block. It is nearer than an agent that ``tagged`` named outside."""
    return attached(SCOPE.set(scope, baggage.remove_baggage(f"{BAGGAGE_PREFIX}agent")))


def selects_call(tags: Tags, span_id: str) -> bool:
    """Return whether the scopes around a model call with these tags train it, and note the call's span in its
    agent's scope."""
    scope = SCOPE.get()
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
