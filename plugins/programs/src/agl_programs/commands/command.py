"""A command line with placeholders for the task.

``{task}`` stands for the whole task and ``{task.field}`` for one field of it; dots go deeper, and a number is
an index of a list. A text is put in as it is, any other value as JSON. All other braces stay as they are;
``{{task}}`` is the text ``{task}``.

Invariant: a value is data and never syntax. In a list of words, a value is a part of one argument. In a shell
line, a placeholder becomes a quoted variable, whose value the shell does not read as code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentlightning.types import UsageError

_PLACEHOLDER = re.compile(r"\{\{task(?:\.[^{}\s]+)?\}\}|\{task((?:\.[^{}\s]+)?)\}")
SHELL = "/bin/sh"
ARGUMENT = "AGL_ARG_"
"""Beginning of the names of variables with which a shell line gets its placeholders' values."""


class UnknownField(UsageError):
    """A placeholder names a field that the task does not have."""


class BadCommand(UsageError, ValueError):
    """The command line cannot be run."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its words, or one line for the shell ``/bin/sh``."""

    given: tuple[str, ...] | str

    @classmethod
    def of(cls, given: str | Sequence[str]) -> Command:
        """Return the checked command. Raise :class:`BadCommand` if it is empty, holds anything but texts, or
        is a shell line with a placeholder in single quotes.
        """
        if isinstance(given, str):
            if not given.strip():
                raise BadCommand("the shell line is empty")
            command = cls(given)
            command.words(None)
            return command
        words = tuple(given)
        if not words or not all(isinstance(word, str) for word in words) or not words[0]:
            raise BadCommand(
                f"{list(words)!r}: give the program and its arguments as texts, e.g. [python, app.py]"
            )
        return cls(words)

    @property
    def is_shell(self) -> bool:
        """Whether it is a line for the shell."""
        return isinstance(self.given, str)

    @property
    def placeholders(self) -> list[str]:
        """Return the paths of its placeholders, ``""`` for the whole task."""
        texts = [self.given] if isinstance(self.given, str) else self.given
        return [path for text in texts for path in placeholders(text)]

    def words(self, task: Any) -> list[str]:
        """Return the words to execute. Raise :class:`UnknownField` for a field that the task lacks."""
        if not isinstance(self.given, str):
            return [fill(word, task) for word in self.given]
        return [SHELL, "-c", "".join(_shell_parts(self.given))]

    def variables(self, task: Any) -> dict[str, str]:
        """Return the variables that a shell line needs: the values of its placeholders by number."""
        if not isinstance(self.given, str):
            return {}
        values = (value_text(task, path) for path in placeholders(self.given))
        return {f"{ARGUMENT}{number}": value for number, value in enumerate(values, 1)}


def placeholders(text: str) -> list[str]:
    """Return the paths of the placeholders in a text."""
    return [found[1].removeprefix(".") for found in _PLACEHOLDER.finditer(text) if found[1] is not None]


def fill(text: str, task: Any) -> str:
    """Replace the placeholders of a text by values of the task."""

    def value(found: re.Match[str]) -> str:
        return found[0][1:-1] if found[1] is None else value_text(task, found[1].removeprefix("."))

    return _PLACEHOLDER.sub(value, text)


def value_text(task: Any, path: str) -> str:
    """Return the value at a dotted path: a text as it is, any other value as JSON. Raise
    :class:`UnknownField`.
    """
    value = task
    for step in path.split(".") if path else ():
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isascii() and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            raise UnknownField(f"{{task.{path}}}: there is no {step!r} in the task; {_known(value)}")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _known(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"it has {', '.join(map(str, value)) or 'no fields'}"
    if isinstance(value, list):
        return f"it is a list of {len(value)}"
    return f"it is a {type(value).__name__}, which has no fields"


def _shell_parts(line: str) -> Iterator[str]:
    """Yield the parts of a shell line with variables in place of placeholders: in double quotes, unless the
    placeholder stands in double quotes already.
    """
    number, end, quotes = 0, 0, _Quotes()
    for found in _PLACEHOLDER.finditer(line):
        before = line[end : found.start()]
        quotes.read(before)
        yield before
        end = found.end()
        if found[1] is None:
            yield found[0][1:-1]
            continue
        number += 1
        if quotes.open == "'":
            raise BadCommand(
                f"{found[0]} stands in single quotes, where the shell puts in no value: leave the quotes out"
            )
        variable = f"${{{ARGUMENT}{number}}}"
        yield variable if quotes.open == '"' else f'"{variable}"'
    yield line[end:]


class _Quotes:
    """The quote that is open at a place of a shell line: ``'``, ``"`` or none."""

    def __init__(self) -> None:
        self.open = ""
        self._escaped = False

    def read(self, text: str) -> None:
        for character in text:
            if self._escaped:
                self._escaped = False
            elif character == "\\" and self.open != "'":
                self._escaped = True
            elif character == self.open:
                self.open = ""
            elif not self.open and character in "'\"":
                self.open = character
