"""Token ids of prompts, parsed once.

An engine answers with the ids of the whole prompt, and a prompt begins with the prompt and response of the
call before it: parsing them again is most of a long call's CPU (65,000 ids: 4 ms). So the JSON text of the
last ids is kept, and if an answer's ids begin with that text, only the rest is parsed.

Invariant: the ids are the engine's own. The part that is not parsed was compared byte by byte.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from agentlightning.gateway.upstream.answer import EngineAnswer
from agentlightning.types.tokens import WIDTH, PrefixDigests, TokenIds, pack

_KEY = b'"prompt_token_ids":['
_SHORT = 4096
"""Bytes of JSON text below which parsing again is cheap."""
_MAX_BYTES = 128 << 20
"""Bytes kept in total; beyond it, the least recently used prompts are dropped."""


@dataclass(slots=True)
class _Known:
    """Ids as the engine wrote them: of a prompt, and of the response after it."""

    text: bytes
    prompt: int
    """Bytes of ``text`` that are the prompt's."""
    ids: PrefixDigests
    prompt_ids: int
    """Bytes of ``ids`` that are the prompt's."""
    size: int
    """Bytes of both, when it was kept."""

    def match(self, raw: bytes, start: int) -> tuple[int, int]:
        """The longest known beginning of the ids at ``start``: its bytes of text, and of ids."""
        for text, ids in ((len(self.text), len(self.ids.data)), (self.prompt, self.prompt_ids)):
            end = start + text
            if raw[end : end + 1] in (b",", b"]") and raw.startswith(memoryview(self.text)[:text], start):
                return text, ids
        return 0, 0

    def buffer(self, length: int) -> PrefixDigests:
        """A buffer with the first ``length`` bytes of the ids: this one, if it has no more."""
        return self.ids if len(self.ids.data) == length else PrefixDigests(self.ids.data[:length])


class PromptCache:
    """The last prompt of each branch of each attempt."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()
        self._bytes = 0

    def decode(self, key: tuple[str, str], raw: bytes, decode: Callable[[bytes], Any]) -> Any:
        """Return ``decode(raw)`` with the ids of the prompt as an array. ``key``: attempt and branch."""
        start = raw.find(_KEY) + len(_KEY)
        end = raw.find(b"]", start)
        if start < len(_KEY) or end - start < _SHORT or raw.find(_KEY, start) >= 0:
            return decode(raw)
        known = self._known.get(key) or _Known(b"", 0, PrefixDigests(), 0, 0)
        text, length = known.match(raw, start)
        rest = start + text + (raw[start + text : start + text + 1] == b"," and text > 0)
        answer = decode(raw[:start] + raw[rest:] if text else raw)
        parts = [answer, *answer.choices]
        holder = next((part for part in parts if part.prompt_token_ids is not None), None)
        if holder is None:
            return answer
        data = _appended(known.buffer(length), pack(holder.prompt_token_ids or ()))
        holder.prompt_token_ids = _ids(data, 0)
        self._keep(key, raw[start:end], data, answer)
        return answer

    def _keep(self, key: tuple[str, str], text: bytes, data: PrefixDigests, answer: EngineAnswer) -> None:
        """Keep the beginning of later prompts: the prompt, and the response if it is the only one."""
        prompt, own = len(text), len(data.data)
        if len(answer.choices) == 1 and (response := answer.choices[0].token_ids):
            text += b"," + msgspec.json.encode(response)[1:-1]
            data = _appended(data, pack(response))
            answer.choices[0].token_ids = _ids(data, own)
        if (old := self._known.pop(key, None)) is not None:
            self._bytes -= old.size
        size = len(text) + len(data.data)
        self._known[key] = _Known(text, prompt, data, own, size)
        self._bytes += size
        while self._bytes > _MAX_BYTES:
            self._bytes -= self._known.popitem(last=False)[1].size


def _appended(data: PrefixDigests, more: bytes) -> PrefixDigests:
    """The buffer with ``more`` at its end; a copy, if its memory is in use."""
    try:
        data.data += more
    except BufferError:
        return PrefixDigests(data.data + more)
    return data


def _ids(data: PrefixDigests, start: int) -> list[int]:
    """The ids from byte ``start`` on, in the place of an answer's list."""
    return cast("list[int]", TokenIds.of(data, start // WIDTH, len(data.data) // WIDTH))
