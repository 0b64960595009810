"""Views of the examples' rollouts: agl-examples registers them, and the example's own files draw them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from contract.runs import RUN, make_run, plugins

import agl_dashboard.plugin
import agl_examples.plugin
from agentlightning.capture.emit import BODY
from agentlightning.store import SQLiteStore
from agentlightning.types import AttemptStatus, Mode, Rollout, Span
from agl_dashboard.data.places import Places
from agl_dashboard.server.access import Access
from agl_dashboard.server.app import start
from agl_examples.views import recorded_game, trained_question
from plugins.dashboard.tests.browsing import TOKEN, Browser
from spider.datasets import load
from werewolf.record import KEY
from werewolf.replay import local_game

QUESTION: dict[str, Any] = {**load("dev", 1)[0]}
DEAL = {"id": "deal-3", "deal": 3, "preset": "mini5", "record": True}


async def ended(store: SQLiteStore, rollout_id: str, task: dict[str, Any], left: dict[str, Any]) -> None:
    """A rollout of ``task`` that left an object."""
    await store.enqueue_many_rollouts([Rollout(rollout_id=rollout_id, input=task, run_id=RUN)])
    lease = await store.dequeue_rollout("w", run_id=RUN)
    assert lease is not None
    attempt = lease.attempt.attempt_id
    span = Span(rollout_id=rollout_id, attempt_id=attempt, name="object", trace_id="t" * 32, span_id="s" * 16,
                start_time=1.0, end_time=1.0, attributes={BODY: left})  # fmt: skip
    await store.update_attempt(rollout_id, attempt, AttemptStatus.SUCCEEDED, spans=[span])


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Browser]:
    """A dashboard over rollouts of both examples, beside those of another agent."""
    store = SQLiteStore(await make_run(tmp_path) / "store.sqlite")
    await ended(store, "ro-game", DEAL, {KEY: local_game("mini5", 3, "random", "random", "zh")})
    await ended(store, "ro-cut", DEAL, {})
    await ended(store, "ro-asked", QUESTION, {})
    await store.close()
    found = plugins(agl_dashboard.plugin, agl_examples.plugin)
    dashboard = await start(Places(str(tmp_path), found), Access(TOKEN, lambda _: None))
    async with aiohttp.ClientSession() as session:
        yield Browser(dashboard, session)
    await dashboard.close()


async def test_a_view_is_offered_where_it_applies_and_drawn_by_the_example(browser: Browser) -> None:
    titles = {
        name: {"Replay", "Journey"} & {*(await browser.get(f"/s/{RUN}/rollouts/{name}")).words.split()}
        for name in ("ro-0-0", "ro-game", "ro-cut", "ro-asked")
    }
    expected = {"ro-0-0": set(), "ro-game": {"Replay"}, "ro-cut": {"Replay"}, "ro-asked": {"Journey"}}
    assert titles == expected
    drawn = await browser.get(f"/s/{RUN}/rollouts/ro-game/views/werewolf/frame")
    assert "mini5" in drawn.words and "狼人" in drawn.words
    cut = await browser.get(f"/s/{RUN}/rollouts/ro-cut/views/werewolf/frame", status=400)
    assert "left no game" in cut.words
    asked = await browser.get(f"/s/{RUN}/rollouts/ro-asked/views/spider/frame", status=404)
    assert "has no policy folder" in asked.words  # which spider.journey says


@pytest.mark.parametrize("task", [
    None, "a question", {"preset": "fast", "record": True}, {**DEAL, "record": False},
    {key: QUESTION[key] for key in ("id", "db_id", "question", "query")},
])  # fmt: skip
def test_rollouts_of_another_agent_have_none(task: Any) -> None:
    rollout = Rollout(rollout_id="r", input=task)
    assert not recorded_game(rollout) and not trained_question(rollout)


@pytest.mark.parametrize(("mode", "applies"), [("train", True), ("val", False)])
def test_a_questions_way_is_that_through_a_training(mode: Mode, applies: bool) -> None:
    assert trained_question(Rollout(rollout_id="r", input=QUESTION, mode=mode)) is applies


def test_what_draws_is_found_without_a_path_to_the_examples(tmp_path: Path) -> None:
    found = """
from pathlib import Path
from agl_examples.catalogue import files_folder
from agl_examples.views import _example
for module in ("werewolf.replay", "spider.journey"):
    assert files_folder() in Path(_example(module).__file__).parents
"""
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([sys.executable, "-c", found], check=True, cwd=tmp_path, env=outside)


def test_the_plugin_needs_no_dashboard_and_no_audit() -> None:
    alone = """
import sys
sys.modules.update(dict.fromkeys(("agl_audit", "agl_dashboard")))
import agl_examples.plugin
from agentlightning.plugins.manager import build
assert "math" in build([agl_examples.plugin], discover=False).table("agl_task_sets")
"""
    subprocess.run([sys.executable, "-c", alone], check=True)
