"""``agl trace``: what an attempt did, as a tree."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from rich.text import Text
from rich.tree import Tree

from agentlightning.cli.options import JsonObject
from agentlightning.terminal import print_json
from agentlightning.types import UsageError
from agl_audit.attempt_tree import AttemptTree, attempt_trees
from agl_audit.commands import InRun, InStore, Rewards
from agl_audit.drawing import draw, short
from agl_audit.figures import wide_console
from agl_audit.store.reward_versions import find_version
from agl_audit.targets import open_target

_WIDE = 130
"""Columns where stdout is no terminal."""


def register(app: typer.Typer) -> None:
    @app.command("trace")
    def trace(
        what: Annotated[
            str,
            typer.Argument(metavar="ROLLOUT|ATTEMPT", help="A rollout (its latest attempt) or an attempt."),
        ],
        every: Annotated[bool, typer.Option("--all", help="All attempts of the rollout.")] = False,
        rewards: Rewards = None,
        run: InRun = None,
        store: InStore = None,
        as_json: JsonObject = False,
    ) -> None:
        """Show the tree of an attempt: agents, model calls, tools, rewards, errors."""
        traces = asyncio.run(_trace(what, run, store, every, rewards))
        if as_json:
            print_json({"attempts": traces})
            return
        if not traces:
            raise UsageError(f"{what} has no attempt yet")
        console = wide_console(_WIDE)
        for one in traces:
            console.print(tree(one), highlight=False)


async def _trace(
    what: str, run: str | None, store: str | None, every: bool, rewards: str | None
) -> list[AttemptTree]:
    async with open_target(what, run, store) as (opened, target):
        version = await find_version(opened.store, target.rollout.run_id or opened.run_id, rewards)
        return await attempt_trees(opened, target, every, version)


def tree(one: AttemptTree) -> Tree:
    """Return an attempt as a rich tree."""
    good = one.status == "succeeded"
    title = Text.assemble(
        ("attempt ", "bold"), one.attempt, (f"  {one.status}", "green" if good else "red"),
        (f"  {one.seconds:.2f} s" if one.seconds is not None else "", "dim"),
        (f"  {one.spans} spans · {one.rollout} #{one.sequence}", "dim"),
    )  # fmt: skip
    if one.resources:
        title.append(f"  given {one.resources}", style="dim")
    if one.reason:
        title.append(f"\n{short(one.reason, 300)}", style="red")
    if one.rewards:
        title.append(f"\nrewards of {one.rewards}", style="dim")
    if one.traceback:
        title.append(f"\n{one.traceback}", style="dim")
    return draw(title, one.roots)
