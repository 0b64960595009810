"""Forest, comparisons, resources, machines, ledger, views, live changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from contract.rich import RUN as RICH
from contract.runs import RUN, make_run, plugins

from agentlightning.hookspecs import hookimpl
from agentlightning.store import SQLiteStore
from agentlightning.types import Resources, Rollout
from agentlightning.types.work import LLM, JsonResource, PromptTemplate
from agentlightning.webserver import app_runner, listen
from agl_audit.run import OpenRun
from agl_cluster.store.app import create_app
from agl_dashboard.data.places import Places
from agl_dashboard.hookspecs import RolloutViewSpec
from agl_dashboard.pages.difference import words
from agl_dashboard.pages.resources import changes, texts, tree
from agl_dashboard.server.access import Access
from agl_dashboard.server.app import start
from agl_dashboard.server.live import changes as store_changes
from plugins.dashboard.tests.browsing import TOKEN, Browser
from plugins.dashboard.tests.conftest import Serve


async def test_the_forest_draws_every_call_with_its_row(runs: Path, serve: Serve) -> None:
    page = await (await serve(runs)).get(f"/s/{RUN}/rollouts/ro-0-0/forest")
    assert "2 trained calls in" in page.words
    assert sum(str(given.get("class")).startswith("node ") for _, given in page.elements) == 2


async def test_a_call_that_is_not_trained_is_drawn_with_its_reason(runs: Path, serve: Serve) -> None:
    browser = await serve(runs)
    seen = [await browser.get(f"/s/{RICH}/rollouts/ro-0-{n}/forest") for n in range(12)]
    assert any("not trained, superseded" in page.words for page in seen)


async def test_an_id_of_any_characters_has_a_page(tmp_path: Path, serve: Serve) -> None:
    store, odd = SQLiteStore(tmp_path / "kept.sqlite"), "ro-{{x}}/%2F?#<b>'\""
    await store.add_run("r", {"run_id": "r"})
    await store.enqueue_rollout("x", rollout_id=odd, run_id="r")
    await store.close()
    browser = await serve(tmp_path / "kept.sqlite")
    (link,) = [x for x in (await browser.get("/s/kept/runs/r/rollouts")).links if "/rollouts/ro-" in x]
    assert odd in (await browser.get(link)).words
    assert not (await browser.get(link)).active


async def test_two_rollouts_of_a_group(runs: Path, serve: Serve) -> None:
    browser = await serve(runs)
    page = await browser.get(f"/s/{RUN}/difference?a=ro-0-0&b=ro-0-1")
    assert "ro-0-0" in page.words and "Both have the same task" in page.words
    await browser.get(f"/s/{RUN}/difference?a=ro-0-0&b=ro-none", status=404)
    await browser.get(f"/s/{RUN}/difference?a=ro-0-0", status=400)


def test_texts_are_compared_word_by_word() -> None:
    left, right = words("add 2 and 3", "add 2 and 4")
    assert [p.text for p in left if p.kind == "only"] == ["3"]
    assert [p.text for p in right if p.kind == "only"] == ["4"]
    assert "".join(p.text for p in left) == "add 2 and 3"


async def test_runs_are_compared(tmp_path: Path, serve: Serve) -> None:
    await make_run(tmp_path)
    await make_run(tmp_path, name="20260102-030406-other", info={"seed": 2, "driver": "verl"})
    browser = await serve(tmp_path)
    asked = f"/compare?run={RUN}/{RUN}&run=20260102-030406-other/20260102-030406-other"
    page = await browser.get(asked)
    assert "driver" in page.words and "verl" in page.words and "agl-core" not in page.words
    await browser.get(f"/compare?run={RUN}/{RUN}", status=400)


async def test_the_ledger_of_a_run_sums(runs: Path, serve: Serve) -> None:
    page = await (await serve(runs)).get(f"/s/{RICH}/runs/{RICH}/ledger")
    assert "calls made" in page.words and "superseded" in page.words and "does not sum" not in page.words


async def test_resources_with_versions_and_machines(tmp_path: Path, serve: Serve) -> None:
    store = SQLiteStore(tmp_path / "kept.sqlite")
    await store.add_resources(
        {"prompt": "Be brief.", "llm": LLM(endpoint="http://x/v1", model="m", api_key="sk-hidden")},
        resources_id="rs-a",
    )
    await store.update_resources("rs-a", {"prompt": "Be very brief."})
    await store.count("refused", "foreign-host", n=4)
    await store.update_worker("worker-7", "idle")
    await store.close()
    browser = await serve(tmp_path / "kept.sqlite")
    page = await browser.get("/s/kept/resources/rs-a")
    assert "version 2 of 2" in page.words and "+ Be very brief." in page.words
    first = await browser.get("/s/kept/resources/rs-a?version=1")
    assert "sk-hidden" not in first.text and "***" in first.words
    await browser.get("/s/kept/resources/rs-a?version=3", status=400)
    machines = await browser.get("/s/kept/machines")
    assert "worker-7" in machines.words and "foreign-host 4" in machines.words


def test_candidates_stand_below_their_parents() -> None:
    def bundle(name: str, *parents: str) -> Resources:
        held = {
            "prompt": PromptTemplate(template=name),
            "candidate": JsonResource(value={"parents": [*parents]}),
        }
        return Resources(resources_id=name, resources=held)

    found = tree([bundle("a"), bundle("b", "c"), bundle("c", "a"), bundle("x", "y"), bundle("y", "x")])
    assert [(one.resources.resources_id, one.depth) for one in found][:3] == [("a", 0), ("c", 1), ("b", 2)]
    assert sorted(one.resources.resources_id for one in found) == ["a", "b", "c", "x", "y"]
    assert [c.kind for _, lines in changes(texts(bundle("a")), texts(bundle("b"))) for c in lines] == [
        "gone",
        "new",
    ]


class Views:
    """A plugin with a view that shows a task, one that fails, and one that never applies."""

    @hookimpl(optionalhook=True)
    def agl_rollout_views(self) -> list[RolloutViewSpec]:
        async def render(run: OpenRun, rollout: Rollout) -> str:
            return f"<!doctype html><style>b {{}}</style><b>{run.run_id}</b>"

        def broken(rollout: Rollout) -> bool:
            raise KeyError("preset")

        return [
            RolloutViewSpec("shown", "Story", lambda rollout: True, render),
            RolloutViewSpec("broken", "Broken", broken, render),
            RolloutViewSpec("never", "Never", lambda rollout: False, render),
        ]


@pytest.fixture
async def with_views(runs: Path) -> AsyncIterator[Browser]:
    dashboard = await start(Places(str(runs), plugins(Views())), Access(TOKEN, lambda _: None))
    async with aiohttp.ClientSession() as session:
        yield Browser(dashboard, session)
    await dashboard.close()


async def test_views_of_plugins_stand_in_a_frame_without_scripts(with_views: Browser) -> None:
    base = f"/s/{RUN}/rollouts/ro-0-0"
    page = await with_views.get(base)
    assert "Story" in page.words and "Broken" not in page.words and "Never" not in page.words
    view = await with_views.get(f"{base}/views/shown")
    (frame,) = [given for tag, given in view.elements if tag == "iframe"]
    assert "sandbox" in frame and frame["sandbox"] in (None, "")
    inside = await with_views.get(str(frame["src"]))
    policy = inside.headers["Content-Security-Policy"]
    assert RUN in inside.words and policy.startswith("sandbox") and "script-src" not in policy
    await with_views.get(f"{base}/views/never", status=404)


async def test_a_page_is_told_of_each_change(tmp_path: Path, serve: Serve) -> None:
    writer = SQLiteStore(tmp_path / "kept.sqlite")
    await writer.add_run("r", {"run_id": "r"})
    browser = await serve(tmp_path / "kept.sqlite")
    url = f"{browser.dashboard.url}/s/kept/events"
    async with browser.session.get(url, headers={"Authorization": f"Bearer {TOKEN}"}) as answer:
        assert answer.content_type == "text/event-stream"
        assert (await answer.content.readline()) == b"event: state\n"
        await writer.update_run("r", {"steps": 3})
        seen = b""
        while b"event: changed" not in seen:
            seen = await asyncio.wait_for(answer.content.readline(), 300)
    await writer.close()


async def test_changes_of_any_store_are_seen(tmp_path: Path) -> None:
    store = SQLiteStore(":memory:")
    marks = store_changes(store)
    first = await anext(marks)
    await store.add_run("r", {"run_id": "r"})
    assert await anext(marks) != first
    await marks.aclose()  # type: ignore[attr-defined]
    await store.close()


async def test_no_page_shows_a_password_of_a_url(tmp_path: Path, serve: Serve) -> None:
    """Of the store's place, of endpoints, or of text that an agent wrote."""
    secret = "hidden-word"
    store = SQLiteStore(tmp_path / "kept.sqlite")
    await store.add_run("r", {"run_id": "r", "about": {"policy": f"m at http://me:{secret}@engine/v1"}})
    await store.enqueue_rollout(f"see https://x/y?token={secret}", rollout_id="ro", run_id="r")
    llm = LLM(endpoint=f"http://me:{secret}@engine/v1?api_key={secret}", model="m", api_key=secret)
    await store.add_resources({"llm": llm}, resources_id="given")
    server = app_runner(create_app(store))
    url = await listen(server)
    browser = await serve(url.replace("//", f"//me:{secret}@"))
    (key,) = [link.split("/")[2] for link in (await browser.get("/")).links if link.endswith("/runs/r")]
    names = ("runs/r", "machines", "resources", "resources/given", "rollouts/ro")
    pages = [await browser.get(place) for place in ("/", *(f"/s/{key}/{name}" for name in names))]
    await server.cleanup()
    await store.close()
    assert not any(secret in page.text for page in pages) and all("***" in page.text for page in pages[2:3])
