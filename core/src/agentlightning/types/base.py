"""The base of all records: identifiers, tags, JSON in and out."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
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
