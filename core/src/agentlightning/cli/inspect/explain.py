"""``agl explain``: why a token, a call or a rollout was trained as it was, or was not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer


def register(app: typer.Typer) -> None:
    @app.command("explain")
    def explain(
        what: Annotated[
            str,
            typer.Argument(help="Rollout (ro-…), call (at-…-3.0) or token (at-…-3.0:7, counted from 0)."),
        ],
        run: Annotated[str | None, typer.Option(help="The run it belongs to; default: look in all.")] = None,
        store: Annotated[str | None, typer.Option(help="The store to look in.")] = None,
        policy: Annotated[
            Path | None, typer.Option(help="Score tokens under this policy folder, not the run's newest.")
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    ) -> None:
        """Explain a rollout, a call or a token: reward, rule, baseline with its group, advantage, weight,
        row, mask, merge, and its logprob then and now.
        """
        from rich.console import Console

        from agentlightning.cli.inspect.explain_view import view

        found = asyncio.run(_explain(what, run, store, policy))
        if as_json:
            print(msgspec.json.encode(found, enc_hook=str).decode(), flush=True)
        else:
            Console().print(view(found), highlight=False)


async def _explain(what: str, run: str | None, store: str | None, policy: Path | None) -> dict[str, Any]:
    from agentlightning.audit.explanation.explain import explain
    from agentlightning.audit.targets import open_target

    async with open_target(what, run, store) as (opened, target):
        return await explain(opened, target, policy)
