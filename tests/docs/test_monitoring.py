"""What the servers of a run expose to Prometheus is in the reference; the dashboard asks for nothing else."""

from __future__ import annotations

import json
import re
import runpy
import socket
from pathlib import Path

import aiohttp
import pytest
from e2e.test_line import Watch, trainer
from prometheus_client.parser import text_string_to_metric_families

from agentlightning.store import SQLiteStore
from agentlightning.train.trainer import algorithm_of
from agl_cluster.store import server
from agl_cluster.store.client import StoreClient
from calc_x.agent import solve
from calc_x.datasets import load

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "docs" / "grafana.json"
PROMETHEUS = {"Accept": "text/plain;version=0.0.4"}


async def samples(url: str) -> dict[str, int]:
    """Name of each sample of a page → how many there are; a metric without samples has 0."""
    async with aiohttp.ClientSession() as http, http.get(url, headers=PROMETHEUS) as got:
        assert got.status == 200, await got.text()
        families = list(text_string_to_metric_families(await got.text()))
    found: dict[str, int] = {}
    for family in families:
        assert family.documentation
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found[name] = sum(sample.name == name for sample in family.samples)
    return found


def queried() -> set[str]:
    """The metrics that the dashboard's panels ask for."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return {name for p in panels for t in p["targets"] for name in re.findall(r"agl_\w+", t["expr"])}


@pytest.mark.slow
async def test_a_small_run_exposes_what_the_reference_lists_and_the_dashboard_asks_for(
    tmp_path: Path,
) -> None:
    served = await server.start(SQLiteStore(tmp_path / "s.sqlite"), port=0)
    store = StoreClient(served.url)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made = trainer(
        tmp_path,
        Watch(),
        store=store,
        metrics={"port": port},
        steps=1,
        batch_size=1,
        options={"engine": "process", "threads": 1, "max_len": 384},
    )
    train, held_out = load("generated:train", limit=8), load("generated:heldout", limit=2)
    async with made.session(solve, train, held_out) as context:
        await algorithm_of(made.config, made.plugins, made).run(context)
        pages = {}
        pages["gateway"] = await samples(context.gateway.url.removesuffix("/v1") + "/metrics")
        engine = context.gateway.routes["policy"].url.removesuffix("/v1")  # type: ignore[attr-defined]
        pages["local engine"] = await samples(f"{engine}/metrics")
        pages["trainer"] = await samples(f"http://127.0.0.1:{port}/metrics")
        pages["store"] = await samples(f"{served.url}/metrics")
    await store.close()
    await served.close()
    listed = runpy.run_path(str(ROOT / "scripts" / "site" / "metrics.py"))["servers"]()
    for name, page in pages.items():
        assert set(page) == {one.sample for one in listed[name]}
    every = {sample: n for page in pages.values() for sample, n in page.items()}
    assert queried() <= set(every)
    # these have no sample in a run without losses, refusals and cuts
    idle = {"agl_gateway_refused_total", "agl_store_counted_total"}
    assert {name for name in queried() if not every[name]} <= idle


def test_the_dashboard_is_one_that_grafana_reads() -> None:
    found = json.loads(DASHBOARD.read_text())
    assert len({panel["id"] for panel in found["panels"]}) == len(found["panels"])
    assert all(panel["title"] and panel["targets"] for panel in found["panels"])
