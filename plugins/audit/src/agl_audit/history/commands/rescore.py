"""``agl rescore``: a reward function over stored rollouts."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from agentlightning.cli.options import JsonObject
from agentlightning.terminal import Console, print_json
from agentlightning.types import UsageError
from agl_audit.commands import OneOf, RunArgument, StoreOfRun
from agl_audit.figures import number


def register(app: typer.Typer) -> None:
    @app.command("rescore")
    def rescore(
        what: RunArgument,
        reward: Annotated[str, typer.Option(help="module:function, which takes task and result.")],
        per: Annotated[str, typer.Option(help="What gets a reward: the rollout, or each call.")] = "rollout",
        agent: Annotated[
            str | None, typer.Option(help="With --per call: only the calls of this agent.")
        ] = None,
        name: Annotated[
            str | None, typer.Option(help="Name of the new rewards; default: function@digest.")
        ] = None,
        pythonpath: Annotated[
            Path, typer.Option(help="Folder that the module is imported from, too.")
        ] = Path("."),
        concurrency: Annotated[
            int, typer.Option(min=1, help="Rollouts at a time, for functions that wait.")
        ] = 1,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Store nothing.")] = False,
        run: OneOf = None,
        store: StoreOfRun = None,
        as_json: JsonObject = False,
    ) -> None:
        """Score stored rollouts with another reward function. The new rewards are kept beside the old ones,
        as a version that `--rewards NAME` of train, rollouts, trace and compare chooses.
        """
        sys.path.insert(0, str(pythonpath.expanduser().resolve()))
        given: dict[str, Any] = {"name": name, "dry_run": dry_run, "concurrency": concurrency}
        found = asyncio.run(_rescore(what, store, run, (reward, per, agent), given))
        if as_json:
            print_json(found)
        else:
            _show(found, what, dry_run)
        if found["errors"] and not found["scored"] and not found["already"]:
            raise UsageError(f"the function failed for all of {found['errors']} rollouts; see the first ones")


async def _rescore(
    what: str, store: str | None, run: str | None, function: tuple[str, Any, str | None], given: Any
) -> dict[str, Any]:
    from agl_audit.history.rescoring.function import RescoreFunction
    from agl_audit.history.rescoring.rescore import rescore as score
    from agl_audit.run import open_run

    made = RescoreFunction(*function)
    async with open_run(what, store, run=run, read_only=bool(given["dry_run"])) as opened:
        return (await score(opened, made, order=os.getpid(), **given)).summary()


def _show(found: dict[str, Any], what: str, dry_run: bool) -> None:
    console = Console(highlight=False, soft_wrap=True, markup=False)
    console.print(
        f"{found['scored']} of {found['rollouts']} rollouts scored by {found['function']} "
        f"({found['digest'][:12]}), {found['changed']} with another reward: mean "
        f"{number(found['mean_before'])} before, {number(found['mean_after'])} now"
    )
    rest = {"scored before": found["already"], "without a reward": found["no_reward"], **found["left_out"]}
    if counted := ", ".join(f"{n} {why}" for why, n in rest.items() if n):
        console.print(counted)
    for one in found["first_errors"]:
        console.print(f"\n{one['rollout_id']}: {one['error']}\n{one['traceback'] or ''}")
    if found["errors"]:
        console.print(
            f"{found['errors']} errors of the function are kept; run it again to try these rollouts again"
        )
    console.print(
        "nothing was stored (--dry-run)" if dry_run else f"agl rollouts {what} --rewards {found['name']}"
    )
