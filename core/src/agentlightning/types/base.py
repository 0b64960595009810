"""The base of all records: identifiers, tags, errors with the name that was meant, JSON in and out.

JSON lines have one value a line (https://jsonlines.org): tasks, chats and the logs of runs. A line ends at a
line feed and nowhere else: ``str.splitlines`` also ends it at U+2028 and U+0085, which JSON allows inside
strings. A byte order mark before the first line is no part of it, and blank lines are skipped.
"""

from __future__ import annotations

import difflib
import json
import secrets
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from agentlightning.types.arrays import to_list

Mode = Literal["train", "val", "test"]
LogprobsMode = Literal["processed", "raw"]
"""What an engine's logprobs are of, in vLLM's words: ``processed``, the distribution that tokens were drawn
from; ``raw``, the model's own, before grammar, temperature and the like."""
Tags = dict[str, str]
"""The caller of a call: ``agent, role, node, side, phase, turn, …`` (free keys, string values)."""


def new_id(prefix: str) -> str:
    """Return a fresh identifier, e.g. ``ro-5f3c…`` (64 random bits)."""
    return f"{prefix}-{secrets.token_hex(8)}"


class UsageError(Exception):
    """An error that the user can fix: commands print it as one message, without a traceback."""

    status = 2
    """Exit status of the command."""


class ConfigError(UsageError, ValueError):
    """A configuration that cannot be used; the message names the key."""


@dataclass(eq=False)
class RequestRefused(Exception):
    """A server refuses a request, and keeps no record of it but a count."""

    status: int
    """HTTP status."""
    reason: str
    """Name of the count."""
    message: str
    """Names the problem and a way out. It holds no key and no token."""
    retry: bool = field(default=False, kw_only=True)
    """Whether the sender may try again."""
    headers: dict[str, str] = field(default_factory=dict, kw_only=True)
    """Further headers of the answer."""
    claims: Any = field(default=None, kw_only=True)
    """The sender's attempt (:class:`agentlightning.keys.Claims`), where it is known."""

    def __str__(self) -> str:
        return self.message

    def of(self, claims: Any) -> RequestRefused:
        """Count this refusal for an attempt, unless it has one already; return the refusal."""
        self.claims = self.claims or claims
        return self


LEARNED_NOTHING = 3
"""Exit status of a run that learned nothing."""


class JsonDump:
    """JSON output, by method names of v0.3."""

    __slots__ = ()

    def model_dump(self) -> dict[str, Any]:
        """Return this record as plain JSON-able values."""
        out = msgspec.to_builtins(self, enc_hook=to_list)
        assert isinstance(out, dict)
        return out

    def model_dump_json(self, indent: int | None = None) -> str:
        """Return this record as JSON text; ``indent=None`` is compact."""
        return json.dumps(self.model_dump(), indent=indent, ensure_ascii=False)


class Model(JsonDump, msgspec.Struct, kw_only=True):
    """Base of all records."""


def merge_tags(*parts: Mapping[str, Any] | None) -> Tags:
    """Merge tags. A later part overrides an earlier one, values become strings, and ``None`` is left out."""
    return {k: str(v) for part in parts if part for k, v in part.items() if v is not None}


# -------------------------------------------------------------------------------------- names that were meant
@cache
def words() -> dict[str, dict[str, str]]:
    """Return kind → word of another tool or another section → what it is here (``words.toml``)."""
    table = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
    return {
        kind: {word: here.replace("{}", word) for here, listed in rows.items() for word in listed.split()}
        for kind, rows in table.items()
    }


def meant(name: str, known: Iterable[str] = (), kind: str = "field") -> str:
    """Return the end of a sentence about the unknown ``name``: what stands for that word here, or which of
    the ``known`` names is like it, or all of those.
    """
    plain, known, tables = name.lower().strip("-").replace("-", "_"), [*known], words()
    table = {**tables["field"], **tables[kind]} if kind in tables else {}
    if (here := table.get(plain)) and not any(one.startswith(f"{plain}_") for one in known):
        return f". It is {here}"
    if near := nearest(name, known):
        return f". Did you mean {near!r}?"
    if near := nearest(plain, table, 0.85):
        return f". It is {table[near]}"
    return f". Known here: {', '.join(known)}" if known else ""


def vendor(model: str) -> str | None:
    """Return whose model this is, if nobody else has its weights: ``gpt-4o``, ``anthropic/claude-…``."""
    return next((whose for word, whose in words()["model"].items() if model.lower().startswith(word)), None)


def nearest(name: str, known: Iterable[str], least: float = 0.7) -> str | None:
    """Return the known name that is most like ``name``, ``None`` if none is, to the degree ``least``. Of
    names that are nearly as like, one of the same letters is meant: ``gpro`` is ``grpo`` and not ``gspo``.
    """
    near = difflib.get_close_matches(name, list(known), n=5, cutoff=least - 0.1 * (len(name) < 4))
    return min(near, key=lambda one: sorted(one) != sorted(name), default=None)


# ------------------------------------------------------------------------------------------------- JSON lines
class NotJSON(ValueError):
    """A text that is not valid JSON; the message names the file and the line."""


def read_json_lines(path: Path) -> list[Any]:
    """Return the values of a file. Raise :class:`NotJSON`, ``OSError`` or ``UnicodeDecodeError``."""
    return [value for _, value in json_lines(path.read_text(encoding="utf-8-sig"), str(path))]


def json_lines(text: str, where: str) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each line of ``text``. ``where``: its source, for errors."""
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        if line.strip():
            yield number, decode_json(line, f"{where}:{number}")


def decode_json(text: str | bytes, where: str) -> Any:
    """Return the value of a JSON text. Raise :class:`NotJSON`, which begins with ``where``."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise NotJSON(f"{where}: not valid JSON: {why}") from None
