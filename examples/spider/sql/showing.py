"""The outcome of a query as text for a model, within a budget.

Invariant: the text begins with what there is (an error, no rows, or how many), and never exceeds the budget.
"""

from __future__ import annotations

from spider.sql.execution import Result
from spider.sql.schema import shown

ERROR = "Error: "
"""How the text of a failed query begins."""


def show_error(error: Exception, chars: int) -> str:
    """A failed query."""
    return _cut(ERROR + " ".join(str(error).split()), chars)


def show(result: Result, chars: int, rows: int) -> str:
    """Column names, then at most ``rows`` rows, as many as fit."""
    count = len(result.rows)
    if not count:
        return _cut("No rows.", chars)
    lines = [f"{count} row{'s' if count > 1 else ''}: {', '.join(result.columns)}"]
    for row in result.rows[:rows]:
        line = ", ".join(map(shown, row))
        if len("\n".join([*lines, line, "…"])) > chars:
            break
        lines.append(line)
    if len(lines) <= count:
        lines.append("…")
    return _cut("\n".join(lines), chars)


def _cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else text[: max(0, chars - 1)] + "…"[: min(1, chars)]
