"""What a prompt template may be filled with, and whether an edit kept it.

Invariant: an edit that is accepted has exactly the placeholders of the template that it edits, written as
they were. So a template that a model wrote fills in the same values and evaluates no other expression.
"""

from __future__ import annotations

import string

from agentlightning.types import PromptTemplate, UsageError


class BadTemplate(UsageError):
    """A template that cannot be used. ``kind`` is what failures are counted by."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def placeholders(template: PromptTemplate) -> frozenset[str]:
    """Return the placeholders of a template as they are written, without the outer braces.

    f-string: field name, conversion and format (``price:.2f``). jinja: each expression or statement. Raise
    :class:`BadTemplate` for a text that the engine cannot read.
    """
    found = _fields(template.template) if template.engine == "f-string" else _tags(template.template)
    return frozenset(found)


def _fields(text: str) -> set[str]:
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError as error:
        raise BadTemplate("unreadable-template", f"it is no format string: {error}") from None
    return {
        name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
        for _, name, spec, conversion in parts
        if name is not None
    }


def _tags(text: str) -> set[str]:
    import jinja2

    try:
        tokens = list(jinja2.Environment().lex(text))
    except jinja2.TemplateSyntaxError as error:
        raise BadTemplate("unreadable-template", f"it is no jinja template: {error}") from None
    found: set[str] = set()
    inside: list[str] = []
    for _, kind, value in tokens:
        if kind in ("variable_begin", "block_begin"):
            inside = [kind]
        elif kind in ("variable_end", "block_end"):
            found.add(" ".join(inside))
        elif kind not in ("data", "whitespace") and not kind.startswith("comment"):
            inside.append(value)
    return found


def edited(before: PromptTemplate, text: str) -> PromptTemplate:
    """Return ``text`` as the next version of ``before``. Raise :class:`BadTemplate` where it is empty, the
    same, cannot be read, lost a placeholder, or has a new one.
    """
    text = text.strip()
    if not text:
        raise BadTemplate("empty", "the edited prompt is empty")
    if text == before.template.strip():
        raise BadTemplate("unchanged", "the edited prompt is the one that was to be edited")
    after = PromptTemplate(template=text, engine=before.engine)
    was, now = placeholders(before), placeholders(after)
    if lost := sorted(was - now):
        raise BadTemplate("placeholder-lost", f"the edited prompt lost {', '.join(map(repr, lost))}")
    if new := sorted(now - was):
        raise BadTemplate("placeholder-unknown", f"the edited prompt has the new {', '.join(map(repr, new))}")
    return after
