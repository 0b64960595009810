"""The model behind the programs: it calls every tool that it is offered once, then answers as it is asked.

``calls`` names the tools to call instead, in order; ``asked`` the same for requests whose last question
holds a text; ``arguments`` what to call a tool with; ``says`` the text of an answer, and ``answers`` that of
requests whose last message holds a text. Everything else is made from the JSON schemas of the request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from agl_testing import tool_call

Schema = Mapping[str, Any]
TEXTS = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "email": "ann@example.org",
    "uri": "https://example.org",
}


@dataclass
class Script:
    """The answers to one program's requests."""

    calls: Sequence[str] | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    says: str = "Paris"
    values: Mapping[str, Any] = field(default_factory=dict)
    """Values of fields by their name, in any object that is made from a schema."""
    asked: Mapping[str, Sequence[str]] = field(default_factory=dict)
    answers: Mapping[str, str] = field(default_factory=dict)
    _numbers: count[int] = field(default_factory=count)

    def reply(self, body: Mapping[str, Any]) -> Any:
        """The answer to a chat request."""
        tools = {tool["function"]["name"]: tool["function"] for tool in body.get("tools") or ()}
        if (name := self._wanted(body, tools)) is not None:
            schema = tools[name].get("parameters") or {}
            given = self.arguments.get(name, example(schema, self.values))
            return tool_call(name, given, f"call_{next(self._numbers)}")
        form = body.get("response_format") or {}
        if form.get("type") == "json_schema":
            return json.dumps(example(form["json_schema"]["schema"], self.values))
        last = str(body["messages"][-1].get("content"))
        said = next((answer for text, answer in self.answers.items() if text in last), self.says)
        return "{}" if form.get("type") == "json_object" else said

    def _wanted(self, body: Mapping[str, Any], tools: Mapping[str, Any]) -> str | None:
        """The tool to call now: the one that is asked for, else the first that was not called yet."""
        choice = body.get("tool_choice")
        if not tools or choice == "none":
            return None
        if isinstance(choice, Mapping):
            return str(choice["function"]["name"])
        called = [
            call["function"]["name"]
            for message in body["messages"]
            for call in message.get("tool_calls") or ()
        ]
        planned = self._planned(body, tools)
        left = list(planned)
        for name in called:
            if name in left:
                left.remove(name)
        wanted = next((name for name in left if name in tools), None)
        if wanted is None and choice == "required":
            return next((name for name in reversed(planned) if name in tools), next(reversed(tools)))
        return wanted

    def _planned(self, body: Mapping[str, Any], tools: Mapping[str, Any]) -> list[str]:
        """All tools to call in this conversation, in order."""
        questions = [str(message.get("content")) for message in body["messages"] if message["role"] == "user"]
        last = questions[-1] if questions else ""
        for text, calls in self.asked.items():
            if text in last:
                return list(calls)
        return list(tools) if self.calls is None else list(self.calls)


def example(schema: Schema, values: Mapping[str, Any], root: Schema | None = None) -> Any:
    """A small value that ``schema`` describes. ``root`` is what references point into."""
    root = schema if root is None else root
    if "$ref" in schema:
        found: Any = root
        for key in schema["$ref"].removeprefix("#/").split("/"):
            found = found[key]
        return example(found, values, root)
    for key in ("const", "default"):
        if schema.get(key) is not None:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return example(schema[key][0], values, root)
    return _of_type(schema, values, root)


def _of_type(schema: Schema, values: Mapping[str, Any], root: Schema) -> Any:
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object" or "properties" in schema:
        fields = schema.get("properties") or {}
        return {
            name: values[name] if name in values else example(one, values, root)
            for name, one in fields.items()
            if name in (schema.get("required") or fields)
        }
    if kind == "array":
        return [example(schema.get("items") or {}, values, root)] * max(1, schema.get("minItems", 1))
    if kind in ("integer", "number"):
        return schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
    if kind == "boolean":
        return True
    return None if kind == "null" else TEXTS.get(str(schema.get("format")), "Paris")
