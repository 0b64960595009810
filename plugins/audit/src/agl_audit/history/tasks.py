"""The inputs of stored rollouts as tasks: ``environment: {train: {target:
"agl_audit.history.tasks:stored", …}}``.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from agentlightning.store.pages import pages
from agl_audit.run import open_run


def stored(run: str, store: str | None = None, limit: int | None = None) -> list[Any]:
    """Return the inputs of a run's training rollouts, each once, in the order of their first rollout.

    ``run``: its id, folder, or the store that holds it. ``limit``: at most so many.
    """
    return asyncio.run(_stored(run, store))[:limit]


async def _stored(run: str, store: str | None) -> list[Any]:
    found: dict[str, Any] = {}
    async with open_run(run, store) as opened:
        async for page in pages(opened.store.query_rollouts, run_id=opened.run_id):
            for rollout in page:
                if rollout.mode in (None, "train"):
                    found.setdefault(json.dumps(rollout.input, sort_keys=True), rollout.input)
    return [*found.values()]
