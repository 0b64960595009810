"""SQL text as tokens, so that nothing is ever replaced inside a string, a quoted name or a comment.

Invariant: the texts of the tokens, joined, are the text that was cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

Kind = Literal["string", "name", "number", "sign", "space", "comment"]


class Token(NamedTuple):
    """A piece of SQL. ``name``: a keyword or an identifier, also a quoted one."""

    kind: Kind
    text: str

    def says(self, keyword: str) -> bool:
        """Whether it is that keyword (given in upper case), unquoted."""
        return self.kind == "name" and self.text.upper() == keyword


# A quoted piece that is never closed goes on to the end; SQLite will refuse it.
_TOKEN = re.compile(
    r"""(?P<comment>--[^\n]*|/\*.*?(?:\*/|\Z))
    |(?P<space>\s+)
    |(?P<string>[xX]?'(?:[^']|'')*(?:'|\Z))
    |(?P<name>"(?:[^"]|"")*(?:"|\Z)|`(?:[^`]|``)*(?:`|\Z)|\[[^\]]*(?:\]|\Z)|[^\W\d][\w$]*)
    |(?P<number>0[xX]\w+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\w*)
    |(?P<sign>->>|->|<=|>=|<>|!=|==|\|\||<<|>>|.)""",
    re.VERBOSE | re.DOTALL,
)


_SILENT = ("space", "comment")


def tokens(sql: str) -> list[Token]:
    """All tokens of ``sql`` in order."""
    return [Token(match.lastgroup, match[0]) for match in _TOKEN.finditer(sql)]  # type: ignore[arg-type]


def meaningful(sql: str) -> list[Token]:
    """The tokens without space and comments."""
    return [token for token in tokens(sql) if token.kind not in _SILENT]


def trimmed(sql: str) -> str:
    """``sql`` without the semicolons, spaces and comments around it: an empty statement says nothing."""
    parts = tokens(sql)
    said = [place for place, part in enumerate(parts) if not _empty(part)]
    return "".join(part.text for part in parts[said[0] : said[-1] + 1]) if said else ""


def _empty(part: Token) -> bool:
    if part.text.startswith("/*"):
        return len(part.text) > 3 and part.text.endswith("*/")  # one that is not closed is an error
    return part.kind in _SILENT or part.text == ";"


def joined(parts: Iterable[Token]) -> str:
    """The text of tokens, a space between each two."""
    return " ".join(part.text for part in parts)


def orders(sql: str) -> bool:
    """Whether the outermost query says ORDER BY: one in a subquery does not order the result."""
    depth = 0
    previous = Token("space", "")
    for token in meaningful(sql):
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if depth == 0 and token.says("BY") and previous.says("ORDER"):
            return True
        previous = token
    return False


def unfolded(sql: str) -> float:
    """How many subqueries SQLite plans for the WITH clauses of ``sql``, at most.

    It puts a copy in the place of every mention, so 30 clauses that mention each other twice are 2 ** 30.
    """
    parts = meaningful(sql)
    bodies: dict[str, list[str]] = {}
    for place, token in enumerate(parts):
        start = _opening(parts, place) if token.says("AS") else None
        name = _named(parts, place)
        if start is not None and name is not None:
            # A name that is given twice has both bodies: which one is meant is not looked into.
            bodies.setdefault(name, []).extend(_mentions(parts[start : _closing(parts, start)]))
    sizes: dict[str, float] = {}
    return sum(_size(name, bodies, sizes, ()) for name in _mentions(parts) if name in bodies)


def _mentions(parts: Sequence[Token]) -> list[str]:
    """Names that may be those of tables; one in front of a dot only qualifies a column."""
    return [
        _bare(token)
        for place, token in enumerate(parts)
        if token.kind in ("name", "string") and (place + 1 == len(parts) or parts[place + 1].text != ".")
    ]


def _size(name: str, bodies: dict[str, list[str]], sizes: dict[str, float], above: tuple[str, ...]) -> float:
    """One for the clause itself, and the sizes of all it mentions; a recursive mention is a table."""
    if name in above:
        return 0.0
    if len(above) > 100:
        return float("inf")
    if name not in sizes:
        sizes[name] = 1.0 + sum(_size(n, bodies, sizes, (*above, name)) for n in bodies[name] if n in bodies)
    return sizes[name]


def _opening(parts: Sequence[Token], place: int) -> int | None:
    """Where the parenthesis after AS [NOT] [MATERIALIZED] opens, if one does."""
    place += 1
    while place < len(parts) and (parts[place].says("NOT") or parts[place].says("MATERIALIZED")):
        place += 1
    return place if place < len(parts) and parts[place].text == "(" else None


def _closing(parts: Sequence[Token], start: int) -> int:
    depth = 0
    for place in range(start, len(parts)):
        depth += {"(": 1, ")": -1}.get(parts[place].text, 0)
        if depth == 0:
            return place
    return len(parts)


def _named(parts: Sequence[Token], place: int) -> str | None:
    """The name in front of AS, over a list of columns if there is one."""
    place -= 1
    if place > 0 and parts[place].text == ")":
        while place > 0 and parts[place].text != "(":
            place -= 1
        place -= 1
    return _bare(parts[place]) if place >= 0 and parts[place].kind in ("name", "string") else None


def _bare(token: Token) -> str:
    return token.text.strip("\"'`[]").lower()
