"""Tokens as text: the vocabulary of the policy in a run's folder, special tokens by their names.

A policy's folder is in Hugging Face layout, so its ``tokenizer.json`` is read whatever driver trained it.
Invariant: every token has a text: its own, the name of a special token, or its id where no vocabulary is
known.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from agl_audit.run import OpenRun

_FILE = "tokenizer.json"


class TokenText(NamedTuple):
    """A token for people."""

    text: str
    special: bool
    """A token of the template or the tokenizer, which no text contains."""


class Vocabulary:
    """Ids to texts. ``note`` says why there are only ids."""

    def __init__(self, decode: Callable[[int], TokenText] | None, note: str = "") -> None:
        self._decode = decode
        self.note = note

    def texts(self, ids: Sequence[int]) -> list[TokenText]:
        """Return the text of each token by itself; a part of a character has the replacement character."""
        if self._decode is None:
            return [TokenText(f"⟨{token}⟩", False) for token in ids]
        return [self._decode(token) for token in ids]


def vocabulary(run: OpenRun, policy: str | None = None) -> Vocabulary:
    """Return the vocabulary of a policy of a run: of its newest folder, or of the one it was started from."""
    folders = [folder for folder, _ in run.policies(policy)]
    started = run.info.get("policy")
    if isinstance(started, str):
        folders.append(Path(started))
    for folder in folders:
        if (folder / _FILE).is_file():
            try:
                return _read(folder / _FILE, (folder / _FILE).stat().st_mtime_ns)
            except (OSError, ValueError) as error:
                return Vocabulary(None, f"{folder / _FILE}: {error}")
    return Vocabulary(None, "the run's folder holds no policy with a tokenizer.json: tokens are shown by id")


@lru_cache(maxsize=4)
def _read(file: Path, _: int) -> Vocabulary:
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises no class of its own
        raise ValueError(str(error)) from None
    added: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")).get("added_tokens") or []
    special = {int(one["id"]): str(one["content"]) for one in added}

    @lru_cache(maxsize=1 << 16)
    def decode(token: int) -> TokenText:
        if token in special:
            return TokenText(special[token], True)
        piece = tokenizer.id_to_token(token) if 0 <= token < 1 << 31 else None
        if piece is None:
            return TokenText(f"⟨{token}⟩", False)
        text = tokenizer.decode([token], skip_special_tokens=False)
        if piece.startswith("▁") and not text.startswith(" "):  # a decoder drops the space of a first token
            text = f" {text}"
        return TokenText(text or piece, False)

    return Vocabulary(decode)
