"""A chat template and a tokenizer that can be checked by eye.

The template follows the Hermes format: tools in the system turn, tool calls between ``<tool_call>`` tokens.
A token is a UTF-8 byte or one of a few special tokens. So the ids change with anything that a framework drops
or serialises anew. Invariants: ``decode(encode(text)) == text``; a prompt that continues with an assistant
turn verbatim begins with the ids of that turn's prompt and response.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from jinja2 import StrictUndefined, Template
from jinja2.sandbox import ImmutableSandboxedEnvironment

MARKS = ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>")
"""The special tokens 256, 257, …. Tokens below 256 are bytes."""
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
    """Return the text of a message's content: a string, a list of parts, or ``None``."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.get("text", "") for part in content)


def body(message: Mapping[str, Any]) -> str:
    """Return the text of a turn between its role and its end token. Arguments of tool calls stay verbatim."""
    calls = (call["function"] for call in message.get("tool_calls") or ())
    marked = (
        f'<tool_call>{{"name": "{c["name"]}", "arguments": {c["arguments"]}}}</tool_call>' for c in calls
    )
    return text_of(message.get("content")) + "".join(marked)


def render(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None) -> str:
    """Return the prompt of a chat request as text."""
    return _template().render(messages=messages, tools=tools or (), body=body)


def encode(text: str) -> list[int]:
    """Return the token ids of a text: its bytes, and one id for each special token."""
    ids: list[int] = []
    for piece in _SPLIT.split(text):
        ids.extend([256 + MARKS.index(piece)] if piece in MARKS else piece.encode())
    return ids


def decode(ids: Sequence[int]) -> str:
    """Return the text of token ids."""
    raw = b"".join(MARKS[i - 256].encode() if i >= 256 else bytes([i]) for i in ids)
    return raw.decode(errors="replace")
