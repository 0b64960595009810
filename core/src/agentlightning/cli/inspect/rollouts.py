"""``agl rollouts``: the rollouts of a run, with the ids that ``trace`` and ``explain`` take."""

from __future__ import annotations

import asyncio
import shlex
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

if TYPE_CHECKING:
    from rich.table import Table

    from agentlightning.audit.rollout_list import RolloutPage, RolloutSummary

_WIDE = 150
"""Columns of the table where nobody's terminal sets them."""
_SHORT = 120
"""Characters of a reason that are shown."""
_COLOURS = {"succeeded": "green", "failed": "red", "cancelled": "yellow", "running": "cyan"}


def register(app: typer.Typer) -> None:
    @app.command("rollouts")
    def rollouts(
        what: Annotated[
            str, typer.Argument(metavar="RUN", help="Run id or its beginning, run folder, or store.")
        ],
        failed: Annotated[
            bool, typer.Option("--failed", help="Only those that failed or were cancelled.")
        ] = False,
        reward: Annotated[
            str | None, typer.Option(help="Only those with such a reward: 1, '<0.5', '>=1', '!=0', none.")
        ] = None,
        mode: Annotated[str | None, typer.Option(help="train, or val: those of evaluations.")] = None,
        task: Annotated[str | None, typer.Option(help="Only those of this task id.")] = None,
        step: Annotated[int | None, typer.Option(help="Only those of this step, counted from 0.")] = None,
        calls: Annotated[bool, typer.Option("--calls", help="A line for each call, too.")] = False,
        limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
        after: Annotated[str | None, typer.Option(help="Begin behind this rollout.")] = None,
        run: Annotated[str | None, typer.Option(help="Which run, if RUN is a store of several.")] = None,
        store: Annotated[str | None, typer.Option(help="The store of RUN, if it lies elsewhere.")] = None,
        as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    ) -> None:
        """List the rollouts of a run in their order: task, status, reward, calls, reason, and the ids that
        `agl trace` and `agl explain` take.
        """
        asked: dict[str, Any] = {
            "failed": failed, "reward": reward, "mode": _mode(mode), "task": task, "step": step,
            "limit": limit, "after": after,
        }  # fmt: skip
        page = asyncio.run(_page(what, store, run, asked))
        if as_json:
            for line in page.lines:
                print(msgspec.json.encode(line).decode())
            _more(page, what, err=True)
            return
        _show(page, calls)
        _more(page, what)


def _mode(given: str | None) -> Literal["train", "val"] | None:
    from agentlightning.types import UsageError

    if given is None:
        return None
    if given == "train":
        return "train"
    if given == "val":
        return "val"
    raise UsageError(f"--mode {given}: it is train or val")


async def _page(what: str, store: str | None, run: str | None, asked: dict[str, Any]) -> RolloutPage:
    from agentlightning.audit.rollout_list import list_rollouts
    from agentlightning.audit.run import open_run

    async with open_run(what, store, run=run) as opened:
        return await list_rollouts(opened, **asked)


def _show(page: RolloutPage, calls: bool) -> None:
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = _WIDE
    if not page.lines:
        console.print("no such rollouts", highlight=False)
        return
    console.print(table(page.lines, calls))
    called = next((line for line in page.lines if line.calls), None)
    first = called or page.lines[0]
    console.print(f"agl trace {first.rollout}", highlight=False, soft_wrap=True)
    if called is not None:
        console.print(f"agl explain {called.calls[0].call}", highlight=False, soft_wrap=True)


def _more(page: RolloutPage, what: str, *, err: bool = False) -> None:
    """That there are more, and the word that shows them."""
    if page.after is not None:
        line = f"more: agl rollouts {shlex.quote(what)} --after {page.after} (and the same filters)"
        typer.echo(line, err=err)


def table(lines: list[RolloutSummary], calls: bool = False) -> Table:
    """The rollouts, and with ``calls`` theirs below each."""
    from rich.table import Table
    from rich.text import Text

    out = Table(header_style="bold")
    for name in ("rollout", "task", "batch", "status", "reward", "calls", "attempt", "reason"):
        side: Any = "right" if name in ("reward", "calls") else "left"
        out.add_column(name, justify=side, overflow="fold", no_wrap=name == "rollout")
    for line in lines:
        again = f" (of {line.attempts})" if line.attempts > 1 else ""
        reason = _short(" ".join((line.reason or "").split()))
        if line.raised_at:
            reason += f"\nat {line.raised_at}"
        out.add_row(
            Text(line.rollout),
            Text(line.task),
            Text(line.batch),
            Text(line.status, style=_COLOURS.get(line.status, "")),
            _number(line.reward),
            str(len(line.calls)),
            Text(f"{line.attempt or '–'}{again}"),
            Text(reason),
        )
        for call in line.calls if calls else ():
            text = f"{call.tokens} tokens" if call.status == "ok" else call.status
            out.add_row(
                "", Text(f"  {call.agent}"), "", Text(text), _number(call.reward), "", Text(call.call)
            )
    return out


def _short(text: str) -> str:
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 1]}…"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
