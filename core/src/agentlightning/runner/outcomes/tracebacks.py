"""The traceback of an agent's error, as the text that is kept with its attempt.

The first line is the agent's own innermost line. Frames of Agent Lightning above the agent's are left out,
and a long traceback is cut to its last :data:`LONGEST` characters.
"""

from __future__ import annotations

import traceback

from agentlightning.runner.outcomes.source_line import SourceLine, innermost_user_line, is_own_code

LONGEST = 4000
"""Characters of a traceback that are kept."""


def format_traceback(error: BaseException) -> str | None:
    """Return the traceback of ``error``; ``None`` if it has none or cannot be read."""
    try:
        summary = traceback.TracebackException.from_exception(error, compact=True)
        chain = _chain(summary)
        for one in chain:
            while len(one.stack) > 1 and is_own_code(one.stack[0].filename):
                del one.stack[0]
        raised = next((one for one in chain if one.stack), summary)  # an error may have no frame of its own
        frames = [SourceLine(f.filename, f.lineno or 0, f.name) for f in raised.stack]
        line = innermost_user_line(frames)
        if line is None:
            return None
        text = "".join(summary.format()).rstrip()
    except Exception:  # the agent's error may raise anything while it is read
        return None
    cut = text if len(text) <= LONGEST else f"[{len(text) - LONGEST} characters left out]\n{text[-LONGEST:]}"
    return f"{line}\n{cut}".encode(errors="replace").decode()


def _chain(summary: traceback.TracebackException) -> list[traceback.TracebackException]:
    """Return an error followed by its causes and contexts."""
    found: list[traceback.TracebackException] = []
    at: traceback.TracebackException | None = summary
    while at is not None and all(at is not one for one in found):
        found.append(at)
        at = at.__cause__ or at.__context__
    return found
