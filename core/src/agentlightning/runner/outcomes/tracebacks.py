"""The traceback of an agent's error, as text that is kept with its attempt.

Its first line is the agent's own innermost line. Our frames above the agent's are left out, and of a long
traceback the last :data:`LONGEST` characters are kept.
"""

from __future__ import annotations

import traceback

from agentlightning.runner.outcomes.source_line import SourceLine, innermost_user_line, is_own_code

LONGEST = 4000
"""Characters of a traceback that are kept."""


def format_traceback(error: BaseException) -> str | None:
    """The traceback of ``error``; ``None`` if it has none, or none that can be read."""
    try:
        summary = traceback.TracebackException.from_exception(error, compact=True)
        for one in _chain(summary):
            _trim(one)
        frames = [SourceLine(f.filename, f.lineno or 0, f.name) for f in _raised(summary).stack]
        line = innermost_user_line(frames)
        if line is None:
            return None
        text = "".join(summary.format()).rstrip()
    except Exception:  # the agent's error may raise anything while it is read
        return None
    cut = text if len(text) <= LONGEST else f"[{len(text) - LONGEST} characters left out]\n{text[-LONGEST:]}"
    return f"{line}\n{cut}".encode(errors="replace").decode()


def _raised(summary: traceback.TracebackException) -> traceback.TracebackException:
    """The error itself, or its cause if it has no frame."""
    for one in _chain(summary):
        if one.stack:
            return one
    return summary


def _chain(summary: traceback.TracebackException) -> list[traceback.TracebackException]:
    """An error, what it was raised from or after, and so on; the error first."""
    found: list[traceback.TracebackException] = []
    at: traceback.TracebackException | None = summary
    while at is not None and all(at is not one for one in found):
        found.append(at)
        at = at.__cause__ or at.__context__
    return found


def _trim(one: traceback.TracebackException) -> None:
    """Remove our frames above the agent's."""
    frames = [*one.stack]
    while len(frames) > 1 and is_own_code(frames[0].filename):
        frames.pop(0)
    one.stack[:] = frames
