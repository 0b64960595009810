"""Chat templates as published with models: jinja2 in a sandbox, with the variables and functions they need.

A template is somebody else's code: it runs in an immutable sandbox and sees messages, tools and special
tokens, nothing else. Convention: the chat templating guide of the transformers documentation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = Mapping[str, Any]


class TemplateError(ValueError):
    """The template is broken, or it refused the messages (``raise_exception``); the text says which."""


class _Generation(Extension):
    """``{% generation %} … {% endgeneration %}`` marks assistant text; rendering keeps what is inside."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled chat template: ``render`` is a pure function of its arguments (but for ``strftime_now``)."""

    def __init__(self, source: str) -> None:
        self.source = source
        env = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
        )
        env.filters["tojson"] = _tojson
        env.globals["raise_exception"] = _raise_exception
        env.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
        try:
            self._template = env.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"chat template, line {error.lineno}: {error.message}") from error

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> str:
        """The prompt text. Raises TemplateError with the template's own reason."""
        try:
            return self._template.render(
                {
                    **variables,
                    "messages": [_plain(message) for message in messages],
                    "tools": list(tools) if tools else None,
                    "documents": None,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except (jinja2.TemplateError, TypeError, KeyError, AttributeError) as error:
            raise TemplateError(f"chat template: {error}") from error


def _plain(message: Message) -> dict[str, Any]:
    """Text parts become one string, joined by newlines; other parts are refused. Nothing else is touched."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return dict(message)
    if not isinstance(content, Sequence):
        raise TemplateError(
            f"message content must be text, null or a list of parts, not {type(content).__name__}"
        )
    texts: list[str] = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise TemplateError(
                f"message content part of type {kind!r} is not supported: this engine reads text only. Leave "
                "images and other media out, or serve the policy with an engine that takes them"
            )
        texts.append(part["text"])
    return {**message, "content": "\n".join(texts)}


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML escaping: jinja2's own filter would write ``&`` and ``<`` as escapes."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
