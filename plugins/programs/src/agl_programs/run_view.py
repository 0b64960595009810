"""Prints the summary of ``agl run`` on stderr when the program has ended."""

from __future__ import annotations

import shlex

from rich.table import Table
from rich.text import Text

from agentlightning.redaction import redacted
from agentlightning.terminal import Console
from agl_programs.summary import Summary

_COLOURS = {
    "exact": "green",
    "gateway-only": "yellow",
    "mismatch": "red",
    "succeeded": "green",
    "failed": "red",
}
_SHOWN = 6


def show(summary: Summary, console: Console | None = None) -> None:
    """Print a title, a small table, warnings, and the commands to run next."""
    out = console or Console(stderr=True)
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", justify="right")
    grid.add_column(overflow="fold")
    for name, value in _rows(summary):
        grid.add_row(name, value)
    out.print()
    out.print(
        Text.assemble(("⚡ ", "yellow"), (summary.run_id, "bold"), (f"  {summary.seconds:.1f} s", "dim")),
        soft_wrap=True,
    )
    out.print(grid)
    for line in _warnings(summary):
        out.print(Text.assemble(("! ", "bold yellow"), line), soft_wrap=True)
    for line in _next(summary):
        out.print(Text.assemble(("→ ", "cyan"), line), soft_wrap=True, highlight=False)


def _rows(summary: Summary) -> list[tuple[str, str | Text]]:
    rows: list[tuple[str, str | Text]] = [("rollouts", _counts(summary.statuses))]
    exact = summary.verdicts.get("exact", 0)
    calls = Text(str(summary.calls), style="bold")
    if summary.calls:
        calls += Text.assemble("  ", _counts(summary.verdicts))
    if summary.errors:
        calls.append(f" · {summary.errors} without an answer", style="red")
    if exact and exact == summary.calls:
        calls.append("  ✓", style="green")
    rows.append(("calls", calls))
    if summary.refused:
        rows.append(("refused", _counts(summary.refused)))
    if summary.calls:
        rows.append(("tokens", f"{summary.tokens_in:,} in · {summary.tokens_out:,} out"))
        rows.append(("agents", _counts(summary.agents)))
    if summary.tools:
        rows.append(("tools", _counts(summary.tools)))
    if summary.adapters:
        rows.append(("adapters", ", ".join(summary.adapters)))
    rows.append(("reward", _reward(summary.rewards)))
    if summary.counts:
        rows.append(("counted", _counts(summary.counts)))
    rows.append(("store", redacted(summary.store)))
    return rows


def _reward(rewards: list[float]) -> str:
    if not rewards:
        return "none (missing is not zero)"
    if len(rewards) == 1:
        return f"{rewards[0]:g}"
    return f"{sum(rewards) / len(rewards):.4g} on average of {len(rewards)}"


def _counts(counts: dict[str, int]) -> Text:
    out = Text()
    for place, (name, times) in enumerate(counts.items()):
        if place == _SHOWN:
            out.append(f" · {len(counts) - _SHOWN} more", style="dim")
            break
        out.append(" · " if place else "")
        out.append(f"{times:,} {name}", style=_COLOURS.get(name, ""))
    return out


def _warnings(summary: Summary) -> list[str]:
    lines = [f"{times} × {why}" for why, times in list(summary.unsure.items())[:_SHOWN]]
    lines += [f"{times} × {why}" for why, times in list(summary.failures.items())[:_SHOWN]]
    return lines + summary.warnings


def _next(summary: Summary) -> list[str]:
    if not summary.rollouts:
        return []
    place = (
        f" --store {shlex.quote(redacted(summary.store))}"
        if summary.folder is None
        else f" --run {shlex.quote(str(summary.folder))}"
    )
    first = summary.rollouts[-1] if len(summary.rollouts) > len(summary.exit_codes) else summary.rollouts[0]
    return [f"agl trace {first}{place}", f"agl explain {first}{place}"]
