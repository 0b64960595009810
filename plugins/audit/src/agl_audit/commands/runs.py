"""``agl runs``: the list of runs, and the command that lists the rollouts of one."""

from __future__ import annotations

import asyncio
import shlex
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from agentlightning.redaction import redacted
from agentlightning.terminal import TextTable, print_json
from agl_audit.commands import JsonLines
from agl_audit.figures import number, wide_console
from agl_audit.locations import RUNS_FOLDER, NoSuchRun, places_of
from agl_audit.run_list import RunSummary, list_runs, to_show

_WIDE = 130
"""Columns of the table where stdout is no terminal."""
_WHOLE = ("run", "when", "steps", "seconds", "status", "recipe", "reward")
"""Columns that are never broken."""
COLOURS = {
    "finished": "green",
    "learned nothing": "yellow",
    "stopped by budget": "yellow",
    "running": "cyan",
    "broken off": "yellow",
    "unreadable": "red",
}


def register(app: typer.Typer) -> None:
    @app.command("runs")
    def runs(
        place: Annotated[
            str | None,
            typer.Argument(
                metavar="[RUN]",
                help="A run, runs folder, store file or URL; default: all of runs/ and AGL_STORAGE.",
            ),
        ] = None,
        as_json: JsonLines = False,
    ) -> None:
        """List runs: what was trained with what, how far it came, and what it gained."""
        lines = asyncio.run(_list(place))
        if as_json:
            for line in lines:
                print_json(to_show(line))
        else:
            _show(lines, place)


def _show(lines: list[RunSummary], place: str | None) -> None:
    console = wide_console(_WIDE)
    if not lines:
        where = redacted(place or "runs/")
        console.print(Text(f"no runs in {where}"), highlight=False, soft_wrap=True)
        return
    console.print(table(lines))
    readable = [line for line in lines if not line.reason]
    for line in lines:
        if line.reason:
            text = Text.assemble(("unreadable", "red"), f" {line.run}: {line.reason}")
            console.print(text, highlight=False, soft_wrap=True)
        for alarm in line.alarms:
            text = Text.assemble(("alarm", "red"), f" {line.run}: {alarm.text()}")
            console.print(text, highlight=False, soft_wrap=True)
    if readable:
        which = _where(readable[0]) if len(readable) == 1 else "RUN"
        console.print(f"what a run did: agl rollouts {which}", highlight=False, soft_wrap=True)


async def _list(place: str | None) -> list[RunSummary]:
    """Return the runs of a place. If ``place`` is no place, it may be a run."""
    found, run = places_of(place)
    lines = await list_runs(found)
    mine = [line for line in lines if run is None or line.run.startswith(run)]
    if not mine and run is not None:
        raise NoSuchRun(f"{redacted(place)}: its store holds no run {run!r}")
    return mine


def _where(line: RunSummary) -> str:
    """Return arguments with which commands find the run again: its store too where it is not in runs/."""
    if Path(line.store).parent.parent == RUNS_FOLDER:
        return line.run
    return f"{shlex.quote(redacted(line.store))} --run {line.run}"


def table(lines: list[RunSummary]) -> Table:
    """Return the table of runs, newest first."""
    out = TextTable(title="runs", title_justify="left", header_style="bold")
    for name in ("run", "when", "agent", "recipe", "steps", "reward", "seconds", "status"):
        side: Any = "right" if name in ("steps", "reward", "seconds") else "left"
        out.add_column(name, justify=side, overflow="fold", no_wrap=name in _WHOLE)
    if budgets := any(line.spent for line in lines):
        out.add_column("spent", overflow="fold")
    for line in lines:
        policies = f" · {len(line.policies)} policies" if line.policies else ""
        out.add_row(
            line.run,
            time.strftime("%Y-%m-%d %H:%M", time.localtime(line.when)) if line.when else "–",
            line.agent or "–",
            f"{line.recipe or '–'}{policies}",
            f"{line.steps}/{line.planned}" if line.planned is not None else str(line.steps),
            reward_of(line),
            number(line.seconds, ".0f"),
            Text(line.status, style=COLOURS.get(line.status, "")),
            *([_spent(line)] if budgets else []),
        )
    return out


def _spent(line: RunSummary) -> str:
    """Return what a run with a budget has spent."""
    if not (spent := line.spent):
        return "–"
    tokens = spent.get("prompt_tokens", 0) + spent.get("completion_tokens", 0)
    money = f", {spent['money']:.2f} in money" if spent.get("money") else ""
    return f"{spent.get('calls', 0):,.0f} calls, {tokens:,.0f} tokens{money}"


def reward_of(line: RunSummary) -> str:
    """Return the held-out reward before → after, that of `agl eval`, or that of the last training step."""
    if line.before is not None and line.after is not None:
        return f"{line.before:.3f} → {line.after:.3f}"
    if line.evaluated is not None:
        return f"{line.evaluated:.3f} (evaluation)"
    return "–" if line.training is None else f"{line.training:.3f} (training)"
