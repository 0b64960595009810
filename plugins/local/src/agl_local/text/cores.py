"""Five ways to write a call: as a JSON object, as a name followed by JSON, as tags for each argument, as a
call in Python, or as Gemma's objects; and the syntaxes that no template has to show.

Each reads one call at a place of a block, strictly: for anything else it raises ValueError with the reason.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agl_local.text.syntax import (
    DECODER,
    ID_PATTERN,
    NAME_PATTERN,
    CallSyntax,
    Core,
    RawCall,
    Schemas,
    Writing,
    expect,
    skip,
    tolerant,
)

_DEEPEST = 100
"""Brackets within brackets in a call that is no JSON."""
_CDATA = re.compile(r"\A<!\[CDATA\[(.*)\]\]>\Z", re.DOTALL)
_PYTHON: Mapping[str, bool | None] = {"True": True, "False": False, "None": None}
"""What some templates write for JSON's true, false and null."""


def json_core(
    name_key: str, arguments_key: str, others: frozenset[str] = frozenset(), inner: str = ""
) -> Core:
    """Calls as JSON objects, or a list of them. ``others``: keys beside these two; a key of an id is the id.
    ``inner``: the key of the object that holds both, where they lie deeper. No keys: ``{name: arguments}``.
    """

    def read(body: str, at: int, _: Schemas) -> tuple[list[RawCall], int]:
        at = skip(body, at)
        if body[at : at + 1] != "[":
            call, end = read_one(body, at)
            return [call], end
        found: list[RawCall] = []
        at = skip(body, at + 1)
        while body[at : at + 1] != "]":
            if found:
                at = skip(body, expect(body, at, ","))
            call, at = read_one(body, at)
            found.append(call)
            at = skip(body, at)
        return found, at + 1

    def read_one(body: str, at: int) -> tuple[RawCall, int]:
        spans, end = _top_level(body, at)
        ident = next((v for k, (v, _, _) in spans.items() if k.endswith("id") and isinstance(v, str)), None)
        if inner:
            _only(spans, {inner, *others})
            if inner not in spans:
                raise ValueError(f"the call has no {inner!r}")
            spans, _ = _top_level(body, spans[inner][1])
        if not name_key:
            if len(spans) != 1:
                raise ValueError("the call is not an object with the name as its only key")
            ((name, arguments),) = spans.items()
        else:
            _only(spans, {name_key, arguments_key, *others})
            for key in (name_key, arguments_key):
                if key not in spans:
                    raise ValueError(f"the call has no {key!r}")
            name, arguments = spans[name_key][0], spans[arguments_key]
        if not isinstance(name, str):
            raise ValueError("the name is not a printable string")
        return RawCall(name, _object(body, arguments), _as_id(ident)), end

    return read


