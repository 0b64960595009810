"""``agl plan``: what a run of a given size needs, and what binds first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Group
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from agentlightning.cli.config_options import Sets, last_line
from agentlightning.cli.options import add_command
from agentlightning.plan.costs import Costs, committed, read_costs
from agentlightning.plan.estimate import plan
from agentlightning.plan.figures import Plan, PlanFigure, PlanLimit
from agentlightning.plan.inputs import PlannedRun, assume, count
from agentlightning.plan.shape import find_model
from agentlightning.terminal import Console, TextTable
from agentlightning.types.base import ConfigError

WIDTH = 118
BAR = 16
MARKS = {"measured": ("M", "green"), "formula": ("F", "cyan"), "assumption": ("A", "yellow")}


@dataclass
class PlanOptions:
    """Options of ``agl plan``."""

    gpus: Annotated[int | None, typer.Option(help="GPUs of the run.")] = None
    model: Annotated[
        str | None, typer.Option(help="Size (7b), name (Qwen2.5-7B), or folder with a config.json.")
    ] = None
    turns: Annotated[int | None, typer.Option(help="Model calls of a rollout.")] = None
    tokens: Annotated[
        str | None, typer.Option(help="Tokens of a rollout's conversation at its end, such as 16k.")
    ] = None
    rollouts: Annotated[str | None, typer.Option(help="Rollouts of a step; default: 2048.")] = None
    group: Annotated[int | None, typer.Option(help="Rollouts of a task; default: 8.")] = None
    concurrency: Annotated[int | None, typer.Option(help="Rollouts at a time; default: all of a step.")] = (
        None
    )
    engine_gpus: Annotated[
        int | None, typer.Option(help="GPUs of an engine replica; default: the fewest that suffice.")
    ] = None
    micro_tokens: Annotated[
        int | None, typer.Option(help="Tokens of a forward pass of the update; default: 16384.")
    ] = None
    sequence_parallel: Annotated[
        int | None, typer.Option(help="GPUs that share the tokens of a row in the update; default: 1.")
    ] = None
    tokens_per_s: Annotated[
        float | None,
        typer.Option(
            help="Tokens that a GPU generates a second, where you measured it; default: by formula."
        ),
    ] = None
    assumptions: Annotated[
        list[str] | None,
        typer.Option("--assume", help="name=value, e.g. gpu_memory_gb=141 (docs/sizing.md)."),
    ] = None
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", exists=True, dir_okay=False, help="A run's file to take sizes from."),
    ] = None
    sets: Sets = None
    costs: Annotated[
        Path | None, typer.Option(help="File of measured costs; default: those of the suite's benchmarks.")
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False


def register(app: typer.Typer) -> None:
    add_command(app, "plan", PlanOptions, run)


def run(given: PlanOptions) -> None:
    """Compute what a step needs, from measured costs, formulas and stated assumptions, and what binds first.

    agl plan --gpus 64 --model 7b --turns 20 --tokens 16k
    """
    costs = committed() if given.costs is None else read_costs(given.costs)
    if given.tokens_per_s is not None and given.tokens_per_s <= 0:
        raise ConfigError(f"--tokens-per-s {given.tokens_per_s:g}: more than 0 is needed")
    planned, edits = _planned(given)
    found = plan(planned, assume([*edits, *(given.assumptions or [])]), costs, given.tokens_per_s)
    if given.as_json:
        last_line(as_json(found, costs))
        return
    console = Console()
    console.width = WIDTH if not console.is_terminal else min(console.width, WIDTH)
    show(found, costs, console)


def _planned(given: PlanOptions) -> tuple[PlannedRun, list[str]]:
    """Return the run, and the assumptions that its file states."""
    sizes: dict[str, Any] = {}
    edits: list[str] = []
    if given.config is not None:
        from agentlightning.cli.plan_sizes import sizes_of

        sizes, edits = sizes_of(given.config, given.sets)
    stated = sizes.pop("model", None)
    model = given.model or stated
    names = ("gpus", "turns", "group", "concurrency", "engine_gpus", "micro_tokens", "sequence_parallel")
    sizes |= {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    for name in ("tokens", "rollouts"):
        if (text := getattr(given, name)) is not None:
            sizes[name] = count(text, f"--{name}")
    missing = [f"--{name}" for name in ("gpus", "turns", "tokens") if name not in sizes]
    if missing or model is None:
        wanted = ", ".join([*missing, *(["--model"] if model is None else [])])
        raise ConfigError(
            f"{wanted}: needed for a plan, e.g. agl plan --gpus 64 --model 7b --turns 20 --tokens 16k"
        )
    name, shape = find_model(str(model))
    return PlannedRun(model=name, shape=shape, **sizes), edits


def as_json(found: Plan, costs: Costs) -> dict[str, object]:
    """Return plan and costs as JSON takes them."""
    told = msgspec.to_builtins(found)
    return {**told, "binds_first": told["limits"][0], "costs": msgspec.to_builtins(costs)}


# ------------------------------------------------------------------------------------------------- drawing
def show(found: Plan, costs: Costs, console: Console) -> None:
    """Print the plan."""
    given = found.inputs
    title = Text.assemble(
        (f"{given['gpus']:,} GPUs", "bold"), " · ", (str(given["model"]), "bold"), " · ",
        f"{given['rollouts']:,} rollouts in groups of {given['group']} · {given['turns']} calls · "
        f"{given['tokens']:,} tokens",
    )  # fmt: skip
    console.print()
    console.print(Padding(title, (0, 1)))
    console.print(_figures(found))
    console.print(_limits(found.limits))
    console.print(_verdict(found))
    lines = [f"[bold]![/] {note}" for note in found.notes]
    marks = " ".join(f"[{style}]{letter}[/] {name}" for name, (letter, style) in MARKS.items())
    machines = sorted({source.machine for cost in costs.all().values() for source in cost.sources})
    lines.append(f"{marks} · measured on {'; '.join(machines)}")
    for line in lines:
        console.print(Padding(Text.from_markup(line), (0, 1)), style="dim")


def _figures(found: Plan) -> Table:
    table = TextTable(box=None, padding=(0, 1), expand=False, show_header=False)
    for width, justify in ((41, "left"), (8, "right"), (3, "left"), (5, "left"), (0, "left")):
        table.add_column(width=width or None, justify=justify, no_wrap=bool(width))  # type: ignore[arg-type]
    part = ""
    for figure in found.figures:
        if figure.part != part:
            part = figure.part
            table.add_row(Text(part, style="bold"))
        name = Text(f"  {figure.name}", style="bold" if figure.name == "step" else "")
        table.add_row(name, *amount(figure), _marks(figure), Text(figure.how, style="dim"))
    return table


def amount(figure: PlanFigure) -> tuple[str, str]:
    """Return value and unit as they are shown: three digits or more, and MB below a GB."""
    value, unit = figure.value, figure.unit
    if unit == "":
        return (f"{value:.1%}" if "share" in figure.name else f"{value:,.0f}"), ""
    if unit == "GB" and value < 1:
        value, unit = 1e3 * value, "MB"
    return (f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"), unit


def _marks(figure: PlanFigure) -> Text:
    marks = [MARKS[name] if name in figure.basis else (" ", "") for name in MARKS]
    return Text.assemble(*marks)


def _limits(limits: list[PlanLimit]) -> Table:
    table = TextTable(box=None, padding=(0, 1), show_header=False)
    table.add_row(Text("Limits", style="bold"))
    for limit in limits:
        style = "red" if limit.used > 1 else "yellow" if limit.used > 0.7 else "green"
        full = round(min(1.0, limit.used) * BAR)
        bar = Text.assemble(("█" * full, style), ("░" * (BAR - full), "dim"))
        used = f"{limit.used:.0%}" if limit.used < 10 else f"{limit.used:,.0f} ×"
        table.add_row(
            f"  {limit.name}", bar, Text(used, style=style, justify="right"), limit.needs, limit.has
        )
    return table


def _verdict(found: Plan) -> Panel:
    first = found.binds_first
    style = "red" if first.used > 1 else "yellow" if first.used > 0.7 else "green"
    over = [limit for limit in found.limits if limit.used > 1]
    head = Text.assemble(("Binds first: ", "bold"), (first.name, f"bold {style}"), f" ({first.used:.0%})")
    if not over:
        head.append("; nothing is short")
    lines = [head, *(_advice(limit) for limit in over or [first])]
    return Panel(Group(*lines), border_style=style, expand=False)


def _advice(limit: PlanLimit) -> Text:
    return Text.assemble(("→ ", "cyan"), (f"{limit.name}: ", "bold"), limit.change)
