"""A text as a value in a line of verl's configuration, whatever is in it.

In Hydra's grammar commas, parentheses and letters beyond ASCII mean something, or nothing: a folder's name
would be several values, or an error, and a policy called ``true`` no name.
"""

from __future__ import annotations

import re

PLAIN = re.compile(r"[A-Za-z_/.][\w/.:@+-]*", re.ASCII)
WORDS = frozenset({"true", "false", "null", "nan", "inf"})
"""Which Hydra takes for something else than a text."""


def quote(text: str) -> str:
    """``text`` as it is where that is safe, else between quotes."""
    if PLAIN.fullmatch(text) and text.lower() not in WORDS:
        return text
    # A backslash escapes only where a quote follows.
    escaped = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), text)
    return f"'{escaped}'"
