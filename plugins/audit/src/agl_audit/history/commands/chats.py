"""``agl chats``: stored rollouts as chats for fine-tuning."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from agentlightning.cli.options import JsonObject
from agentlightning.terminal import Console, print_json
from agentlightning.types import UsageError
from agl_audit.commands import OneOf, RunArgument, StoreOfRun


def register(app: typer.Typer) -> None:
    @app.command("chats")
    def chats(
        what: RunArgument,
        output: Annotated[Path, typer.Option("--output", "-o", help="JSONL file that is written.")],
        min_reward: Annotated[
            float | None, typer.Option(help="Only rollouts with at least this reward.")
        ] = None,
        best: Annotated[
            int | None,
            typer.Option(min=1, help="So many rollouts of each task, those with the highest rewards."),
        ] = None,
        agent: Annotated[str | None, typer.Option(help="Learn the answers of this agent only.")] = None,
        run: OneOf = None,
        store: StoreOfRun = None,
        as_json: JsonObject = False,
    ) -> None:
        """Write the conversations of stored rollouts as chats for `agl sft --data`: what `agl import` brought
        in, or any run. Each recorded answer is learned once.
        """
        found = asyncio.run(_chats(what, store, run, output, min_reward, best, agent))
        if as_json:
            print_json(found)
            return
        console = Console(highlight=False, soft_wrap=True, markup=False)
        console.print(f"{found['chats']} chats of {found['rollouts']} rollouts in {found['file']}")
        for reason, n in found["left_out"].items():
            console.print(f"left out: {n} {reason}")


async def _chats(
    what: str,
    store: str | None,
    run: str | None,
    output: Path,
    minimum: float | None,
    best: int | None,
    agent: str | None,
) -> dict[str, Any]:
    from agentlightning.store.pages import pages, record_pages
    from agl_audit.history.chats import chats_of, chosen
    from agl_audit.run import open_run

    left_out: Counter[str] = Counter()
    async with open_run(what, store, run=run) as opened:
        ids = [
            rollout.rollout_id
            async for page in pages(opened.store.query_rollouts, run_id=opened.run_id)
            for rollout in page
        ]
        records = [record for page in record_pages(ids) for record in await opened.store.records(page)]
        kept = chosen(records, minimum, best, left_out)
        rows = [row for record in kept for row in chats_of(record, agent, left_out)]
        if not rows:
            said = ", ".join(f"{n} {reason}" for reason, n in left_out.items()) or "it has no rollouts"
            raise UsageError(f"run {opened.run_id} gives no chats: {said}")
    output.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return {"chats": len(rows), "rollouts": len(kept), "file": str(output), "left_out": dict(left_out)}
