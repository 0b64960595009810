"""``agl doctor``: look a run over before it costs anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.panel import Panel
from rich.text import Text

from agentlightning.cli.options import Sets, last_line, read
from agentlightning.terminal import Console, TextTable
from agentlightning.train.configured import configure
from agentlightning.types import UsageError
from agl_testing.doctor import Check, ConfiguredRun, ProbeSize, Report, examine

SIGNS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "bold red"), "skipped": ("–", "dim")}
WIDTH = 110


def register(app: typer.Typer) -> None:
    @app.command("doctor")
    def doctor(
        file: Annotated[Path | None, typer.Argument(hidden=True, help="Refused: see --config.")] = None,
        config: Annotated[
            Path | None,
            typer.Option("--config", "-c", exists=True, dir_okay=False, help="The run's YAML file."),
        ] = None,
        tasks: Annotated[int, typer.Option(min=1, help="Tasks of the reward probe.")] = 8,
        samples: Annotated[
            int | None, typer.Option(min=1, help="Rollouts of each; default: the recipe's group size.")
        ] = None,
        quick: Annotated[bool, typer.Option("--quick", help="Estimate the update, make none.")] = False,
        as_json: Annotated[
            bool, typer.Option("--json", help="One JSON object as the last line of stdout.")
        ] = False,
        sets: Sets = None,
    ) -> None:
        """Check machine, plugins and, with a configuration, the whole line from a task to an update.

        Exit status 1 when training would be impossible or pointless, with the reason; 0 with warnings. Leaves
        nothing behind.
        """
        if file is not None:
            raise UsageError(f"agl doctor: give the file by its option: agl doctor --config {file}")
        console = Console(stderr=as_json)
        console.width = min(console.width, WIDTH)
        load = None if config is None else lambda: configure(read(config, sets))
        report = _examined(load, ProbeSize(tasks, samples, quick), console)
        _conclude(report, console)
        if as_json:
            last_line(report.model_dump())
        if not report.ok:
            raise typer.Exit(1)


def _examined(load: Callable[[], ConfiguredRun] | None, size: ProbeSize, console: Console) -> Report:
    """Run the examination. Show each check when it is done, and the name of the one under way meanwhile."""
    console.print()
    with console.status("") as status:
        return asyncio.run(
            examine(
                load,
                size,
                on_start=lambda name: status.update(f"[dim]{name} …"),
                on_check=lambda check: _show(check, console),
            )
        )


def _show(check: Check, console: Console) -> None:
    """Print one check: its sign, its line, the facts behind it, and what to do."""
    sign, style = SIGNS[check.status]
    skipped = check.status == "skipped"
    table = TextTable.grid(padding=(0, 1))
    table.add_column(width=3, justify="right")
    table.add_column(width=14)
    table.add_column()
    table.add_row(
        Text(sign, style=style),
        Text(check.name, style="dim" if skipped else "bold"),
        Text(check.title, style="dim" if skipped else style if check.status == "fail" else ""),
    )
    for line in check.detail:
        table.add_row("", "", Text(line, style="dim"))
    for line in check.advice:
        table.add_row("", Text("→", style="cyan", justify="right"), Text(line, style="cyan"))
    console.print(table)


def _conclude(report: Report, console: Console) -> None:
    """Print the verdict."""
    warned = any(check.status == "warn" for check in report.checks)
    style = "red" if not report.ok else "yellow" if warned else "green"
    text = Text(report.verdict, style=f"bold {style}")
    if report.suggested_group_size is not None:
        text.append(f"\nSuggested group size: {report.suggested_group_size}", style="default")
    console.print()
    console.print(Panel(text, border_style=style, expand=False))
