"""What a program under ``agl run`` pays for a span: milliseconds of the thread that ends it.

    python bench/run_spans.py

A program emits messages of 2,000 characters: 100 with pauses of 10 ms (*paced*), 1,000 without a pause
(*burst*), and 1,000 in 8 threads (*threads*). *commits* counts the writes of ``agl run`` to its store,
*drain_seconds* is the time from the program's end until all of its spans are on file. The last line is JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from agentlightning.run_program.attempts import run_all
from agentlightning.run_program.options import ProgramOptions
from agentlightning.run_program.session import open_session
from agentlightning.store.http import traces
from agentlightning.testing import ScriptedModelServer

PROGRAM = """
import json, statistics, sys, threading, time
import agentlightning as agl

TEXT = "x" * 2000

def timed(count, pause=0.0):
    seconds = []
    for _ in range(count):
        time.sleep(pause)
        began = time.perf_counter()
        agl.emit_message(TEXT)
        seconds.append(time.perf_counter() - began)
    return seconds

timed(10, 0.05)
paced = sorted(timed(100, 0.01))
burst = timed(1000)
began = time.perf_counter()
threads = [threading.Thread(target=timed, args=(125,)) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps({
    "paced_ms": round(1e3 * statistics.median(paced), 3),
    "paced_ms_p95": round(1e3 * paced[95], 3),
    "burst_ms": round(1e3 * statistics.mean(burst), 3),
    "threads_ms": round(time.perf_counter() - began, 3),
}), file=open(sys.argv[1], "w"))
open(sys.argv[2], "w").write(repr(time.time()))
"""


async def measure(folder: Path) -> dict[str, Any]:
    commits = 0
    store_spans = traces.store_spans

    async def counted(*args: Any) -> traces.RefusalCounts:
        nonlocal commits
        commits += 1
        return await store_spans(*args)

    traces.store_spans = counted  # type: ignore[assignment]
    program, result, ended = (folder / name for name in ("app.py", "result", "ended"))
    program.write_text(PROGRAM, encoding="utf-8")
    with ScriptedModelServer() as server:
        options = ProgramOptions(
            command=[sys.executable, str(program), str(result), str(ended)],
            upstream=server.url,
            model=server.model,
            output=folder / "runs",
        ).check()
        async with open_session(options) as session:
            (one,) = await run_all(session)
            drained = time.time()
            assert one.rollout is not None
            spans = await session.store.query_spans(one.rollout.rollout_id, limit=10_000)
    return {
        **json.loads(result.read_text(encoding="utf-8")),
        "spans": len(spans),
        "commits": commits,
        "drain_seconds": round(drained - float(ended.read_text(encoding="utf-8")), 3),
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asyncio.run(measure(Path(folder)))))
