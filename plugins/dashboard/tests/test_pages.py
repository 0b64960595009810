"""Pages over runs in which everything happens: each opens, is whole, and says what the command line says."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from contract.rich import RUN as RICH
from contract.runs import RAISED, RUN

from agentlightning.store import SQLiteStore
from plugins.dashboard.tests.conftest import Serve


@pytest.mark.parametrize("most", [60, pytest.param(3_000, marks=pytest.mark.nightly)])
async def test_every_page_that_a_link_leads_to_opens(most: int, runs: Path, serve: Serve) -> None:
    browser = await serve(runs)
    seen = await browser.crawl(most=most)
    kinds = {tuple(part for n, part in enumerate(urlsplit(a).path.split("/")) if n % 2) for a in seen}
    assert {("s", "rollouts", "calls"), ("s", "rollouts", "calls", "tokens")} <= kinds
    assert not [page.active for page in seen.values() if page.active]


async def test_the_list_of_runs_says_what_agl_runs_says(runs: Path, serve: Serve) -> None:
    page = await (await serve(runs)).get("/")
    assert RUN in page.words and RICH in page.words
    assert "0.250 → 0.750" in page.words and "finished" in page.words


async def test_a_run_shows_curves_counts_and_evaluations(runs: Path, serve: Serve) -> None:
    page = await (await serve(runs)).get(f"/s/{RICH}/runs/{RICH}")
    labels = [given["aria-label"] for tag, given in page.elements if tag == "svg" and "aria-label" in given]
    assert any(str(label).startswith("Reward: training") for label in labels)
    assert "superseded" in page.words and "over-length" in page.words
    assert any("bars" in str(given.get("class")) for _, given in page.elements)


async def test_filters_search_and_order_of_rollouts(runs: Path, serve: Serve) -> None:
    browser = await serve(runs)
    base = f"/s/{RUN}/runs/{RUN}/rollouts"
    assert "9 rollouts" in (await browser.get(base)).words
    assert "1 rollout" in (await browser.get(f"{base}?status=failed")).words
    assert "4 rollouts" in (await browser.get(f"{base}?reward=%3C0.5&mode=train")).words
    assert "1 rollout" in (await browser.get(f"{base}?reward=none")).words
    assert "1 rollout" in (await browser.get(f"{base}?q=TOOL+SERVER+is+gone")).words
    first = [line for line in (await browser.get(f"{base}?sort=-reward")).links if "/rollouts/ro-" in line]
    assert first[0].endswith("ro-eval") and first[-1].endswith("ro-1-3")


async def test_a_bad_filter_is_a_page_that_says_so(runs: Path, serve: Serve) -> None:
    browser = await serve(runs)
    base = f"/s/{RUN}/runs/{RUN}/rollouts"
    for query in ("reward=much", "sort=rollout;drop", "page=0", "page=x", "size=7"):
        assert 'class="problem"' in (await browser.get(f"{base}?{query}", status=400)).text
    assert (await browser.get("/s/nowhere/runs/x", status=404)).words
    assert "no rollout" in (await browser.get(f"/s/{RUN}/rollouts/ro-none", status=404)).words
    assert "no call" in (await browser.get(f"/s/{RUN}/rollouts/ro-0-0/calls/x", status=404)).words


async def test_a_failed_rollout_shows_where_its_agent_raised(runs: Path, serve: Serve) -> None:
    page = await (await serve(runs)).get(f"/s/{RUN}/rollouts/ro-1-3")
    assert RAISED in page.words and "the tool server is gone" in page.words
    assert any(given.get("class") == "timeline" for _, given in page.elements)


async def test_attempts_are_shown_one_by_one(runs: Path, serve: Serve) -> None:
    browser = await serve(runs)
    page = await browser.get(f"/s/{RICH}/rollouts/ro-0-1")
    attempts = [link for link in page.links if link.startswith("?attempt=")]
    assert len(attempts) == 2
    earlier = await browser.get(f"/s/{RICH}/rollouts/ro-0-1{attempts[0]}")
    assert "model-5xx: gone" in earlier.words


async def test_a_call_has_its_chat_beside_its_tokens(runs: Path, serve: Serve) -> None:
    browser = await serve(runs)
    rollout = await browser.get(f"/s/{RUN}/rollouts/ro-0-0")
    call = next(link for link in rollout.links if "/calls/" in link)
    page = await browser.get(call)
    tokens = [
        given for tag, given in page.elements if tag == "a" and str(given.get("class")).startswith("t ")
    ]
    assert tokens and all("logprob" in str(given["title"]) for given in tokens)
    assert all("m1" in str(given["class"]).split() for given in tokens)
    assert "advantage" in str(tokens[0]["title"])
    explained = await browser.get(str(tokens[0]["href"]))
    assert "baseline" in explained.words and "weight" in explained.words


async def test_an_empty_store_has_pages(tmp_path: Path, serve: Serve) -> None:
    await SQLiteStore(tmp_path / "kept.sqlite").close()
    browser = await serve(tmp_path / "kept.sqlite")
    assert "No run yet" in (await browser.get("/")).words
    assert "no run" in (await browser.get("/s/kept/runs/none", status=404)).words
    assert "No rollout yet" in (await browser.get("/s/kept/runs/none/rollouts")).words
