"""What form a chat template wants, and in which syntax it writes calls: found by rendering probes.

A form is right if the calls of the rendered turn can be read back equal: alone, two at a time, with nested
arguments. So a template that nobody here has seen works too, if it writes calls in a way of ``cores``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from typing import Any

from agl_local.text import cores, probes as p
from agl_local.text.derivation import derive
from agl_local.text.form import Form
from agl_local.text.rendering import TemplateError, TemplateStopped

_WRITTEN = {"<|tool_call|>": cores.GRANITE, "<|tool_list_start|>": cores.LFM, "<tool_call>": cores.HERMES}
"""For templates that show tools and leave out calls: by a mark with which they show them."""


_CONTROL = re.compile(
    r"<\|[^<>\s]*>|<[^<>\s]*\|>|<｜[^<>]*｜>|\[\|[^\[\]]*\|\]|\[/?[A-Z_]{2,}\]|</?s>"
    r"|<(?:start|end)_[a-z_]*>|<SPECIAL_\d+>|<seed:[a-z]*os>|[\[\]][e~]~?b?[\[\]]"
)
"""Marks that are special tokens in the vocabularies of published models."""


def control_marks(template: p.Renders) -> tuple[list[str], list[str]]:
    """The special tokens that a template writes, in the order of a conversation with a call, and those that
    end a turn: of text, of calls. Raise TemplateError for a template that cannot write it.
    """
    form = template.form
    calls = [p.A, p.B] if form.syntax and form.syntax.many else [p.A]
    result = {"role": "tool", "tool_call_id": p.ID_TEXTS[0], "content": "zqresult"}
    talks: list[tuple[list[dict[str, Any]], str]] = [([p.USER, p.SAYS, p.USER], p.SAID)]
    if form.syntax is not None:
        talks.append(([p.USER, p.message_of(calls), result], str(calls[-1][1][p.NUMBER_KEY])))
    texts = [template.render(talk, p.TOOLS, True, {}) for talk, _ in talks]
    after = [text.partition(said)[2] for text, (_, said) in zip(texts, talks, strict=True)]
    last = template.render([p.USER, p.SAYS], p.TOOLS, False, {}).partition(p.SAID)[2]
    after[0] = (
        last if _CONTROL.search(last) else after[0]
    )  # no token of its own ends it: the next role's does
    if form.syntax is not None:  # what closes the calls ends no turn
        ending = form.syntax.ending.strip()
        after[1] = ending or after[1].partition(form.syntax.close)[2]
    ends = [found[0] for text in after if (found := _CONTROL.search(text))]
    return list(dict.fromkeys([*_CONTROL.findall("".join(texts)), *ends])), list(dict.fromkeys(ends))


def study(template: p.Renders) -> Form:
    """The form that ``template`` wants. A broken template, or one over a limit, has the default one."""
    try:
        return _study(template)
    except TemplateError as error:
        return Form(problem=str(error))


def _study(template: p.Renders) -> Form:
    base = replace(Form(), parts=_wants_parts(template))
    base = replace(base, tools=_tools_variable(template, base))
    shown = template.render([p.USER], p.TOOLS, True, {}, base)
    problems: list[tuple[int, str]] = []
    for ids, mapping, empty in product(("own", "short", "named"), (True, False), ("", None)):
        form = replace(base, ids=ids, mapping=mapping, empty=empty)
        try:
            found = derive(template, form)
        except TemplateStopped:
            raise
        except TemplateError as error:
            problems.append((2, str(error)))
            continue
        if found is not None:
            return _with_text(template, replace(form, syntax=found))
        written = p.turn(template, form, p.message_of([p.A]))
        if p.TEXT in written:
            said = f"calls cannot be read back from what the template writes: {written[:200]!r}"
            problems.append((0, said))
        else:
            problems.append((1, "the template leaves calls out of the conversation"))
    for mark, syntax in _WRITTEN.items():
        ending = p.turn(template, base, p.SAYS).partition(p.SAID)[2]
        form = replace(base, written=syntax, syntax=replace(syntax, ending=ending))
        if mark in shown and all(p.reads_back(template, form, calls) for calls in p.PLAIN):
            return form
    return replace(base, problem=min(problems)[1])


def _with_text(template: p.Renders, form: Form) -> Form:
    """``form``, without the text beside calls where the template leaves out the calls of a turn with text."""
    alone = replace(form, alone=True)
    return form if p.reads_back(template, form, [p.A], p.SAID) else alone


def _tools_variable(template: p.Renders, form: Form) -> str:
    """The variable by which the template takes tools; empty: it shows none to the model."""
    names = re.findall(r"\b(?:\w+_)?(?:tools|functions)\b", template.source)
    for name in dict.fromkeys(["tools", *names]):
        try:
            if p.FIRST in template.render([p.USER], p.TOOLS, True, {}, replace(form, tools=name)):
                return str(name)
        except TemplateStopped:
            raise
        except TemplateError:
            continue
    return ""


def _wants_parts(template: p.Renders) -> bool:
    for parts in (False, True):
        try:
            if p.QUESTION in template.render([p.USER], None, True, {}, Form(parts=parts)):
                return parts
        except TemplateStopped:
            raise
        except TemplateError:
            continue
    return False
