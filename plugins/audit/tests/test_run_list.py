"""The status of a run in lists: what came of it, not only that it has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from contract.runs import make_run, plugins

from agentlightning.store import SQLiteStore
from agl_audit.locations import RunLocation
from agl_audit.run_list import list_runs


@pytest.mark.parametrize(
    ("summary", "status"),
    [
        ({"learned": True}, "finished"),
        ({"learned": None}, "finished"),  # no steps were asked for
        ({"learned": False}, "learned nothing"),
        ({"learned": True, "ended": "stopped by budget: calls"}, "stopped by budget"),
        (None, "broken off"),
    ],
)
async def test_a_run_without_success_is_not_listed_as_finished(
    tmp_path: Path, summary: dict[str, Any] | None, status: str
) -> None:
    folder = await make_run(tmp_path, finished=False)
    store = SQLiteStore(folder / "store.sqlite")
    await store.update_run(folder.name, {"summary": summary})
    await store.close()
    place = RunLocation(str(folder / "store.sqlite"), folder, folder.name)
    [line] = await list_runs([place], plugins())
    assert line.status == status
