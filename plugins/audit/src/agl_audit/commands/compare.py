"""``agl compare``: two runs side by side."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from agentlightning.cli.options import JsonObject
from agentlightning.terminal import Console, TextTable, print_json
from agentlightning.types import Evaluation
from agl_audit.commands import Rewards
from agl_audit.comparison import Comparison, PairedEvaluation, compare as compare_runs
from agl_audit.drawing import short
from agl_audit.figures import number, wide_console
from agl_audit.run import open_run
from agl_trackers.curve import curve, smooth

_WIDE = 130
_SHORT = 60
"""Characters of a setting that are shown."""


def register(app: typer.Typer) -> None:
    @app.command("compare")
    def compare(
        first: Annotated[str, typer.Argument(metavar="RUN", help="Run id or its beginning, or run folder.")],
        second: Annotated[str, typer.Argument(metavar="RUN", help="The run to compare with it.")],
        rewards: Rewards = None,
        as_json: JsonObject = False,
    ) -> None:
        """Compare two runs: their evaluations, paired where both evaluated the same tasks, the curves of
        their training rewards, and the settings in which they differ.
        """
        found = asyncio.run(_compare(first, second, rewards))
        if as_json:
            print_json(found.model_dump())
        else:
            _show(found)


async def _compare(first: str, second: str, rewards: str | None) -> Comparison:
    async with open_run(first) as one, open_run(second) as other:
        return await compare_runs(one, other, rewards)


def _show(found: Comparison) -> None:
    console = wide_console(_WIDE)
    if found.rewards:
        console.print(Text(f"by the rewards {found.rewards}"), highlight=False)
    console.print(_evaluations(found) if found.evaluations else "no evaluation in either run")
    for side, run in (("first", found.first), ("second", found.second)):
        _curve(console, run, found.curves[side], found.seconds[side])
    if not found.settings:
        console.print("no setting differs")
        return
    table = TextTable(
        "setting", found.first, found.second, title="settings that differ", title_justify="left"
    )
    for key, (one, other) in found.settings.items():
        table.add_row(key, _text(one), _text(other))
    console.print(table)


def _evaluations(found: Comparison) -> Table:
    table = TextTable(title="held-out reward (95 % interval)", title_justify="left", header_style="bold")
    for name in ("evaluation", found.first, found.second, "difference", "tasks", "better", "worse"):
        table.add_column(name, justify="left" if name == "evaluation" else "right")
    for one in found.evaluations:
        table.add_row(one.name, _reward(one.first), _reward(one.second), *_difference(one))
    return table


def _reward(evaluation: Evaluation | None) -> str:
    if evaluation is None:
        return "–"
    failed = f"\n{said}" if (said := evaluation.failures_text()) else ""
    return f"{evaluation.reward:.3f}\n{evaluation.interval_text()}{failed}"


def _difference(one: PairedEvaluation) -> tuple[Any, ...]:
    """Return the difference, and how many tasks it is over: paired, or of the means alone."""
    if one.difference is None:
        if one.first is None or one.second is None:
            return "–", "–", "–", "–"
        return f"{one.second.reward - one.first.reward:+.3f} (not paired)", "0", "–", "–"
    ends = "–" if one.ci is None else f"{one.ci[0]:+.3f} – {one.ci[1]:+.3f}"
    interval = f"\n{ends}" + (f" ({one.interval})" if one.interval else "")
    sure = one.ci is not None and (one.ci[0] > 0 or one.ci[1] < 0)
    left = f" of {one.tasks + one.unpaired}" if one.unpaired else ""
    text = Text(f"{one.difference:+.3f}{interval}", style="bold" if sure else "")
    return text, f"{one.tasks}{left}", str(one.better), str(one.worse)


def _curve(console: Console, run: str, values: list[float | None], seconds: float | None) -> None:
    took = f", {number(seconds, '.0f')} s" if seconds is not None else ""
    title = f"training reward of {run}: {len(values)} steps{took}"
    console.print(Text(title if values else f"{run} was not trained"), highlight=False)
    for line in curve(smooth([math.nan if value is None else value for value in values], 5), height=5):
        console.print(Text(line), highlight=False)


def _text(value: Any) -> str:
    return (
        "–"
        if value is None
        else short(value if isinstance(value, str) else json.dumps(value, default=str), _SHORT)
    )
