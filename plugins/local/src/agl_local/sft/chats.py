"""Training chats: OpenAI's fine-tuning format, checked row by row before anything is trained.

A row is ``{"messages": [...], "tools": [...]}``, ``tools`` optional; an assistant message with
``"weight": 0`` is context. Source: OpenAI, "Supervised fine-tuning", format of the training file.

Invariants: an error names the file and the line; no row is left out and no token is cut without a count.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentlightning.types import UsageError
from agentlightning.types.base import NotJSON, json_lines
from agl_local.text.tokenizer import ChatTokenizer
from agl_local.training.sft import ChatSample, encode_chat

ROLES = ("system", "developer", "user", "assistant", "tool")
_ROW_KEYS = {"messages", "tools", "parallel_tool_calls"}
_OLD_KEYS = {
    "functions": "tools",
    "function_call": "tool_calls",
    "prompt": "messages",
    "completion": "messages",
}


class ChatDataError(UsageError, ValueError):
    """Training data that cannot be used; the message names the file, the line and the remedy."""


@dataclass(frozen=True)
class Chat:
    """One training row. ``place`` says where it was read, for messages: ``train.jsonl, line 3``."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    place: str = "a chat"


@dataclass(frozen=True)
class ChatSet:
    """Chats with the name of their source and the sha256 of their content."""

    chats: tuple[Chat, ...]
    source: str
    sha256: str


@dataclass(frozen=True)
class EncodedChats:
    """Token sequences of a chat set, and what is not among them."""

    samples: tuple[ChatSample, ...]
    chats: int
    """Chats that the samples come from; usually one sample each."""
    beginnings: tuple[str, ...]
    """The first message of the chat that a sample comes from, as JSON."""
    too_long: tuple[str, ...]
    """Places of the chats that have more than ``max_len`` tokens. They are left out whole, never cut."""

    @property
    def trained(self) -> int:
        """Return the number of trained tokens."""
        return sum(len(sample.trained) for sample in self.samples)


def read_chats(path: str | Path) -> ChatSet:
    """Read a JSONL file with one chat a line; blank lines are skipped. Raise :class:`ChatDataError`."""
    path = Path(path)
    try:
        content = path.read_bytes()
        lines = json_lines(content.decode("utf-8"), str(path))
        chats = tuple(check_row(row, f"{path}:{number}") for number, row in lines)
    except NotJSON as error:
        raise ChatDataError(str(error)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ChatDataError(f"{path}: {error}; give a JSONL file in UTF-8") from None
    if not chats:
        raise ChatDataError(f"{path}: the file has no rows")
    return ChatSet(chats, str(path), hashlib.sha256(content).hexdigest())


def chats_of(rows: Iterable[Any], source: str) -> ChatSet:
    """Check rows that a program made. Raise :class:`ChatDataError`, which counts rows from 1."""
    rows = list(rows)
    chats = tuple(check_row(row, f"{source}, row {i}") for i, row in enumerate(rows, start=1))
    if not chats:
        raise ChatDataError(f"{source}: there are no rows")
    text = json.dumps(rows, sort_keys=True, ensure_ascii=False)
    return ChatSet(chats, source, hashlib.sha256(text.encode()).hexdigest())


def encode(tokenizer: ChatTokenizer, chats: Sequence[Chat], max_len: int, positions: int = 0) -> EncodedChats:
    """Encode chats as the engine would see them. Raise :class:`ChatDataError` for a chat that the template
    refuses, and if none is left to train on; up to ``positions`` of the policy ``max_len`` could be raised.
    """
    samples: list[ChatSample] = []
    beginnings: list[str] = []
    too_long: list[str] = []
    for chat in chats:
        try:
            encoded = encode_chat(tokenizer, chat.messages, chat.tools)
        except ValueError as error:
            raise ChatDataError(f"{chat.place}: {error}") from error
        if any(len(sample.ids) > max_len for sample in encoded):
            too_long.append(chat.place)
        else:
            samples += encoded
            beginnings += [json.dumps(chat.messages[0], sort_keys=True)] * len(encoded)
    if not samples:
        remedy = "more than the policy has positions for; give shorter ones"
        if max_len < positions:
            remedy = f"raise max_len; the policy has {positions} positions"
        raise ChatDataError(
            f"{chats[0].place if chats else 'no chats'}: all {len(chats)} chats have more than {max_len} "
            f"tokens: {remedy}"
        )
    return EncodedChats(tuple(samples), len(chats) - len(too_long), tuple(beginnings), tuple(too_long))


def check_row(row: Any, place: str) -> Chat:
    """Return a row as a chat. Raise :class:`ChatDataError` if it is not in the format."""
    if not isinstance(row, Mapping):
        raise ChatDataError(f"{place}: a row is an object with messages, not {type(row).__name__}")
    for key in row:
        if key not in _ROW_KEYS:
            hint = f"; {_OLD_KEYS[key]} replaces it" if key in _OLD_KEYS else ""
            raise ChatDataError(f"{place}: unknown key {key!r}{hint}; a row has messages and tools")
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ChatDataError(f"{place}: messages must be a list with at least one message")
    for number, message in enumerate(messages, start=1):
        _check_message(message, f"{place}, message {number}")
    if not any(_is_trained(message) for message in messages):
        raise ChatDataError(f"{place}: no assistant message to train on")
    tools = row.get("tools")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(t, Mapping) for t in tools)):
        raise ChatDataError(f"{place}: tools must be a list of objects")
    return Chat(messages, tools or None, place)


def _check_message(message: Any, place: str) -> None:
    role = message.get("role") if isinstance(message, Mapping) else None
    if role not in ROLES:
        raise ChatDataError(f"{place}: needs a role, one of {', '.join(ROLES)}; found {role!r}")
    if "function_call" in message:
        raise ChatDataError(f"{place}: function_call is not read; tool_calls replaces it")
    if message.get("weight", 1) not in (0, 1) or ("weight" in message and role != "assistant"):
        raise ChatDataError(f"{place}: weight is 0 or 1, for assistant messages; found {message['weight']!r}")
    content, calls = message.get("content"), message.get("tool_calls")
    if content is not None and not isinstance(content, str | list):
        raise ChatDataError(f"{place}: content must be text, not {type(content).__name__}")
    if not content and not (role == "assistant" and calls) and role != "tool":
        raise ChatDataError(f"{place}: the {role} message has no content")


def _is_trained(message: Mapping[str, Any]) -> bool:
    return bool(message["role"] == "assistant" and message.get("weight", 1) == 1)
