"""``agl verify``: is the store what was trained?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from agentlightning.cli.options import JsonObject
from agentlightning.terminal import Console, plural, print_json
from agl_audit.commands import OneOf, RunArgument, StoreOfRun
from agl_audit.run import open_run
from agl_audit.verification.verify import Verification, verify as verify_run


def register(app: typer.Typer) -> None:
    @app.command("verify")
    def verify(
        what: RunArgument,
        step: Annotated[int | None, typer.Option(help="Only this step, counted from 0.")] = None,
        run: OneOf = None,
        store: StoreOfRun = None,
        head: Annotated[
            str | None, typer.Option(help="The head of its chain, as the run printed it at its end.")
        ] = None,
        as_json: JsonObject = False,
    ) -> None:
        """Make every row, advantage, weight and evaluation of a run again from its store, and compare them,
        its files and its checkpoints with what was logged while it trained.

        Exit status 1 if anything differs; each difference is named, its root cause first. AGL_SIGNING_KEY:
        the key that the run was signed with.
        """
        result = asyncio.run(_verify(what, store, run, step, head, quiet=as_json))
        if as_json:
            print_json(result)
        else:
            show(result, Console())
        if not result.equal:
            raise typer.Exit(1)


async def _verify(
    what: str, store: str | None, run: str | None, step: int | None, head: str | None, quiet: bool
) -> Verification:
    async with open_run(what, store, run=run) as opened:
        with _progress(quiet) as advance:
            return await verify_run(opened, step, advance, head=head)


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on stderr if stderr is a terminal. Yields the function that moves the bar."""
    console = Console(stderr=True)
    columns = (
        TextColumn("[bold]step"), MofNCompleteColumn(), BarColumn(bar_width=36), TimeRemainingColumn()
    )  # fmt: skip
    hidden = quiet or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, of: progress.update(task, completed=done, total=of)


def show(result: Verification, console: Console) -> None:
    """Print the verdict, and every difference."""

    def say(*parts: Any) -> None:
        console.print(Text.assemble(*parts), highlight=False, soft_wrap=True)

    nouns = ("step", "rollout", "row", "token", "evaluation", "checkpoint")
    compared = ", ".join(plural(getattr(result, f"{noun}s"), noun) for noun in nouns)
    if result.equal:
        text = f": {compared}: everything that can be made again equals what was logged"
        say(("verified", "bold green"), text)
    else:
        causes = [d for d in result.differences if d.kind != "consequence"]
        say(("different", "bold red"), f": {plural(len(causes), 'difference')} in {result.run} ({compared})")
    for difference in result.differences:
        follows = difference.kind == "consequence"
        say(("  └", "dim") if follows else ("✗", "red"), f" {difference.text}")
    if result.redone:
        steps = ", ".join(map(str, result.redone))
        what = "the run went on from a checkpoint before that and is making it again"
        say(("not compared", "yellow"), f": step {steps}: {what}")
    if result.links:
        say((f"chain: {plural(result.links, 'link')}, head {result.head}", "dim"))
    for note in result.notes:
        say(("note", "yellow"), f": {note}")
    if result.params:
        say((result.params, "dim"))
