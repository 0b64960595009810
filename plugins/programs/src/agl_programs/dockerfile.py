"""The text of a Dockerfile: its instructions, and the words of each as Docker reads them.

Each function raises ``ValueError`` for a text that Docker refuses too, and :class:`NeedsImage` for one whose
meaning only a built image has.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping

_HEREDOC = re.compile(r"(?<!\S)\d*<<(-?)([\"']?)(\w+)\2")
_BRACES = r"\$\{(?P<braces>(?:[^{}]|\{[^{}]*\})*)\}"
_NAME = r"\$(?P<name>\w+)"
_WORD = re.compile(rf"""(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|{_BRACES}|(?!\$\{{)[^\s'"\\])+""", re.DOTALL)
_PIECE = re.compile(
    rf"""'(?P<literal>[^']*)'|"(?P<quoted>(?:\\.|[^"\\])*)"|\\(?P<escaped>.)|{_BRACES}|{_NAME}""", re.DOTALL
)
_IN_QUOTES = re.compile(rf"""\\(?P<escaped>["\\$])|{_BRACES}|{_NAME}""")


class NeedsImage(Exception):
    """What a Dockerfile says has a meaning in its image alone."""


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """The instructions of a Dockerfile, each with its rest, a heredoc's lines included."""
    lines = iter(text.splitlines())
    for line in lines:
        if _silent(line):
            continue
        while line.rstrip().endswith("\\"):
            line = line.rstrip()[:-1] + next((one for one in lines if not _silent(one)), "")
        name, rest = (*line.split(None, 1), "")[:2]
        name, rest = name.upper(), rest.strip()
        ends = _HEREDOC.findall(rest) if name in ("RUN", "COPY", "ADD") else []
        texts = [_heredoc(lines, end, tabs) for tabs, _, end in ends]
        if name == "RUN" and _HEREDOC.fullmatch(rest):
            yield name, _script(texts[0], ends[0][2])
        else:
            yield name, "\n".join([rest, *(f"{body}{end[2]}" for body, end in zip(texts, ends, strict=True))])


def _silent(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _heredoc(lines: Iterator[str], end: str, tabs: str) -> str:
    """The lines before ``end``; with ``tabs``, those that begin them are no part of it."""
    body: list[str] = []
    for line in lines:
        stripped = line.lstrip("\t") if tabs else line
        if stripped == end:
            return "".join(f"{one}\n" for one in body)
        body.append(stripped)
    raise ValueError(f"the text after <<{end} needs a line {end} at its end")


def _script(body: str, end: str) -> str:
    """A heredoc alone is a script: for a shell, or for the program of its first line."""
    first = body.partition("\n")[0]
    return f"{first[2:]} /dev/stdin <<'{end}'\n{body}{end}" if first.startswith("#!") else body


def flags(rest: str) -> tuple[dict[str, str], str]:
    """The words ``--name=value`` with which an instruction begins, and its rest."""
    found: dict[str, str] = {}
    while flag := re.match(r"--(\w[\w-]*)(?:=(\S*))?\s*", rest):
        found[flag[1]] = flag[2] or ""
        rest = rest[flag.end() :]
    return found, rest


def command(rest: str) -> str:
    """The shell's line of ``RUN``, also of its form as a list."""
    listed = _listed(rest)
    return rest if listed is None else shlex.join(listed)


def paths(rest: str, known: Mapping[str, str]) -> list[str]:
    """The words of ``COPY``, also of its form as a list."""
    listed = _listed(rest)
    return [expanded(word, known) for word in (_split(rest) if listed is None else listed)]


def variables(rest: str, known: Mapping[str, str]) -> dict[str, str]:
    """What ``ENV`` sets. A variable that nothing set is empty, as in Docker."""
    words = _split(rest)
    if len(words) > 1 and "=" not in words[0]:  # the old form, of one variable
        words = ["=".join(rest.split(None, 1))]
    pairs = [word.partition("=") for word in words]
    if not pairs or not all(name and sign for name, sign, _ in pairs):
        raise ValueError("ENV needs words of the form NAME=value")
    return {name: expanded(value, known, unset="") for name, _, value in pairs}


def folder(rest: str, known: Mapping[str, str]) -> str:
    """The path of ``WORKDIR``."""
    if not _split(rest):
        raise ValueError("WORKDIR needs a path")
    return expanded(rest, known)


def arguments(rest: str, known: Mapping[str, str]) -> dict[str, str | None]:
    """What ``ARG`` declares, with its defaults."""
    pairs = [word.partition("=") for word in _split(rest)]
    if not pairs or not all(name for name, _, _ in pairs):
        raise ValueError("ARG needs words of the form NAME or NAME=value")
    return {name: expanded(value, known, unset="") if sign else None for name, sign, value in pairs}


def expanded(text: str, known: Mapping[str, str], unset: str | None = None) -> str:
    """A word without its quotes, and with the values of its variables. ``unset``: the value of one that is
    not known; ``None``: there is no other than its image's.
    """

    def value(found: re.Match[str]) -> str:
        given = found.groupdict()
        if (literal := given.get("literal")) is not None:
            return literal
        if (quoted := given.get("quoted")) is not None:
            return _IN_QUOTES.sub(value, quoted)
        if (escaped := given.get("escaped")) is not None:
            return str(escaped)
        return _variable(given["name"] or given["braces"], known, unset)

    return _PIECE.sub(value, text)


def _variable(said: str, known: Mapping[str, str], unset: str | None) -> str:
    if (found := re.fullmatch(r"(\w+)(?:(:?[-+])(.*))?", said, re.DOTALL)) is None:
        raise NeedsImage(f"${{{said}}} is a form that is not known here")
    name, operator, word = found.groups()
    current = known.get(name)
    there = bool(current) if operator and operator.startswith(":") else current is not None
    if operator and there == operator.endswith("+"):
        return expanded(word, known, unset)
    if operator or current is not None:
        return current or ""
    if unset is None:
        raise NeedsImage(f"neither ENV nor ARG gives the variable {name} a value")
    return unset


def _listed(rest: str) -> list[str] | None:
    try:
        found = json.loads(rest)
    except ValueError:
        return None
    return found if isinstance(found, list) and all(isinstance(one, str) for one in found) else None


def _split(rest: str) -> list[str]:
    """The words, with their quotes. ``ValueError`` for a quote or a brace that stays open."""
    found = [word.group() for word in _WORD.finditer(rest)]
    if re.sub(r"\s", "", "".join(found)) != re.sub(r"\s", "", rest):
        raise ValueError("a quote or a brace stays open")
    return found