def _only(spans: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(set(spans) - known)
    if unknown:
        raise ValueError(f"unexpected keys {unknown}")


def _object(body: str, value: tuple[Any, int, int]) -> str:
    if not isinstance(value[0], dict):
        raise ValueError(f"the arguments are {type(value[0]).__name__}, not an object")
    return body[value[1] : value[2]]


def _as_id(given: str | None) -> str | None:
    return given if given is not None and re.fullmatch(ID_PATTERN, given) else None


def _top_level(body: str, at: int) -> tuple[dict[str, tuple[Any, int, int]], int]:
    """Values of the JSON object at ``at`` with their places, by key, and where it ends."""
    at = skip(body, at)
    if body[at : at + 1] != "{":
        raise ValueError("the call is not a JSON object")
    found: dict[str, tuple[Any, int, int]] = {}
    at = skip(body, at + 1)
    while body[at : at + 1] != "}":
        if found:
            at = skip(body, expect(body, at, ","))
        expect(body, at, '"')
        key, at = DECODER.raw_decode(body, at)
        if key in found:
            raise ValueError(f"the key {key!r} appears twice")
        at = skip(body, expect(body, skip(body, at), ":"))
        value, end = DECODER.raw_decode(body, at)
        found[key] = (value, at, end)
        at = skip(body, end)
    return found, at + 1


# ------------------------------------------------------------------------------------------------------ named
def named_core(middle: str) -> Core:
    """A name, the literal ``middle``, and the arguments as JSON."""
    pattern = re.compile(f"(?P<name>{NAME_PATTERN})" + tolerant(middle) + r"(?=\{)")

    def read(body: str, at: int, _: Schemas) -> tuple[list[RawCall], int]:
        found = pattern.match(body, at)
        if found is None:
            raise ValueError(f"expected a name and {middle.strip()!r} at character {at} of the block")
        value, end = DECODER.raw_decode(body, found.end())
        arguments = _object(body, (value, found.end(), end))
        return [RawCall(found["name"], arguments, found.groupdict().get("id"))], end

    return read


# ------------------------------------------------------------------------------------------------------- tags
def tags_core(
    after_name: str, before_key: str, after_key: Sequence[str], after_value: str, tail: str
) -> Core:
    """A name, and a key and a value in tags for each argument. ``after_key``: the literals between key and
    value, of which values of another type may have another. A value is a string where the tool's schema says
    so; else it is read as JSON.
    """
    name = re.compile(f"(?P<name>{NAME_PATTERN.removesuffix('?')})" + tolerant(after_name))
    between = "|".join(map(_exact_end, sorted(set(after_key), key=len, reverse=True)))
    value_ends = rf"{_exact_start(after_value)}(?={tolerant(before_key)}|{tolerant(tail)}|\s*\Z)"
    pair = re.compile(
        rf"{tolerant(before_key)}(?P<key>{NAME_PATTERN})(?:{between})(?P<value>.*?){value_ends}", re.DOTALL
    )

    def read(body: str, at: int, schemas: Schemas) -> tuple[list[RawCall], int]:
        begun = name.match(body, at)
        if begun is None:
            raise ValueError(f"expected a name at character {at} of the block")
        called, at, arguments = begun["name"], begun.end(), dict[str, Any]()
        while (one := pair.match(body, at)) is not None:
            if one["key"] in arguments:
                raise ValueError(f"the argument {one['key']!r} appears twice")
            arguments[one["key"]] = typed(one["value"], _types(schemas, called, one["key"]))
            at = one.end()
        return [RawCall(called, json.dumps(arguments, ensure_ascii=False), begun.groupdict().get("id"))], at

    return read


def _exact_end(literal: str) -> str:
    """As ``tolerant``, but of white space at the end only the literal's own: more belongs to the value."""
    kept = literal.rstrip()
    return tolerant(kept).removesuffix(r"\s*") + (
        f"(?:{re.escape(literal[len(kept) :])})?" if kept != literal else ""
    )


def _exact_start(literal: str) -> str:
    kept = literal.lstrip()
    space = literal[: len(literal) - len(kept)]
    return (f"(?:{re.escape(space)})?" if space else "") + tolerant(kept).removeprefix(r"\s*")


def _types(schemas: Schemas, tool: str, key: str) -> set[str]:
    """The JSON types that the schema of a tool allows an argument; none: it does not say."""
    properties = schemas.get(tool, {}).get("properties")
    schema = properties.get(key) if isinstance(properties, Mapping) else None
    options = [schema, *(schema.get("anyOf") or ())] if isinstance(schema, Mapping) else []
    given = [o.get("type") for o in options if isinstance(o, Mapping)]
    return {t for one in given for t in (one if isinstance(one, list) else [one]) if isinstance(t, str)}


def typed(text: str, types: set[str]) -> Any:
    """The value that a tag holds, for an argument of ``types``."""
    text = _CDATA.sub(r"\1", text)
    if types == {"string"}:
        return text
    try:
        value = _PYTHON[text.strip()] if text.strip() in _PYTHON else DECODER.decode(text)
    except ValueError:
        value = _python_value(text) if text[:1] in ("{", "[") else text
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    kind = kinds.get(type(value), "null")
    fits = not types or kind in types or (kind == "integer" and "number" in types)
    return text if not fits and "string" in types else value


# ----------------------------------------------------------------------------------------------------- python
def _parse_python(text: str) -> list[ast.stmt]:
    """The statements of ``text``, which are only read. Raise ValueError."""
    depth = 0
    for char in text:
        depth += (char in "([{") - (char in ")]}")
        if depth > _DEEPEST:
            raise ValueError("the call is nested too deeply")
    try:
        return ast.parse(text.strip()).body
    except (SyntaxError, MemoryError, ValueError) as error:
        raise ValueError(f"the calls are not in Python's syntax: {error}") from None


def _python_value(text: str) -> Any:
    """An object or list as Python writes it, as some templates do; the text itself if it is none."""
    try:
        (statement,) = _parse_python(text)
        return _literal(statement.value) if isinstance(statement, ast.Expr) else text
    except ValueError:
        return text


def python_core(body: str, at: int, _: Schemas) -> tuple[list[RawCall], int]:
    """Calls in Python with keyword arguments, in a list or one after another; nothing is evaluated."""
    nodes = [one.value for one in _parse_python(body[at:]) if isinstance(one, ast.Expr)]
    if len(nodes) == 1 and isinstance(nodes[0], ast.List | ast.Tuple):
        nodes = list(nodes[0].elts)
    return [_python_call(node) for node in nodes], len(body)


def _python_call(node: ast.expr) -> RawCall:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call with keyword arguments")
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("not a call with keyword arguments")
        arguments[keyword.arg] = _literal(keyword.value)
    return RawCall(ast.unparse(node.func), json.dumps(arguments, ensure_ascii=False))


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[node.id]
    if isinstance(node, ast.List):
        return [_literal(one) for one in node.elts]
    if isinstance(node, ast.Dict):
        keys = [_literal(key) if key is not None else None for key in node.keys]
        if not all(isinstance(key, str) for key in keys):
            raise ValueError("a key is not a string")
        return dict(zip(keys, map(_literal, node.values), strict=True))
    value = ast.literal_eval(node)
    if not isinstance(value, str | int | float | None):
        raise ValueError(f"{type(value).__name__} is no JSON value")
    return value


# ------------------------------------------------------------------------------------------------------ gemma
QUOTE = '<|"|>'
"""What stands around a string."""


def gemma_core(body: str, at: int, _: Schemas) -> tuple[list[RawCall], int]:
    """A name and an object with bare keys, whose strings stand in ``<|"|>``."""
    begun = re.compile(rf"(?P<name>{NAME_PATTERN})(?=\{{)").match(body, at)
    if begun is None:
        raise ValueError(f"expected a name and {{ at character {at} of the block")
    value, end = _gemma_value(body, begun.end(), 0)
    return [RawCall(begun["name"], json.dumps(value, ensure_ascii=False))], end


def _gemma_value(body: str, at: int, depth: int) -> tuple[Any, int]:
    if depth > _DEEPEST:
        raise ValueError("the call is nested too deeply")
    if body.startswith(QUOTE, at):
        end = body.find(QUOTE, at + len(QUOTE))
        if end < 0:
            raise ValueError("a string has no end")
        return body[at + len(QUOTE) : end], end + len(QUOTE)
    if body[at : at + 1] not in ("{", "["):
        scalar = re.compile(r"[^,\]}\s]+").match(body, at)
        if scalar is None:
            raise ValueError(f"expected a value at character {at} of the block")
        if scalar[0] in _PYTHON:
            return _PYTHON[scalar[0]], scalar.end()
        return DECODER.decode(scalar[0]), scalar.end()
    close = "}" if body[at] == "{" else "]"
    items: list[tuple[str, Any]] = []
    at = skip(body, at + 1)
    while body[at : at + 1] != close:
        if items:
            at = skip(body, expect(body, at, ","))
        key = ""
        if close == "}":
            named = re.compile(r'(?:<\|"\|>)?([^:{}\[\],]+?)(?:<\|"\|>)?:').match(body, at)
            if named is None:
                raise ValueError(f"expected a key at character {at} of the block")
            key, at = named[1], skip(body, named.end())
        value, at = _gemma_value(body, at, depth + 1)
        items.append((key, value))
        at = skip(body, at)
    return (dict(items) if close == "}" else [value for _, value in items]), at + 1


HERMES = CallSyntax(
    "json",
    ("<tool_call>",),
    "</tool_call>",
    json_core("name", "arguments"),
    single=True,
    writing=Writing(
        '<tool_call>\n{"name": "',
        '", "arguments": ',
        "}\n</tool_call>",
        '}\n</tool_call>\n<tool_call>\n{"name": "',
    ),
)
"""``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, one call a block."""
GRANITE = CallSyntax(
    "json",
    ("<|tool_call|>",),
    "",
    json_core("name", "arguments"),
    writing=Writing('<|tool_call|>[{"name": "', '", "arguments": ', "}]", '}, {"name": "'),
)
"""``<|tool_call|>[{"name": …, "arguments": {…}}, …]``."""
LFM = CallSyntax("python", ("<|tool_call_start|>",), "<|tool_call_end|>", python_core)
"""``<|tool_call_start|>[name(key=value), …]<|tool_call_end|>``."""
