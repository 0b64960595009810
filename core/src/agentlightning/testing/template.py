"""A chat template and a tokenizer small enough to check by eye.

The template has the form of the hermes family: tools in the system turn, tool calls between ``<tool_call>``
marks. Tokens are UTF-8 bytes and a few marks, so whatever a framework drops or re-serialises changes the ids.
Invariant: ``decode(encode(text)) == text``, and the ids of an assistant turn that comes back verbatim equal
the prompt it was sampled from plus its response.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from jinja2 import StrictUndefined, Template
from jinja2.sandbox import ImmutableSandboxedEnvironment

MARKS = ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>")
"""Tokens 256, 257, …; all others are bytes."""
END = 256 + MARKS.index("<|im_end|>")
_SPLIT = re.compile("(" + "|".join(re.escape(mark) for mark in MARKS) + ")")

_TEMPLATE = """\
{%- if tools %}<|im_start|>system
# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif -%}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ body(message) }}<|im_end|>
{% endfor -%}
<|im_start|>assistant
"""


@lru_cache(maxsize=1)
def _template() -> Template:
    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
    return environment.from_string(_TEMPLATE)


def text_of(content: Any) -> str:
    """The text of a message's content: a string, a list of parts, or nothing."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.get("text", "") for part in content)


def body(message: Mapping[str, Any]) -> str:
    """A turn without its frame. Tool calls are rendered with their arguments as they came."""
    calls = (call["function"] for call in message.get("tool_calls") or ())
    marked = (
        f'<tool_call>{{"name": "{c["name"]}", "arguments": {c["arguments"]}}}</tool_call>' for c in calls
    )
    return text_of(message.get("content")) + "".join(marked)


def render(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None) -> str:
    """The prompt text of a chat request."""
    return _template().render(messages=messages, tools=tools or (), body=body)


def encode(text: str) -> list[int]:
    """Token ids: bytes, and one id for each mark."""
    ids: list[int] = []
    for piece in _SPLIT.split(text):
        ids.extend([256 + MARKS.index(piece)] if piece in MARKS else piece.encode())
    return ids


def decode(ids: Sequence[int]) -> str:
    """Inverse of :func:`encode`."""
    raw = b"".join(MARKS[i - 256].encode() if i >= 256 else bytes([i]) for i in ids)
    return raw.decode(errors="replace")
