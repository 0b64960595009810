"""``agl runs``: the list of runs, and what lists their rollouts."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

if TYPE_CHECKING:
    from rich.table import Table

    from agentlightning.audit.run_list import RunSummary

_WIDE = 130
"""Columns of the table where nobody's terminal sets them."""
_WHOLE = ("when", "steps", "seconds", "status", "recipe", "reward")
"""Columns that are never broken."""
_COLOURS = {"finished": "green", "running": "cyan", "broken off": "yellow", "unreadable": "red"}


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
        as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    ) -> None:
        """List runs: what was trained with what, how far it came, and what it gained."""
        lines = asyncio.run(_list(place))
        if as_json:
            for line in lines:
                print(msgspec.json.encode(line).decode())
            return
        from rich.console import Console
        from rich.text import Text

        console = Console()
        if not console.is_terminal:
            console.width = _WIDE
        if not lines:
            console.print(Text(f"no runs in {place or 'runs/'}"), highlight=False, soft_wrap=True)
            return
        console.print(table(lines))
        for line in lines:
            if line.reason:
                text = Text.assemble(("unreadable", "red"), f" {line.run}: {line.reason}")
                console.print(text, highlight=False, soft_wrap=True)
        readable = [line for line in lines if not line.reason]
        if readable:
            which = _where(readable[0]) if len(readable) == 1 else "RUN"
            console.print(f"what a run did: agl rollouts {which}", highlight=False, soft_wrap=True)


async def _list(place: str | None) -> list[RunSummary]:
    """The runs of a place; a place that is none may be a run."""
    from agentlightning.audit.locations import NoSuchRun, find_run, stores
    from agentlightning.audit.run_list import list_runs

    try:
        return await list_runs(stores(place))
    except NoSuchRun as nowhere:
        try:
            found = find_run(place or "")
        except NoSuchRun as error:
            raise (error if "beginning of" in str(error) else nowhere) from None
        lines = await list_runs([found])
        mine = [line for line in lines if found.run is None or line.run.startswith(found.run)]
        if not mine:
            raise nowhere
        return mine


def _where(line: RunSummary) -> str:
    """How the run is named so that it is found again: by its folder's store where that is not in runs/."""
    from pathlib import Path

    from agentlightning.audit.locations import RUNS_FOLDER

    store = Path(line.store)
    return line.run if store.parent.parent == RUNS_FOLDER else f"{line.store} --run {line.run}"


def table(lines: list[RunSummary]) -> Table:
    """The runs, newest first."""
    from rich.table import Table
    from rich.text import Text

    out = Table(title="runs", title_justify="left", header_style="bold")
    for name, right in (("run", False), ("when", False), ("agent", False), ("recipe", False), ("steps", True),
                        ("reward", True), ("seconds", True), ("status", False)):  # fmt: skip
        out.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=name in _WHOLE)
    for line in lines:
        out.add_row(
            Text(line.run),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(line.when)) if line.when else "–",
            Text(line.agent or "–"),
            Text(
                " · ".join(
                    [line.recipe or "–", *([f"{len(line.policies)} policies"] if line.policies else [])]
                )
            ),
            f"{line.steps}/{line.planned}" if line.planned is not None else str(line.steps),
            _reward(line),
            f"{line.seconds:.0f}" if line.seconds is not None else "–",
            Text(line.status, style=_COLOURS.get(line.status, "")),
        )
    return out


def _reward(line: RunSummary) -> str:
    """Held out, before → after; else what training last saw."""
    if line.before is not None and line.after is not None:
        return f"{line.before:.3f} → {line.after:.3f}"
    if line.training is not None:
        return f"{line.training:.3f} (training)"
    return "–"
