"""Source lines of an agent, such as the one where it raised; and its tracebacks as text.

A line is the agent's if its file belongs neither to the standard library, nor to an installed package, nor to
Agent Lightning. The first line of a traceback is the agent's own innermost line. Frames of Agent Lightning
above the agent's are left out, and a long traceback is cut to its last :data:`LONGEST` characters.
"""

from __future__ import annotations

import linecache
import os
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

import msgspec

import agentlightning

LONGEST = 4000
"""Characters of a traceback that are kept."""
_OWN_CODE = str(Path(agentlightning.__file__).parent) + os.sep
_CALLER = (f"{_OWN_CODE}runner{os.sep}agent.py", "call")
"""File and function that call the agent; what is around them may be a plugin's."""
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_STANDARD = tuple(str(sysconfig.get_paths()[name]) + os.sep for name in ("stdlib", "platstdlib"))


class SourceLine(msgspec.Struct, frozen=True):
    """A line of code."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        text = linecache.getline(self.file, self.line).strip()
        return f"{self.file}:{self.line} in {self.function}" + (f": `{text[:120]}`" if text else "")


def is_user_code(file: str) -> bool:
    """Return whether the file belongs to the agent's author."""
    if file.startswith((_OWN_CODE, "<", *_STANDARD)):
        return False
    return not any(part in file for part in _INSTALLED)


def innermost_user_line(frames: Sequence[SourceLine]) -> SourceLine | None:
    """Return the agent's innermost line, or a library's if there is none. ``frames``: outermost first."""
    for wanted in (is_user_code, lambda file: not file.startswith(_OWN_CODE)):
        for line in reversed(frames):
            if wanted(line.file):
                return line
    return frames[-1] if frames else None


def format_traceback(error: BaseException) -> str | None:
    """Return the traceback of ``error``; ``None`` if it has none or cannot be read."""
    try:
        shown = _without_ours(error.__traceback__)
        raised = shown or next((one.__traceback__ for one in causes_of(error) if one.__traceback__), None)
        frames = [SourceLine(f.filename, f.lineno or 0, f.name) for f in traceback.extract_tb(raised)]
        line = innermost_user_line(frames)
        if line is None:
            return None
        text = "".join(traceback.format_exception(type(error), error, shown)).rstrip()
    except Exception:  # the agent's error may raise anything while it is read
        return None
    cut = text if len(text) <= LONGEST else f"[{len(text) - LONGEST} characters left out]\n{text[-LONGEST:]}"
    return f"{line}\n{cut}".encode(errors="replace").decode()


def _without_ours(top: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback from the agent's first frame on; its last frame stays in any case."""
    at, called = top, None
    while at is not None and called is None:
        code = at.tb_frame.f_code
        called, at = at if (code.co_filename, code.co_name) == _CALLER else None, at.tb_next
    at = called or top
    while at is not None and at.tb_next and at.tb_frame.f_code.co_filename.startswith(_OWN_CODE):
        at = at.tb_next
    return at


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, its causes and contexts, and the members of exception groups, each once."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [cause for cause in (one.__cause__, one.__context__) if cause is not None]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions
