"""How a policy writes calls: where a block of calls begins and ends, and how to read what is between.

A syntax is made from what a chat template renders (``forms.study``), so it is data: literals, and one of the
five ways of ``cores`` to write a call. White space between literals may differ from the template's;
everything else may not. Invariant: reading is strict. It returns every call of a block or raises ValueError
with the reason, for any text and at any depth of nesting.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from json.decoder import JSONDecoder
from typing import Any, NamedTuple

Schemas = Mapping[str, Mapping[str, Any]]
"""Name of a tool → JSON schema of its arguments."""
NAME, KEY, ID, INDEX = "\ue000", "\ue001", "\ue002", "\ue003"
"""Stand for the name, a key, the id and the number of a call in a literal."""
MARK = r"<[^<>]*>|\[[A-Z_]+\]"
"""A mark in a literal: a token of its own in most vocabularies."""
DECODER = JSONDecoder(parse_constant=lambda name: _bad(f"{name} is not JSON"))
NAME_PATTERN = r"""[^\s<>"'=(){}\[\],;]+?"""
ID_PATTERN = r"[\w.:-]{1,64}"
_SPACE = " \t\r\n"


class RawCall(NamedTuple):
    """One call as it was read. ``arguments`` is a JSON object as text, the very one where the text has it."""

    name: str
    arguments: str
    id: str | None = None
    """What the policy wrote as its id, where its template writes ids."""


Core = Callable[[str, int, Schemas], tuple[list[RawCall], int]]
"""Reads one call (JSON: one list of them) at a place of a block, and says where it ends."""


class Writing(NamedTuple):
    """How the template itself writes calls, character by character, for grammars that force one."""

    before: str
    """Before the name of the first call."""
    between: str
    """Between a name and its arguments."""
    after: str
    """After the arguments of the last call."""
    joint: str = ""
    """Between the arguments of a call and the name of the next."""
    tags: tuple[str, str, str, str] | None = None
    """For arguments in tags: before a key, after the key of a text and of another value, after a value."""


@dataclass(frozen=True)
class CallSyntax:
    """``head`` and ``tail`` are literals around each call of a block."""

    kind: str
    """json, named, tags, python or gemma."""
    opens: tuple[str, ...]
    """Literals that begin a block, the longest first; none: the answer as a whole is a block or none is."""
    close: str
    """Literal that ends a block; empty: the end of the answer does."""
    core: Core
    head: str = ""
    tail: str = ""
    single: bool = False
    """Whether a block holds one call."""
    open_ended: bool = False
    """Whether the end of the answer ends a block too."""
    many: bool = True
    """Whether a turn may hold several."""
    first: str = ""
    """Characters with which an answer that is a block may begin, where nothing opens it; empty: any."""
    writing: Writing | None = None
    """None: no grammar describes it."""
    inside: tuple[str, ...] = ()
    """Literals within a call."""
    ending: str = ""
    """What the template writes after the block, at the end of the turn: its end token."""

    @cached_property
    def marks(self) -> frozenset[str]:
        """The marks among the literals, as tokens have them."""
        literals = (*self.opens, self.close, self.head, self.tail, *self.inside)
        return frozenset(mark for literal in literals for mark in re.findall(MARK, literal))

    @cached_property
    def bare_head(self) -> str:
        """What begins a block without an opening literal, which some templates leave out of later turns."""
        head = self.head.strip()
        return head if head.startswith("<") and not re.search(f"[{NAME}-{INDEX}]", head) else ""

    def read(self, body: str, schemas: Schemas) -> list[RawCall]:
        """The calls between ``opens`` and ``close``. Raise ValueError that says what is wrong."""
        try:
            found = self._read(body, schemas)
        except RecursionError:
            raise ValueError("the call is nested too deeply") from None
        if not found:
            raise ValueError("the block has no call")
        if len(found) > 1 and not self.many:
            raise ValueError(f"{len(found)} calls, and the chat template writes one in a turn")
        for call in found:
            if not call.name or not call.name.isprintable():
                raise ValueError("the name is not a printable string")
        return found

    def _read(self, body: str, schemas: Schemas) -> list[RawCall]:
        head, tail = re.compile(tolerant(self.head)), re.compile(tolerant(self.tail))
        found: list[RawCall] = []
        at = skip(body, 0)
        while at < len(body):
            if found and not self.close and self.opens and body.startswith(self.opens[-1], at):
                at += len(self.opens[-1])  # blocks without an end follow one another
            begun = head.match(body, at)
            if begun is None:
                raise ValueError(f"expected {self.head.strip()!r} at character {at} of the block")
            calls, at = self.core(body, begun.end(), schemas)
            ident = begun.groupdict().get("id")
            found += [call._replace(id=call.id or ident) for call in calls]
            ended = tail.match(body, at)
            if ended is None:
                raise ValueError(f"expected {self.tail.strip()!r} at character {at} of the block")
            at = skip(body, ended.end())
            if self.single and at < len(body):
                raise ValueError("text after the call")
        return found


def tolerant(literal: str) -> str:
    """A pattern for ``literal``: any white space where it has some, any name, key and id for those."""
    parts = re.split(rf"(\s+|{NAME}|{KEY}|{ID}|{INDEX})", literal)
    known = {NAME: NAME_PATTERN, KEY: "(?P=key)", ID: f"(?P<id>{ID_PATTERN})", INDEX: r"\d+"}
    return (
        r"\s*" + "".join(r"\s*" if p.isspace() else known.get(p) or re.escape(p) for p in parts if p) + r"\s*"
    )


def expect(body: str, at: int, char: str) -> int:
    if body[at : at + 1] != char:
        raise ValueError(f"expected {char} at character {at} of the call")
    return at + 1


def skip(body: str, at: int) -> int:
    while at < len(body) and body[at] in _SPACE:
        at += 1
    return at


def _bad(why: str) -> Any:
    raise ValueError(why)
