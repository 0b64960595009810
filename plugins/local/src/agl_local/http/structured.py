"""Which answers a request allows: OpenAI's and vLLM's fields, as a grammar or as a choice.

Invariant: a constraint is applied as a whole or refused with status 400 and the name of its field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from agentlightning.types import Grammar
from agl_local.generation.engine import Engine
from agl_local.http.fields import ApiError, field, strings
from agl_local.text.constraints import (
    ANY_OBJECT,
    CallForm,
    Schema,
    calls_grammar,
    json_grammar,
    json_or_calls_grammar,
    object_schema,
    regex_grammar,
    text_or_calls_grammar,
)
from agl_local.text.grammar import GrammarError

FIELDS = {"guided_choice", "guided_json", "guided_regex", "structured_outputs", "response_format"}
"""Fields of any request that constrain its answer."""
TOOL_FIELDS = {"tools", "tool_choice", "parallel_tool_calls"}
"""Fields of a chat request that do."""
_KINDS = ("choice", "json", "json_object", "regex")
Constraint = tuple[str, Grammar | list[str]] | None


def constraint_values(body: Mapping[str, Any], engine: Engine) -> dict[str, Any]:
    """Return the values of ``Sampling`` for the constraints of ``body``. Raise ApiError."""
    outputs = _outputs(body)
    form = _response_schema(body)
    tools = _Tools(body)
    if outputs and form is not None:
        raise ApiError(400, "give structured_outputs or response_format, not both", "response_format")
    if outputs and tools.forced:
        raise ApiError(400, "structured_outputs and a forced tool exclude each other", "tool_choice")
    if outputs:
        ((kind, value),) = outputs.items()
        if kind == "choice":
            texts = strings(value, "guided_choice")
            return {"guided_choice": tuple(tuple(engine.tokenizer.encode(text)) for text in texts)}
        param = f"structured_outputs.{kind}"
        text: str | None = _text_of(kind, value)
    else:
        param = "tools" if form is None else "response_format"
        text = tools.grammar(form, engine)
    if text is None:
        return {}
    try:
        return {"grammar": engine.grammars.check(text)}
    except GrammarError as error:
        raise ApiError(400, f"{param} cannot be applied: {error}", param, "unsupported_constraint") from error


def _outputs(body: Mapping[str, Any]) -> dict[str, Any]:
    """The one constraint of ``structured_outputs`` or ``guided_*``, by its kind."""
    given = {
        k: v for k, v in (field(body, "structured_outputs", dict) or {}).items() if v not in (None, False)
    }
    guided = {kind: body[name] for kind in _KINDS if body.get(name := f"guided_{kind}") is not None}
    if given and guided:
        raise ApiError(400, "give guided_* or structured_outputs, not both", "structured_outputs")
    found = given or guided
    unknown = sorted(set(found) - set(_KINDS))
    if unknown or len(found) > 1:
        raise ApiError(
            400,
            f"structured_outputs is supported with one of {', '.join(_KINDS)}, got {sorted(found)}",
            "structured_outputs",
        )
    return found


def _text_of(kind: str, value: Any) -> str:
    if kind == "json_object":
        return json_grammar(ANY_OBJECT)
    if kind == "regex":
        if not isinstance(value, str):
            raise ApiError(400, "a regex must be text", "structured_outputs.regex")
        return regex_grammar(value)
    return json_grammar(_schema(value, "structured_outputs.json"))


def _schema(value: Any, param: str) -> Schema:
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            raise ApiError(400, f"{param} is no JSON: {error}", param) from None
    if not isinstance(value, Mapping):
        raise ApiError(400, f"{param} must be a JSON schema as an object, got {type(value).__name__}", param)
    return value


def _response_schema(body: Mapping[str, Any]) -> Schema | None:
    """The schema that ``response_format`` asks for; None for text."""
    form = field(body, "response_format", dict)
    kind = None if form is None else form.get("type")
    if form is None or kind == "text":
        return None
    if kind == "json_object":
        return ANY_OBJECT
    if kind != "json_schema":
        raise ApiError(
            400,
            f"response_format.type must be 'text', 'json_object' or 'json_schema', got {kind!r}",
            "response_format.type",
        )
    named = form.get("json_schema")
    if not isinstance(named, Mapping) or named.get("schema") is None:
        raise ApiError(400, "response_format.json_schema.schema is missing", "response_format.json_schema")
    return _schema(named["schema"], "response_format.json_schema.schema")


class _Tools:
    """The tools of a request, and how it wants them called."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.given = {tool["function"]["name"]: tool["function"] for tool in check_tools(body) or ()}
        self.named, self.choice = self._read_choice(body.get("tool_choice"))
        parallel = field(body, "parallel_tool_calls", bool)
        self.many = parallel is not False and self.named is None

    @property
    def forced(self) -> bool:
        """Whether the answer must be a call."""
        return self.choice == "required"

    def grammar(self, form: Schema | None, engine: Engine) -> str | None:
        """The grammar of answers of the form ``form`` (None: text) or of calls; None where all is allowed."""
        if self.forced:
            return calls_grammar(self._schemas(all_of_them=True), _call_form(engine), many=self.many)
        if not self.given or self.choice == "none":
            return None if form is None else json_grammar(form)
        if form is not None:
            return json_or_calls_grammar(form, self._schemas(), _call_form(engine), many=self.many)
        if self.many and not any(tool.get("strict") for tool in self.given.values()):
            return None
        return text_or_calls_grammar(self._schemas(), _call_form(engine), many=self.many)

    def _schemas(self, all_of_them: bool = False) -> dict[str, Schema]:
        """Name to schema of the arguments. Where a call is the model's own choice, only strict tools have
        theirs.
        """
        names = self.given if self.named is None else [self.named]
        out: dict[str, Schema] = {}
        for name in names:
            tool = self.given[name]
            exact = all_of_them or bool(tool.get("strict"))
            try:
                out[name] = object_schema(tool.get("parameters")) if exact else ANY_OBJECT
            except ValueError as error:
                raise ApiError(400, f"tool {name!r}: {error}", "tools") from None
        return out

    def _read_choice(self, choice: Any) -> tuple[str | None, str]:
        """(the named tool, auto | none | required)."""
        if isinstance(choice, Mapping):
            function = choice.get("function") if choice.get("type") == "function" else None
            name = function.get("name") if isinstance(function, Mapping) else None
            if name not in self.given:
                raise ApiError(
                    400, f"tool_choice names {name!r}, tools has {sorted(self.given)}", "tool_choice"
                )
            return name, "required"
        if choice in (None, "auto", "none"):
            return None, choice or "auto"
        if choice != "required":
            raise ApiError(
                400, f"tool_choice must be auto, none, required or a function, got {choice!r}", "tool_choice"
            )
        if not self.given:
            raise ApiError(400, "tool_choice 'required' needs tools", "tool_choice")
        return None, "required"


def _call_form(engine: Engine) -> CallForm:
    """How the policy of ``engine`` writes calls, for a grammar."""
    form = CallForm.of(engine.tokenizer.syntax, engine.tokenizer.special_tokens)
    if form is None:
        raise ApiError(
            400,
            f"the policy's chat template writes calls in a way ({engine.tokenizer.syntax.kind}) that no "
            "grammar describes: leave out tool_choice, strict and parallel_tool_calls",
            "tools",
            "unsupported_constraint",
        )
    return form


def check_tools(body: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the tools of ``body``, None where there are none. Raise ApiError for another shape."""
    tools = field(body, "tools", list)
    for tool in tools or ():
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ApiError(
                400, "each of tools must be {'type': 'function', 'function': {'name': …}}", "tools"
            )
    return tools or None
