"""``agl verify``: is the store what was trained?"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentlightning.audit.verification.verify import Verification


def register(app: typer.Typer) -> None:
    @app.command("verify")
    def verify(
        what: Annotated[
            str, typer.Argument(metavar="RUN", help="Run id or its beginning, run folder, or store.")
        ],
        step: Annotated[int | None, typer.Option(help="Only this step, counted from 0.")] = None,
        run: Annotated[str | None, typer.Option(help="Which run, if RUN is a store of several.")] = None,
        store: Annotated[str | None, typer.Option(help="The store of RUN, if it lies elsewhere.")] = None,
        head: Annotated[
            str | None, typer.Option(help="The head of its chain, as the run printed it at its end.")
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    ) -> None:
        """Make every row, advantage, weight and evaluation of a run again from its store, and compare them,
        its files and its checkpoints with what was logged while it trained.

        Exit status 1 if anything differs; each difference is named, its root cause first. AGL_SEAL_KEY: the
        key that the run was signed with.
        """
        from rich.console import Console

        result = asyncio.run(_verify(what, store, run, step, head, quiet=as_json))
        if as_json:
            print(msgspec.json.encode(result, enc_hook=str).decode(), flush=True)
        else:
            show(result, Console())
        if not result.equal:
            raise typer.Exit(1)


async def _verify(
    what: str, store: str | None, run: str | None, step: int | None, head: str | None, quiet: bool
) -> Verification:
    from agentlightning.audit.run import open_run
    from agentlightning.audit.verification.verify import verify

    async with open_run(what, store, run=run) as opened:
        with _progress(quiet) as advance:
            return await verify(opened, step, advance, head=head)


def _progress(quiet: bool) -> AbstractContextManager[Callable[[int, int], None]]:
    """A bar on stderr, while a person watches."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        return nullcontext(lambda done, of: None)
    return _Bar(console)


class _Bar(AbstractContextManager["Callable[[int, int], None]"]):
    def __init__(self, console: Any) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("[bold]step"), MofNCompleteColumn(), BarColumn(bar_width=36), TimeRemainingColumn(),
            console=console, transient=True,
        )  # fmt: skip
        self._task = self._progress.add_task("", total=None)

    def __enter__(self) -> Callable[[int, int], None]:
        self._progress.start()
        return lambda done, of: self._progress.update(self._task, completed=done, total=of)

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def show(result: Verification, console: Any) -> None:
    """The verdict, for a person."""
    from rich.text import Text

    def say(*parts: Any) -> None:
        console.print(Text.assemble(*parts), highlight=False, soft_wrap=True)

    counted = (
        f"{_n(result.steps, 'step')}, {_n(result.rollouts, 'rollout')}, {_n(result.rows, 'row')}, "
        f"{_n(result.tokens, 'token')}, {_n(result.evaluations, 'evaluation')}, "
        f"{_n(result.checkpoints, 'checkpoint')}"
    )
    if result.equal:
        text = f": {counted}: everything that can be made again equals what was logged"
        say(("verified", "bold green"), text)
    else:
        causes = [d for d in result.differences if d.kind != "consequence"]
        say(("different", "bold red"), f": {_n(len(causes), 'difference')} in {result.run} ({counted})")
    for difference in result.differences:
        follows = difference.kind == "consequence"
        say(("  └", "dim") if follows else ("✗", "red"), f" {difference.text}")
    if result.redone:
        steps = ", ".join(map(str, result.redone))
        what = "the run went on from a checkpoint before that and is making it again"
        say(("not compared", "yellow"), f": step {steps}: {what}")
    if result.links:
        say((f"chain: {_n(result.links, 'link')}, head {result.head}", "dim"))
    for note in result.notes:
        say(("note", "yellow"), f": {note}")
    if result.params:
        say((result.params, "dim"))


def _n(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"
