"""``agl lineage``: where a policy, a run or a prompt came from."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.tree import Tree

from agentlightning.cli.options import JsonObject
from agentlightning.terminal import Console, print_json
from agl_audit.commands import OneOf, StoreOfRun


def register(app: typer.Typer) -> None:
    @app.command("lineage")
    def lineage(
        what: Annotated[
            str, typer.Argument(metavar="RUN|FOLDER", help="A run, or the folder of a policy or checkpoint.")
        ],
        prompt: Annotated[
            str | None, typer.Option(help="Resources of the run's store: the lineage of this prompt.")
        ] = None,
        run: OneOf = None,
        store: StoreOfRun = None,
        as_json: JsonObject = False,
    ) -> None:
        """Trace a policy back to its tasks, rewards (by the digest of their content), code and parents, or a
        prompt to the versions and candidates that it was made of.
        """
        found = asyncio.run(_lineage(what, prompt, run, store))
        if as_json:
            print_json(found)
        else:
            console = Console(highlight=False, markup=False, soft_wrap=True)
            console.print(_prompt(found) if prompt else _tree(found))


async def _lineage(what: str, prompt: str | None, run: str | None, store: str | None) -> dict[str, Any]:
    from agl_audit.history.lineage.prompts import lineage_of_prompt
    from agl_audit.history.lineage.runs import lineage_of_run
    from agl_audit.run import open_run

    if prompt is None:
        return (await lineage_of_run(what, store, run)).shown()
    async with open_run(what, store, run=run) as opened:
        return await lineage_of_prompt(opened.store, prompt)


def _tree(found: Mapping[str, Any], tree: Tree | None = None) -> Tree:
    how = f"  ({found['how']})" if found.get("how") else ""
    title = f"{found['run']}{how}"
    here = Tree(title) if tree is None else tree.add(title)
    for name, value in found.items():
        if name not in ("run", "how", "parents"):
            here.add(f"{name.replace('_', ' ')}: {_text(name, value)}")
    for parent in found["parents"]:
        _tree(parent, here)
    return here


def _text(name: str, value: Any) -> str:
    if name in ("began", "made") and isinstance(value, int | float):
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(value))
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {one}" for key, one in value.items())
    return str(value)


def _prompt(found: Mapping[str, Any]) -> Tree:
    tree = Tree(f"{found['resources']} version {found['version']}  digest {found['digest']}")
    for one in found["versions"][:-1]:
        tree.add(f"version {one['version']}: digest {one['digest']}, {_text('made', one['made'])}")
    for one in found["ancestors"]:
        said = one.get("missing") or f"digest {one['digest']}, {_text('made', one['made'])}"
        tree.add(f"made of {one['resources']}: {said}")
    return tree
