"""Grammars of structured answers, as texts in llguidance's dialect of Lark.

JSON is written as Python's ``json.dumps`` writes it (``", "`` and ``": "``, no other white space), which is
what chat templates show for tool calls. A small model that may write white space anywhere writes little else.
Tool calls have the hermes form of ``text.tools``. The library may not choose the tokens of a text that is
the only one allowed: it would take those that its look-back of four tokens lets it see, and forbid a policy's
own longer token.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

OPEN, CLOSE = "<tool_call>", "</tool_call>"

Schema = Mapping[str, Any]
ANY_OBJECT: Schema = {"type": "object"}
_OPTIONS = '%llguidance {"no_forcing": true}\n'
_FORM = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def json_grammar(schema: Schema) -> str:
    """Return the grammar of JSON texts that ``schema`` describes."""
    return f"{_OPTIONS}start: {_json(schema)}\n"


def regex_grammar(pattern: str) -> str:
    """Return the grammar of texts that ``pattern`` (in Rust's syntax, no look-around) matches as a whole."""
    escaped = pattern.replace("/", "\\/").replace("\n", "\\n")
    return f"{_OPTIONS}start: TEXT\nTEXT: /{escaped}/\n"


def calls_grammar(tools: Mapping[str, Schema], *, many: bool) -> str:
    """Return the grammar of one call of ``tools`` (name to schema of the arguments), or of one or more."""
    return f"{_OPTIONS}start: {_calls(many)}\n" + _call_rules(tools)


def text_or_calls_grammar(tools: Mapping[str, Schema], *, many: bool) -> str:
    """Return the grammar of any text, followed by calls of ``tools`` if there is an opening tag: at most one
    call,
    or any number.
    """
    start = "(head body)* TEXT" if many else "TEXT | head body"
    head = f"TEXT: /(?s:.*)/\nhead[lazy]: TEXT {json.dumps(OPEN)}\n"
    return f"{_OPTIONS}start: {start}\n{head}{_call_rules(tools)}"


def json_or_calls_grammar(schema: Schema, tools: Mapping[str, Schema], *, many: bool) -> str:
    """Return the grammar of either a JSON text that ``schema`` describes or calls of ``tools``."""
    return f"{_OPTIONS}start: answer | {_calls(many)}\nanswer: {_json(schema)}\n" + _call_rules(tools)


def _calls(many: bool) -> str:
    return 'call ("\\n" call)*' if many else "call"


def _call_rules(tools: Mapping[str, Schema]) -> str:
    lines = [f"call: {json.dumps(OPEN)} body", "body: " + " | ".join(f"body_{i}" for i in range(len(tools)))]
    for i, (name, schema) in enumerate(tools.items()):
        opening = f'\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": '
        closing = f"}}\n{CLOSE}"
        lines.append(f"body_{i}: {json.dumps(opening)} {_json(schema)} {json.dumps(closing)}")
    return "\n".join(lines) + "\n"


def _json(schema: Schema) -> str:
    return "%json " + json.dumps({**schema, "x-guidance": _FORM})


def object_schema(parameters: Any) -> Schema:
    """Return the schema of a tool's arguments, which are an object. Raise ValueError for other types."""
    if parameters is None:
        return ANY_OBJECT
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        raise ValueError("parameters must be a JSON schema of type object")
    return {**parameters, "type": "object"}


__all__: Sequence[str] = [
    "ANY_OBJECT",
    "calls_grammar",
    "json_grammar",
    "json_or_calls_grammar",
    "object_schema",
    "regex_grammar",
    "text_or_calls_grammar",
]
