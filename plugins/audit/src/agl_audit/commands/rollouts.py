"""``agl rollouts``: the rollouts of a run, with the ids that ``trace`` and ``explain`` take."""

from __future__ import annotations

import asyncio
import shlex
import sys
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from agentlightning.redaction import say
from agentlightning.terminal import TextTable, print_json
from agentlightning.types import UsageError
from agl_audit.commands import JsonLines, OneOf, Rewards, RunArgument, StoreOfRun
from agl_audit.drawing import short
from agl_audit.figures import number, wide_console
from agl_audit.rollout_list import RolloutPage, RolloutSummary, list_rollouts
from agl_audit.run import open_run

_WIDE = 150
"""Columns of the table where stdout is no terminal."""
_SHORT = 120
"""Characters of a reason that are shown."""
_COLOURS = {"succeeded": "green", "failed": "red", "cancelled": "yellow", "running": "cyan"}


def register(app: typer.Typer) -> None:
    @app.command("rollouts")
    def rollouts(
        what: RunArgument,
        failed: Annotated[
            bool, typer.Option("--failed", help="Only those that failed or were cancelled.")
        ] = False,
        reward: Annotated[
            str | None, typer.Option(help="Only those with such a reward: 1, '<0.5', '>=1', '!=0', none.")
        ] = None,
        mode: Annotated[str | None, typer.Option(help="train, or val: those of evaluations.")] = None,
        task: Annotated[str | None, typer.Option(help="Only those of this task id.")] = None,
        step: Annotated[int | None, typer.Option(help="Only those of this step, counted from 0.")] = None,
        rewards: Rewards = None,
        calls: Annotated[bool, typer.Option("--calls", help="A line for each call, too.")] = False,
        limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
        after: Annotated[str | None, typer.Option(help="Begin behind this rollout.")] = None,
        run: OneOf = None,
        store: StoreOfRun = None,
        as_json: JsonLines = False,
    ) -> None:
        """List the rollouts of a run in their order: task, status, reward, calls, reason, and the ids that
        `agl trace` and `agl explain` take.
        """
        if mode not in (None, "train", "val"):
            raise UsageError(f"--mode {mode}: it is train or val")
        asked: dict[str, Any] = {
            "failed": failed, "reward": reward, "mode": mode, "task": task, "step": step,
            "rewards": rewards, "limit": limit, "after": after,
        }  # fmt: skip
        page = asyncio.run(_page(what, store, run, asked))
        if as_json:
            for line in page.lines:
                print_json(line)
        else:
            _show(page.lines, calls)
        if page.after is not None:
            more = f"more: agl rollouts {shlex.quote(what)} --after {page.after} (and the same filters)"
            say(more, file=sys.stderr if as_json else None)


async def _page(what: str, store: str | None, run: str | None, asked: dict[str, Any]) -> RolloutPage:
    async with open_run(what, store, run=run) as opened:
        return await list_rollouts(opened, **asked)


def _show(lines: list[RolloutSummary], calls: bool) -> None:
    console = wide_console(_WIDE)
    if not lines:
        console.print("no such rollouts", highlight=False)
        return
    console.print(table(lines, calls))
    called = next((line for line in lines if line.calls), None)
    console.print(f"agl trace {(called or lines[0]).rollout}", highlight=False, soft_wrap=True)
    if called is not None:
        console.print(f"agl explain {called.calls[0].call}", highlight=False, soft_wrap=True)


def table(lines: list[RolloutSummary], calls: bool = False) -> Table:
    """Return the table of rollouts; with ``calls``, the calls of each stand below it."""
    out = TextTable(header_style="bold")
    for name in ("rollout", "task", "batch", "status", "reward", "calls", "attempt", "reason"):
        side: Any = "right" if name in ("reward", "calls") else "left"
        out.add_column(name, justify=side, overflow="fold", no_wrap=name == "rollout")
    for line in lines:
        again = f" (of {line.attempts})" if line.attempts > 1 else ""
        reason = short(line.reason or "", _SHORT)
        if line.raised_at:
            reason += f"\nat {line.raised_at}"
        out.add_row(
            line.rollout,
            line.task,
            line.batch,
            Text(line.status, style=_COLOURS.get(line.status, "")),
            number(line.reward),
            str(len(line.calls)),
            f"{line.attempt or '–'}{again}",
            reason,
        )
        for call in line.calls if calls else ():
            text = f"{call.tokens} tokens" if call.status == "ok" else call.status
            out.add_row("", f"  {call.agent}", "", text, number(call.reward), "", call.call)
    return out
