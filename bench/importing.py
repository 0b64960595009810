"""Traces of other tools, written and read back: ``make test-import``.

For each format a conversation is written as the tool documents it, and by the tool's own library where that
is installed; it must come back whole, through a store, and as a chat. The last line is one JSON object: the
``formats``, those that are ``ok``, and how each was ``written``.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
import tempfile
from collections import Counter
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from agentlightning.plugins.manager import load
from agentlightning.store import SQLiteStore
from agl_audit.history.chats import chats_of
from agl_audit.history.importing.files import TraceFile
from agl_audit.history.importing.writing import write_traces
from plugins.audit.tests.history.importing.written import ANSWER, ANSWERS, ASKED, LIBRARIES, WRITERS


async def come_back(path: Path, name: str) -> str:
    """Return what is wrong with the conversation of a file once it went through a store; empty: nothing."""
    file = TraceFile(path, load().table("agl_import_formats"))
    if file.format.name != name:
        return f"it was taken for {file.format.name}"
    store = SQLiteStore(":memory:")
    try:
        done = await write_traces(store, "run", name, file.traces())
        rollouts = await store.query_rollouts(run_id="run")
        records = await store.records([rollout.rollout_id for rollout in rollouts])
    finally:
        await store.close()
    calls = [call for record in records for call in record.calls]
    if [(call.request or {}).get("messages") for call in calls] != list(ASKED):
        return f"other messages: {[call.request for call in calls]}"
    if [call.response for call in calls] != list(ANSWERS) or any(call.has_ids for call in calls):
        return f"other answers: {[call.response for call in calls]}"
    chats = [chat for record in records for chat in chats_of(record, None, Counter())]
    return (
        ""
        if [chat["messages"][-1] for chat in chats] == [ANSWER]
        else f"other chats: {chats} of {done.summary()}"
    )


def written_by(module: str) -> str | None:
    """Return distribution and version of a library, ``None`` if it is not installed."""
    try:
        if importlib.util.find_spec(module) is None:
            return None
    except ModuleNotFoundError:
        return None
    [name, *_] = [d for d in packages_distributions()[module.partition(".")[0]] if "google" not in d] or [
        "protobuf"
    ]
    return f"{name} {version(name)}"


def main() -> int:
    """Write and read every format."""
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, write in WRITERS.items():
            ways = {}
            if name not in LIBRARIES or write is not LIBRARIES[name][1]:
                ways["documented"] = write
            if name in LIBRARIES and (library := written_by(LIBRARIES[name][0])):
                ways[library] = LIBRARIES[name][1]
            wrong = {way: asyncio.run(come_back(make(Path(folder)), name)) for way, make in ways.items()}
            rows[name] = {"written": list(ways), "wrong": {way: said for way, said in wrong.items() if said}}
            print(f"{name}: {wrong or 'not written: its library is missing'}", file=sys.stderr)
    ok = [name for name, row in rows.items() if row["written"] and not row["wrong"]]
    print(json.dumps({"formats": len(rows), "ok": len(ok), "rows": rows}))
    return 0 if len(ok) == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
