"""Token ids to text, piece by piece, with stop strings.

Invariant: the pieces concatenate to the text of the whole, cut before the first stop string, however the
ids were fed. Text that may still become a stop string, or half a character, is held back until it is
decided.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from agl_local.text.tokenizer import ChatTokenizer


class TextStream:
    """Incremental decoding of one response; of special tokens, those alone have a text that mark calls."""

    def __init__(self, tokenizer: ChatTokenizer, stop: Sequence[str] = ()) -> None:
        self.tokenizer = tokenizer
        self.stop = tuple(stop)
        self.stopped_by: str | None = None
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._ids: list[int] = []
        self._decoded = ""
        self._held = ""

    def push(self, token: int) -> str:
        """Feed one id; the text that is now certain (often one token's, sometimes none or several)."""
        return self._release(self._decode([token]))

    def push_all(self, tokens: Sequence[int]) -> str:
        """Feed several ids at once: less work, the same text."""
        return self._release(self._decode(tokens))

    def finish(self) -> str:
        """No more ids: the rest of the text."""
        if self.stopped_by is not None:
            return ""
        if self.tokenizer.byte_level:
            tail = self._utf8.decode(b"", final=True)
        else:
            tail = self.tokenizer.decode(self._ids)[len(self._decoded) :]
        ready = self._release(tail)
        ready, self._held = ready + self._held, ""
        return ready

    def _decode(self, tokens: Sequence[int]) -> str:
        shown = [token for token in tokens if not self.tokenizer.is_hidden(token)]
        if self.tokenizer.byte_level:
            raw = self.tokenizer.token_bytes
            return self._utf8.decode(b"".join([raw(t) for t in shown]))
        # Other decoders look at neighbours (leading spaces): decode all, keep what no token can change.
        self._ids.extend(shown)
        whole = self.tokenizer.decode(self._ids)
        if whole.endswith("\ufffd") or not whole.startswith(self._decoded):
            return ""
        fresh, self._decoded = whole[len(self._decoded) :], whole
        return fresh

    def _release(self, fresh: str) -> str:
        if self.stopped_by is not None:
            return ""
        text = self._held + fresh
        found = [(at, s) for s in self.stop if (at := text.find(s)) >= 0]
        if found:
            at, self.stopped_by = min(found, key=lambda hit: hit[0])
            self._held = ""
            return text[:at]
        keep = max((_overlap(text, s) for s in self.stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, word: str) -> int:
    """Length of the longest end of ``text`` that is a proper beginning of ``word``."""
    for size in range(min(len(word) - 1, len(text)), 0, -1):
        if word.startswith(text[-size:]):
            return size
    return 0
