"""The files of a model of the Hugging Face hub: how they are named, and which of them are downloaded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from rich.filesize import decimal

from agl_local.policy.cache import FetchError, folder_of
from agl_local.policy.card import one_line
from agl_local.policy.convert import FORMAT
from agl_local.policy.gguf import ENCODINGS

CARD = ("README.md", "LICENSE*", "LICENCE*", "NOTICE*")
WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors")
MODEL = (*WEIGHTS, "*.json", "*.jinja", "additional_chat_templates/*.jinja")
_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::([^:]+\.gguf))?")
"""``owner/name``, as models are called on the hub, and perhaps one of its GGUF files."""
_KIND = re.compile(
    r"(?:^|[-._])(i?q\d[a-z0-9_]*|tq\d[a-z0-9_]*|b?fp?(?:16|32)|mxfp4[a-z0-9_]*)\.gguf$", re.IGNORECASE
)
"""The encoding at the end of a GGUF file's name, as in ``model-Q4_K_M.gguf``."""
_KINDS = tuple(encoding.name for encoding in ENCODINGS.values())
_PART = re.compile(r"-\d+-of-\d+\.gguf$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model of the hub as it is named: ``owner/name`` or ``owner/name:file.gguf``."""

    given: str
    repository: str
    file: str

    @classmethod
    def named(cls, given: str) -> HubModel | None:
        """Return the model that ``given`` names; ``None`` if it has another form."""
        found = _NAME.fullmatch(given)
        return found and cls(given, found[1], found[2] or "")

    @property
    def folder(self) -> Path:
        """Return the model's folder in the cache; it may not exist yet."""
        return folder_of(self.repository.replace("/", "--"), f"hub {self.given}", FORMAT)


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a model, and what the hub says of it."""

    name: str
    size: int
    sha256: str
    """Of files in large file storage."""
    git: str
    """The id of others: git's sha1."""


def choose_gguf(model: HubModel, files: Sequence[HubFile]) -> HubFile:
    """Return the one GGUF file of ``files`` that is asked for, or the only one that can be converted."""
    all_of_them = [file for file in files if file.name.lower().endswith(".gguf")]
    fitting = [file for file in all_of_them if _converts(file.name)]
    named = [file for file in all_of_them if file.name == model.file]
    chosen = named if model.file else fitting
    if len(chosen) == 1 and chosen[0] in fitting:
        return chosen[0]
    if not all_of_them:
        raise FetchError(
            f"{model.given}: the model has neither weights as safetensors nor a GGUF file; no others are read"
        )
    if fitting:
        listed = ", ".join(f"{one_line(file.name)} ({decimal(file.size)})" for file in fitting)
        raise FetchError(
            f"{model.given}: choose one of its GGUF files that can be converted: {listed}; for example "
            f"`agl policy fetch {model.repository}:{one_line(fitting[0].name)}`"
        )
    listed = ", ".join(one_line(file.name) for file in all_of_them)
    raise FetchError(
        f"{model.given}: none of its GGUF files can be converted, by their names: {listed}. Whole files in "
        f"{', '.join(_KINDS)} are"
    )


def _converts(name: str) -> bool:
    """Say whether a GGUF file can be converted, by its name; the file itself has the last word."""
    base = name.rpartition("/")[2]
    kind = _KIND.search(base)
    known = kind is None or kind[1].upper().replace("FP", "F") in _KINDS
    return known and not _PART.search(base) and "mmproj" not in base.lower()


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Say whether a path matches; ``*`` is part of one name."""
    return any(name.count("/") == one.count("/") and fnmatchcase(name, one) for one in patterns)
