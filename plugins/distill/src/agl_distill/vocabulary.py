"""Whether teacher and policy read the same ids as the same tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentlightning.types import UsageError


class OtherVocabulary(UsageError, ValueError):
    """Teacher and policy have other tokenizers."""


def check_same_vocabulary(policy: Path, teacher: Path) -> None:
    """Raise :class:`OtherVocabulary` unless both folders give each id the same token, added ones included."""
    own, theirs = read_vocabulary(policy), read_vocabulary(teacher)
    if own == theirs:
        return
    other = sorted(id_ for id_ in {*own, *theirs} if own.get(id_) != theirs.get(id_))
    first = other[0]
    raise OtherVocabulary(
        f"distill.teacher: {teacher} has another tokenizer than the policy {policy}: {len(other)} ids "
        f"differ, the first is {first} ({_shown(own.get(first))} of the policy, {_shown(theirs.get(first))} "
        "of the teacher); a teacher scores the ids that the policy sampled, so take one of the same family"
    )


def _shown(token: str | None) -> str:
    return "no token" if token is None else repr(token)


def read_vocabulary(folder: Path) -> dict[int, str]:
    """Return id → token of ``tokenizer.json``. Raise :class:`UsageError` for a folder without one."""
    try:
        found: dict[str, Any] = json.loads((folder / "tokenizer.json").read_bytes())
        pieces: Any = found["model"]["vocab"]
        if isinstance(pieces, Mapping):
            tokens = {int(id_): str(token) for token, id_ in pieces.items()}
        else:  # of a Unigram model: pairs of token and score, by id
            tokens = {id_: str(token) for id_, (token, _) in enumerate(pieces)}
        return tokens | {int(one["id"]): str(one["content"]) for one in found.get("added_tokens") or ()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"distill: the vocabulary of {folder} cannot be read from its tokenizer.json "
            f"({type(error).__name__}: {error}), so it is unknown whether teacher and policy share it"
        ) from error
