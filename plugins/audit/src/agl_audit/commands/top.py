"""``agl top``: runs while they train, on one screen that follows them, or as JSON for scripts."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from agentlightning.terminal import Console, TextTable, print_json
from agl_audit.commands.runs import COLOURS, reward_of
from agl_audit.figures import number, wide_console
from agl_audit.run_list import RunSummary
from agl_audit.watching import Look, RunDetail, Watcher
from agl_trackers.curve import curve, smooth, sparkline

_WIDE = 110
"""Columns where stdout is no terminal."""
_RUNS, _WORKERS, _REASONS = 8, 6, 6
"""Lines of the parts of the screen."""
_STATES = ("queuing", "preparing", "running", "requeuing", "succeeded", "failed", "cancelled")
_UP, _DOWN = ("\x1b[A", "k"), ("\x1b[B", "j")
"""What a terminal sends for an arrow, and the letter that does the same."""


def register(app: typer.Typer) -> None:
    @app.command("top")
    def top(
        place: Annotated[
            str | None,
            typer.Argument(
                metavar="[RUN]",
                help="A run, runs folder, store file or URL; default: all of runs/ and AGL_STORAGE.",
            ),
        ] = None,
        every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0,
        once: Annotated[
            bool, typer.Option("--once", help="Look twice, --every seconds apart, print the second, and end.")
        ] = False,
        as_json: Annotated[
            bool, typer.Option("--json", help="A JSON object for each look, until Ctrl-C or --once.")
        ] = False,
    ) -> None:
        """Watch runs while they train: steps, reward, rollouts by state, calls and tokens a second, workers,
        errors. Keys: up and down choose a run, q ends.
        """
        asyncio.run(_watch(Watcher(place), every, once, as_json))


async def _watch(watcher: Watcher, every: float, once: bool, as_json: bool) -> None:
    console = wide_console(_WIDE)
    if once:
        await watcher.look()
        await asyncio.sleep(every)
        found = await watcher.look()
        if as_json:
            print_json(found.model_dump())
        else:
            console.print(screen(found))
    elif as_json:
        while True:
            print_json((await watcher.look()).model_dump())
            await asyncio.sleep(every)
    elif not console.is_terminal:
        while True:
            console.print(screen(await watcher.look()))
            await asyncio.sleep(every)
    else:
        await _follow(watcher, every, console)


async def _follow(watcher: Watcher, every: float, console: Console) -> None:
    """Draw each look over the one before, until a key ends it."""
    selected: str | None = None
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            began = time.monotonic()
            found = await watcher.look(selected)
            live.update(screen(found), refresh=True)
            spent = time.monotonic() - began
            try:
                key = await asyncio.wait_for(
                    pressed.get(), max(every, spent)
                )  # at most half of the time reads
            except TimeoutError:
                continue
            if key == "q":
                return
            selected = _moved(found, key)


def _moved(found: Look, key: str) -> str | None:
    """The run that is selected after a key."""
    names = [line.run for line in found.runs]
    if found.selected not in names or key not in (*_UP, *_DOWN):
        return found.selected
    at = names.index(found.selected) + (1 if key in _DOWN else -1)
    return names[min(max(at, 0), len(names) - 1)]


@contextlib.contextmanager
def _keys() -> Iterator[asyncio.Queue[str]]:
    """A queue of the keys that are pressed; it stays empty where stdin is no terminal."""
    pressed: asyncio.Queue[str] = asyncio.Queue()
    if not sys.stdin.isatty():
        yield pressed
        return
    import termios
    import tty

    loop, file = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(file)
    try:
        tty.setcbreak(file)
        loop.add_reader(file, lambda: pressed.put_nowait(_read(file)))
        yield pressed
    finally:
        loop.remove_reader(file)
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def _read(file: int) -> str:
    import os

    return os.read(file, 16).decode("utf-8", "replace")


# ------------------------------------------------------------------------------------------------- the screen
def screen(found: Look) -> RenderableType:
    """Everything that a look saw."""
    if not found.runs:
        return Text("no runs yet; agl train makes one. q ends")
    parts: list[RenderableType] = [_runs(found)]
    line = next((line for line in found.runs if line.run == found.selected), None)
    if line is not None and found.detail is not None:
        parts.append(_run(line, found.detail))
        if line.alarms:
            said = Text("\n".join(alarm.text() for alarm in line.alarms))
            parts.append(Panel(said, title="alarms", title_align="left", border_style="red"))
        if found.workers:
            parts.append(_workers(found))
        if (errors := _errors(found, found.detail)) is not None:
            parts.append(errors)
    if found.problem:
        parts.append(Text(f"cannot be read: {found.problem}", style="red"))
    return Group(*parts)


def _runs(found: Look) -> Table:
    names = [line.run for line in found.runs]
    at = names.index(found.selected) if found.selected in names else 0
    first = max(0, min(at - _RUNS // 2, len(names) - _RUNS))
    shown = found.runs[first : first + _RUNS]
    left = len(names) - len(shown)
    clock = time.strftime("%H:%M:%S", time.localtime(found.time))
    title = f"agl top · {clock}" + (f" · {left} more runs" if left else "")
    table = TextTable(title=title, title_justify="left", header_style="bold", expand=True, box=SIMPLE_HEAD)
    for name in ("", "run", "agent", "recipe", "steps", "reward", "status"):
        table.add_column(
            name, justify="right" if name in ("steps", "reward") else "left", no_wrap=name != "agent"
        )
    for line in shown:
        steps = f"{line.steps}/{line.planned}" if line.planned is not None else str(line.steps)
        mark = "▸" if line.run == found.selected else ""
        status = Text(line.status, style=COLOURS.get(line.status, ""))
        table.add_row(mark, line.run, line.agent or "–", line.recipe or "–", steps, reward_of(line), status)
    return table


def _run(line: RunSummary, detail: RunDetail) -> Panel:
    """The panel of the selected run: its curve beside its figures."""
    rewards = [float("nan") if value is None else value for value in detail.rewards]
    drawn = Text("\n".join(curve(smooth(rewards, 5), width=44)) or "no step is done yet", style="green")
    facts = Table.grid(padding=(0, 2))
    for name, text in _facts(line, detail, rewards):
        facts.add_row(Text(name, style="bold"), Text(text))
    both = Table.grid(padding=(0, 2))
    both.add_row(drawn, facts)
    title = Text(f"{line.run} · reward, mean of 5 steps")
    return Panel(both, title=title, title_align="left", border_style="cyan")


def _facts(line: RunSummary, detail: RunDetail, rewards: list[float]) -> Iterator[tuple[str, str]]:
    states = [f"{detail.rollouts[name]} {name}" for name in _STATES if detail.rollouts.get(name)]
    yield "step", f"{line.steps}" + (f" of {line.planned}" if line.planned is not None else "")
    yield "reward", f"{number(line.training)}  {sparkline(rewards, 20)}"
    yield "rollouts", ", ".join(states) or "none yet"
    yield "calls", f"{detail.calls:,} · {_rate(detail.calls_per_second)}"
    came, went = detail.tokens.get("prompt", 0), detail.tokens.get("completion", 0)
    yield "tokens", f"{came:,} in, {went:,} out · {_rate(detail.tokens_per_second)}"
    if detail.call_seconds:
        quantiles = (f"{name} {detail.call_seconds[name]:.2f} s" for name in ("p50", "p99", "max"))
        yield "a call", " · ".join(quantiles)
    if detail.behaviour:
        yield "behaviour", " · ".join(f"{name} {value:.3g}" for name, value in detail.behaviour.items())
    if detail.step_seconds:
        yield "a step", " · ".join(f"{name} {value:.1f} s" for name, value in detail.step_seconds.items())


def _rate(value: float | None) -> str:
    return "– /s" if value is None else f"{value:,.{0 if value >= 10 else 1}f} /s"


def _workers(found: Look) -> Table:
    left = len(found.workers) - _WORKERS
    title = "workers" + (f" · {left} more" if left > 0 else "")
    table = TextTable(title=title, title_justify="left", header_style="bold", expand=True, box=SIMPLE_HEAD)
    for name in ("worker", "status", "last heartbeat", "rollout"):
        table.add_column(name, no_wrap=True)
    for one in sorted(found.workers, key=lambda one: one.silent_seconds or 0.0)[:_WORKERS]:
        silent = "never" if one.silent_seconds is None else f"{one.silent_seconds:.0f} s ago"
        table.add_row(one.worker, one.status, silent, one.rollout or "–")
    return table


def _errors(found: Look, detail: RunDetail) -> Panel | None:
    """Failures by kind, calls that were left out, what the store counted, and the newest failed rollouts."""
    rows: list[tuple[str, Any]] = []
    if detail.failed:
        rows.append(("failed", _counted(detail.failed)))
    if detail.left_out:
        rows.append(("calls left out", _counted(detail.left_out)))
    rows += [(kind, _counted(reasons)) for kind, reasons in found.counts.items() if reasons]
    rows += [(one.rollout, one.reason or "no reason") for one in detail.failures]
    if not rows:
        return None
    grid = Table.grid(padding=(0, 2))
    for name, text in rows:
        grid.add_row(Text(name, style="bold"), Text(text, overflow="ellipsis", no_wrap=True))
    return Panel(grid, title="errors and counts", title_align="left", border_style="yellow")


def _counted(counts: dict[str, int]) -> str:
    most = sorted(counts.items(), key=lambda pair: -pair[1])
    more = f" and {len(most) - _REASONS} more" if len(most) > _REASONS else ""
    return ", ".join(f"{n:,} × {reason}" for reason, n in most[:_REASONS]) + more
