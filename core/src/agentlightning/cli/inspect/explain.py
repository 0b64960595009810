"""``agl explain``: why a token, a call or a rollout was trained as it was, or was not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from agentlightning.audit.explanation.explain import explain as explain_target
from agentlightning.audit.targets import open_target
from agentlightning.cli.inspect.explain_view import view
from agentlightning.cli.inspect.options import InRun, InStore, JsonObject
from agentlightning.cli.view import print_json


def register(app: typer.Typer) -> None:
    @app.command("explain")
    def explain(
        what: Annotated[
            str,
            typer.Argument(help="Rollout (ro-…), call (at-…-3.0) or token (at-…-3.0:7, counted from 0)."),
        ],
        run: InRun = None,
        store: InStore = None,
        policy: Annotated[
            Path | None, typer.Option(help="Score tokens under this policy folder, not the run's newest.")
        ] = None,
        as_json: JsonObject = False,
    ) -> None:
        """Explain a rollout, a call or a token: reward, rule, baseline with its group, advantage, weight,
        row, mask, merge, and its logprob then and now.
        """
        found = asyncio.run(_explain(what, run, store, policy))
        if as_json:
            print_json(found)
        else:
            Console().print(view(found), highlight=False)


async def _explain(what: str, run: str | None, store: str | None, policy: Path | None) -> dict[str, Any]:
    async with open_target(what, run, store) as (opened, target):
        return await explain_target(opened, target, policy)
