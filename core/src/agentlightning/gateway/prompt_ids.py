"""Token ids of prompts, parsed once.

An engine answers with the ids of the whole prompt, and a prompt begins with the prompt and response of the
call before it: parsing them again is most of a long call's CPU (65,000 ids: 4 ms). So the JSON text of the
last ids of a long prompt is kept, and if an answer's ids begin with that text, only the rest is parsed.

Invariant: the ids are the engine's own. The part that is not parsed was compared byte by byte.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

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
    size: int = field(init=False)
    """Bytes of both, when they were kept."""

    def __post_init__(self) -> None:
        self.size = len(self.text) + len(self.ids.data)

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
        """Return ``decode(raw)`` with the ids of the prompt as an array. If the answer has one choice, the
        ids of its response follow in the same memory. ``key``: attempt and branch.
        """
        at = raw.rfind(_KEY)  # engines write it behind the choices
        if at < 0:
            return decode(raw)
        start = at + len(_KEY)
        prompt = raw[start : raw.find(b"]", start)]
        known, keep = self._known.get(key), len(prompt) >= _SHORT
        if (known or keep) and raw.rfind(_KEY, 0, at) >= 0:  # several prompts
            known, keep = None, False
        text, length = known.match(raw, start) if known else (0, 0)
        rest = start + text + (raw[start + text : start + text + 1] == b"," and text > 0)
        answer = decode(raw[:start] + raw[rest:] if text else raw)
        holders = [part for part in (answer, *answer.choices) if part.prompt_token_ids is not None]
        if len(holders) != 1:
            return answer
        (holder,) = holders
        data = known.buffer(length) if known else PrefixDigests()
        data = _appended(data, pack(holder.prompt_token_ids))
        holder.prompt_token_ids, own = _ids(data, 0), len(data.data)
        response = answer.choices[0].token_ids if len(answer.choices) == 1 else None
        if response:
            data = _appended(data, pack(response))
            answer.choices[0].token_ids = _ids(data, own)
        if keep:
            written = b"," + msgspec.json.encode(response)[1:-1] if response else b""
            self._keep(key, _Known(prompt + written, len(prompt), data, own))
        return answer

    def _keep(self, key: tuple[str, str], known: _Known) -> None:
        if (old := self._known.pop(key, None)) is not None:
            self._bytes -= old.size
        self._known[key] = known
        self._bytes += known.size
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
