"""Conversations that are rendered to see what a chat template does: with names, keys and values that occur
nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from agl_local.text.form import Form
from agl_local.text.rendering import TemplateError, TemplateStopped
from agl_local.text.tools import parse_calls


class Renders(Protocol):
    """What is asked of a chat template."""

    source: str

    @property
    def form(self) -> Form: ...

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
        form: Form | None = None,
    ) -> str: ...


QUESTION, SAID = "zqask", "zqsay"
FIRST, SECOND = "zqlook", "zqsend"
TEXT_KEY, NUMBER_KEY, DEEP_KEY = "zqtext", "zqnumber", "zqdeep"
TEXT, NUMBER = "zqval one", 7041
ID_TEXTS = ("call_zqid12345", "call_zqid67890")
USER = {"role": "user", "content": QUESTION}
SAYS = {"role": "assistant", "content": SAID}


def _tool(name: str) -> dict[str, Any]:
    properties = {
        TEXT_KEY: {"type": "string", "description": "Words."},
        NUMBER_KEY: {"type": "integer", "description": "A number."},
        DEEP_KEY: {"type": "object", "description": "More.", "properties": {}},
    }
    parameters = {"type": "object", "properties": properties, "required": []}
    return {"type": "function", "function": {"name": name, "description": "Do.", "parameters": parameters}}


TOOLS = [_tool(FIRST), _tool(SECOND)]
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
Call = tuple[str, dict[str, Any]]
A: Call = (FIRST, {TEXT_KEY: TEXT, NUMBER_KEY: NUMBER})
DEEP: Call = (FIRST, {DEEP_KEY: {"zqinner": 7043}})
B: Call = (SECOND, {TEXT_KEY: "zqother", NUMBER_KEY: 7042})
PLAIN: Sequence[Sequence[Call]] = ([A], [DEEP])
"""Turns that must come back equal, besides [A, B]."""


def message_of(calls: Sequence[Call], content: str | None = None) -> dict[str, Any]:
    """An assistant message that makes ``calls``, as the OpenAI API has it."""
    made = [
        {
            "id": ID_TEXTS[i],
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
        }
        for i, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": content, "tool_calls": made}


def turn(template: Renders, form: Form, message: Mapping[str, Any]) -> str:
    """What the template writes of ``message`` after the prompt, to the end of the text."""
    prompt = template.render([USER], TOOLS, True, {}, form)
    whole = template.render([USER, message], TOOLS, False, {}, form)
    return rest_of(whole, prompt)


def rest_of(whole: str, prompt: str) -> str:
    """``whole`` after what it has in common with ``prompt``, no mark cut: usually after ``prompt``."""
    return whole[len(whole_marks(common_start(prompt, whole))) :]


def common_start(one: str, other: str) -> str:
    """What both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return one[: next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))]


def whole_marks(literal: str) -> str:
    """``literal`` without the part of a mark that its end cuts."""
    cut = literal.rfind("<")
    return literal[:cut] if cut > literal.rfind(">") else literal


def reads_back(template: Renders, form: Form, calls: Sequence[Call], content: str | None = None) -> bool:
    """Whether ``calls`` come back equal, with no text beside them but for ``content``."""
    if form.syntax is None:
        return False
    try:
        text = turn(template, form, message_of(calls, content))
    except TemplateStopped:
        raise
    except TemplateError:
        return False
    parsed = parse_calls(text.removesuffix(form.syntax.ending), form.syntax, schemas=SCHEMAS)
    found = [(call.name, json.loads(call.arguments)) for call in parsed.calls]
    return found == list(calls) and (content is not None or not parsed.content)
