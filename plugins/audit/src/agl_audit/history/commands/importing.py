"""``agl import``: traces of other tools as rollouts."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from agentlightning.cli.options import JsonObject
from agentlightning.terminal import Console, print_json
from agentlightning.types import UsageError
from agl_audit.locations import ALL, RUNS_FOLDER, STORE


def register(app: typer.Typer) -> None:
    @app.command("import")
    def import_(
        files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="JSON or JSON Lines.")],
        format: Annotated[
            str | None,
            typer.Option("--format", help="Format of the files; default: what their first entry tells."),
        ] = None,
        run: Annotated[
            str | None, typer.Option(help="Id of the run; default: made of time and format.")
        ] = None,
        reward: Annotated[
            str | None,
            typer.Option(help="The score that is a rollout's reward; default: `reward`, else the only one."),
        ] = None,
        store: Annotated[
            str | None, typer.Option(help="Store that takes the rollouts; default: one in runs/RUN.")
        ] = None,
        as_json: JsonObject = False,
    ) -> None:
        """Bring in traces that other tools recorded: OTLP JSON, Agent Lightning v0.3, AgentOps, LangSmith,
        Langfuse, Phoenix. They have no token ids, so they serve fine-tuning (`agl chats`), rescoring and as
        tasks.
        """
        found = asyncio.run(_import(files, format, run, reward, store))
        if as_json:
            print_json(found)
        else:
            _show(found)


async def _import(
    files: list[Path], name: str | None, run: str | None, reward: str | None, place: str | None
) -> dict[str, Any]:
    from agentlightning.plugins.manager import load
    from agentlightning.plugins.stores import open_store
    from agentlightning.store.base import Conflict
    from agl_audit.history.importing.files import TraceFile
    from agl_audit.history.importing.writing import write_traces

    formats = load().table("agl_import_formats")
    read = [TraceFile(path, formats, name) for path in files]
    if len({one.format.name for one in read}) > 1:
        raise UsageError(
            "the files have several formats: " + ", ".join(f"{r.path}: {r.format.name}" for r in read)
        )
    source = read[0].format.name
    traces = [trace for one in read for trace in one.traces()]
    run_id = run or time.strftime(f"%Y%m%d-%H%M%S-{source}")
    if place is None:
        (RUNS_FOLDER / run_id).mkdir(parents=True, exist_ok=True)
    about = {"agent": f"imported ({source})", "files": {str(one.path.name): one.sha256 for one in read}}
    store = open_store(place or RUNS_FOLDER / run_id / STORE)
    try:
        try:
            await store.add_run(run_id, {"run_id": run_id, "about": about})
        except Conflict:
            known = {one["run_id"]: one for one in await store.query_runs(limit=ALL)}
            if not str(known[run_id].get("about", {}).get("agent", "")).startswith("imported"):
                raise UsageError(f"run {run_id} was trained here; import into a run of its own") from None
        done = await write_traces(store, run_id, source, traces, reward)
        summary = {"ended": "imported", "format": source, **done.summary()}
        await store.update_run(run_id, {"summary": summary})
    finally:
        await store.close()
    return {
        "run": run_id,
        "format": source,
        "store": place or str(RUNS_FOLDER / run_id / STORE),
        **done.summary(),
    }


def _show(found: dict[str, Any]) -> None:
    console = Console(highlight=False, soft_wrap=True, markup=False)
    console.print(
        f"{found['rollouts']} rollouts of {found['traces']} traces ({found['format']}), "
        f"{found['calls']} calls without token ids, {found['rewards']} rewards; "
        f"{found['rewarded']} rollouts have a reward"
    )
    if found["known"]:
        console.print(f"{found['known']} were in the run already")
    for reason, n in found["left_out"].items():
        console.print(f"left out: {n} {reason}")
    console.print(f"agl rollouts {found['run']}")
    console.print(f"agl chats {found['run']} --output chats.jsonl     then: agl sft --data chats.jsonl …")
