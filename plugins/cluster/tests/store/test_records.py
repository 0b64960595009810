"""Records travel as they are stored."""

from __future__ import annotations

from pathlib import Path

import pytest
from core.store.test_calls import opened, owned, same, talk

from agentlightning.store.base import NotFound
from agentlightning.store.pages import RECORD_PAGE
from agentlightning.store.sqlite.store import SQLiteStore
from agl_cluster.store.client import StoreClient
from agl_cluster.store.server import start


async def test_records_travel_as_they_are_stored(tmp_path: Path) -> None:
    """A client reads what the store itself reads, page by page, and its calls share their memory too."""
    store = SQLiteStore(tmp_path / "s.sqlite")
    ids = []
    for n in range(RECORD_PAGE + 1):
        owner = await opened(store)
        await store.add_calls(owned(talk(4, f"a{n}"), owner))
        ids.append(owner[0])
    served = await start(store, port=0)
    client = StoreClient(served.url)
    found, here = await client.records(ids), await store.records(ids)
    with pytest.raises(NotFound, match="no rollout ro-none"):
        await client.records(["ro-none"])
    await client.close()
    await served.close()
    assert [r.rollout.rollout_id for r in found] == ids
    for a, b in zip(found, here, strict=True):
        same(a.calls, b.calls)
        assert len({id(call.prompt_ids.view().obj) for call in a.calls if call.prompt_ids is not None}) == 1
