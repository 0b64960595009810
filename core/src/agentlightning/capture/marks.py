"""Marked classes at work: ``@agl.agent`` enters a mark around each of their entry methods.

A mark names the calls made inside (:func:`agentlightning.capture.identity.under`) and chooses which of them
are trained. Invariant: a call is trained only if the innermost mark with a choice of its own chooses it, and
the run's ``select`` too; what either leaves out is recorded all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from agentlightning.capture.context import Mark, _mark, _tags, current_attempt, current_mark, setting
from agentlightning.capture.identity import framework
from agentlightning.types import Tags
from agentlightning.types.select import BadSelect, Predicate, named


def enter(agent: str, owner: Any, selects: Predicate | None = None) -> Mark:
    """A mark that is entered here. An object inside itself is one agent: it keeps one list of calls."""
    mark = Mark(agent, owner, selects, outer=current_mark())
    if current_attempt() is not None:
        mark.above = framework().get("agent")
    outer = mark.outer
    while outer is not None:
        if outer.owner is owner and not outer.over:
            mark.first, mark.calls = False, outer.calls
            break
        outer = outer.outer
    return mark


@contextmanager
def marked(mark: Mark) -> Iterator[None]:
    """Code within the block is the mark's. It is nearer than an agent that ``tagged`` named outside."""
    farther = {tag: value for tag, value in _tags.get().items() if tag != "agent"}
    with setting(_tags, farther), setting(_mark, mark):
        yield


def claim(tags: Tags, span_id: str) -> bool:
    """Whether the marks around a model call with these tags train it; its agent's mark remembers its span."""
    mark = current_mark()
    if mark is None:
        return True
    if tags.get("agent") == mark.agent:
        mark.calls.append(span_id)
    while mark is not None and mark.selects is None:
        mark = mark.outer
    if mark is None or mark.selects is None:
        return True
    try:
        return mark.selects(named(tags))
    except BadSelect as error:
        if (attempt := current_attempt()) is not None:
            attempt.faults.append(error)
        raise
