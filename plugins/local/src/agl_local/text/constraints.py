"""Grammars of structured answers, as texts in llguidance's dialect of Lark.

JSON is written as Python's ``json.dumps`` writes it (``", "`` and ``": "``, no other white space), which is
what chat templates show for tool calls. A small model that may write white space anywhere writes little else.
Tool calls are written as the policy's chat template writes them (``syntax.Writing``); the parts of its
literals that are special tokens are asked for by their ids. The library may not choose the tokens of a text
that is the only one allowed: it would take those that its look-back of four tokens lets it see, and forbid a
policy's own longer token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agl_local.text.syntax import ID, INDEX, CallSyntax, Writing

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


def calls_grammar(tools: Mapping[str, Schema], form: CallForm, *, many: bool) -> str:
    """Return the grammar of one call of ``tools`` (name to schema of the arguments), or of one or more."""
    return f"{_OPTIONS}start: {form.calls(many)}\n" + form.rules(tools)


def text_or_calls_grammar(tools: Mapping[str, Schema], form: CallForm, *, many: bool) -> str:
    """Return the grammar of any text, followed by calls of ``tools`` if there is an opening literal: at most
    one call, or any number.
    """
    text = "TEXT: /(?s:.*)/\n"
    if form.special_start:  # a text cannot contain the special token that begins a call
        start = f"(TEXT {form.calls(many)})* TEXT" if many else f"TEXT ({form.calls(many)})?"
        return f"{_OPTIONS}start: {start}\n{text}" + form.rules(tools)
    start = "(head rest)* TEXT" if many else "TEXT | head rest"
    head = f"{text}head[lazy]: TEXT {form.opening}\nrest: {form.rest} body {form.after}\n"
    return f"{_OPTIONS}start: {start}\n{head}{form.rules(tools)}"


def json_or_calls_grammar(schema: Schema, tools: Mapping[str, Schema], form: CallForm, *, many: bool) -> str:
    """Return the grammar of either a JSON text that ``schema`` describes or calls of ``tools``."""
    return f"{_OPTIONS}start: answer | {form.calls(many)}\nanswer: {_json(schema)}\n" + form.rules(tools)


class CallForm:
    """The rules of calls as a policy writes them. ``special``: ids of the vocabulary's special tokens;
    ``begins``: the literal of a text from which on it must be a call.
    """

    def __init__(self, writing: Writing, special: Mapping[str, int], begins: str = "") -> None:
        self._writing = writing
        self._special = special
        self._marks = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or r"(?!)")
        self.after = self._literal(writing.after)
        at = writing.before.rfind(begins) if begins else 0
        opened = writing.before[at:].lstrip()
        cut = len(begins) if begins and opened.startswith(begins) else len(opened)
        self.opening, self.rest = self._literal(opened[:cut]), self._literal(opened[cut:])
        self.special_start = self.opening.startswith("<[")

    @classmethod
    def of(cls, syntax: CallSyntax, special: Mapping[str, int]) -> CallForm | None:
        """The form of a syntax; None: no grammar describes it."""
        if syntax.writing is None:
            return None
        return cls(syntax.writing, special, syntax.opens[-1] if syntax.opens else "")

    def calls(self, many: bool) -> str:
        """One call, or one or more."""
        joint = self._writing.joint
        more = f" ({self._literal(joint)} body)*" if many and joint else ""
        return f"{self._literal(self._writing.before)} body{more} {self.after}"

    def rules(self, tools: Mapping[str, Schema]) -> str:
        """The rule ``body``: a name and its arguments."""
        lines = ["body: " + " | ".join(f"body_{i}" for i in range(len(tools)))]
        for i, (name, schema) in enumerate(tools.items()):
            quoted = self._writing.between.startswith('"')  # a JSON string
            shown = json.dumps(name, ensure_ascii=False)[1:-1] if quoted else name
            begun = self._literal(shown + self._writing.between)
            lines.append(f"body_{i}: {begun} {self._arguments(schema)}")
        if self._writing.tags is not None:
            lines += ["ANY: /(?s:.*)/", f"value[lazy]: ANY {json.dumps(self._writing.tags[3])}"]
        return "\n".join(lines) + "\n"

    def _arguments(self, schema: Schema) -> str:
        if self._writing.tags is None:
            return _json(schema)
        properties = schema.get("properties") or {}
        if not properties:
            before, after, *_ = self._writing.tags
            return f"({self._literal(before)} /[A-Za-z0-9_.-]+/ {self._literal(after)} value)*"
        required = schema.get("required") or ()
        parts = [(self._tag(key, one), key in required) for key, one in properties.items()]
        return " ".join(part if needed else f"({part})?" for part, needed in parts)

    def _tag(self, key: str, schema: Any) -> str:
        assert self._writing.tags is not None
        before, after_text, after_other, after_value = self._writing.tags
        if not isinstance(schema, Mapping) or schema.get("type") == "string":
            choices = schema.get("enum") if isinstance(schema, Mapping) else None
            if choices:
                allowed = " | ".join(self._literal(str(choice) + after_value) for choice in choices)
                return f"{self._literal(before + key + after_text)} ({allowed})"
            return f"{self._literal(before + key + after_text)} value"
        return f"{self._literal(before + key + after_other)} {_json(schema)} {self._literal(after_value)}"

    def _literal(self, text: str) -> str:
        """``text`` in the dialect: its special tokens by id, an id or number of a call by its form."""
        parts: list[str] = []
        for piece in re.split(rf"({self._marks.pattern}|{ID}|{INDEX})", text):
            known = {ID: "/[A-Za-z0-9]{9}/", INDEX: "/[0-9]+/"}.get(piece)
            if known or piece in self._special:
                parts.append(known or f"<[{self._special[piece]}]>")
            elif piece:
                parts.append(json.dumps(piece, ensure_ascii=False))
        return " ".join(parts) or '""'


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
    "CallForm",
    "calls_grammar",
    "json_grammar",
    "json_or_calls_grammar",
    "object_schema",
    "regex_grammar",
    "text_or_calls_grammar",
]
