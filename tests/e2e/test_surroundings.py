"""Machines as people have them: a proxy in the environment, terminals that are not UTF-8, no home folder.

``make surroundings`` does more of this, with a process for each command.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import agl_gateway.plugin
import aiohttp
import pytest
import requests
from openai import AsyncOpenAI, OpenAI

import agentlightning as agl
import agl_audit.plugin
import agl_local.plugin
from agentlightning.cli import app, run_command
from agentlightning.plugins import manager
from agentlightning.store import SQLiteStore
from agl_cluster.storage.keeper import fetch_run

POLICY = Path(__file__).parents[2] / "examples" / "calc_x" / "policy"
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "2 + 3?"}], "max_tokens": 4}
WORD = "größe 尺寸 🙂"


async def by_openai(task: int, llm: agl.LLM) -> float:
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as client:
        with agl.tagged(agent=WORD):
            await client.chat.completions.create(model=llm.model, **ASK)
    return float(task)


def by_openai_in_a_thread(task: int, llm: agl.LLM) -> float:
    with OpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as client:
        client.chat.completions.create(model=llm.model, **ASK)
    return float(task)


async def by_anthropic(task: int, llm: agl.LLM) -> float:
    from anthropic import AsyncAnthropic

    url = llm.endpoint.removesuffix("/v1")
    async with AsyncAnthropic(base_url=url, api_key=llm.api_key, max_retries=0) as client:
        await client.messages.create(model=llm.model, **ASK)
    return float(task)


def by_requests(task: int, llm: agl.LLM) -> float:
    headers = {"Authorization": f"Bearer {llm.api_key}"}
    url, body = f"{llm.endpoint}/chat/completions", {"model": llm.model, **ASK}
    requests.post(url, json=body, headers=headers, timeout=None).raise_for_status()
    return float(task)


async def by_aiohttp(task: int, llm: agl.LLM) -> float:
    headers = {"Authorization": f"Bearer {llm.api_key}"}
    url, body = f"{llm.endpoint}/chat/completions", {"model": llm.model, **ASK}
    async with (
        aiohttp.ClientSession(trust_env=True) as http,
        http.post(url, json=body, headers=headers) as got,
    ):
        assert got.status == 200
    return float(task)


@pytest.mark.slow
@pytest.mark.parametrize(
    "agent",
    [by_openai, by_openai_in_a_thread, by_anthropic, by_requests, by_aiohttp],
    ids=lambda f: f.__name__,
)
async def test_a_proxy_in_the_environment_is_not_in_the_way(
    agent: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if agent is by_anthropic:
        pytest.importorskip("anthropic")  # agl-agentscope's framework brings it
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "")
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nothing listens there
    async with trainer(tmp_path).session(agent) as context:
        evaluation = await context.evaluate([0, 1], name="x")
    assert (evaluation.failed, evaluation.metrics["calls_made"]) == (0, 2)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run whose agent has a name in several scripts."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGL_PLUGINS", "")
        trainer(folder / "runs", steps=1).fit(by_openai, [0, 1], [0])
    (run,) = (folder / "runs").iterdir()
    return run


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Runs a command at a terminal of an encoding, and returns what it wrote."""
    loaded = manager.build([agl_local.plugin, agl_audit.plugin, agl_gateway.plugin], discover=False)
    monkeypatch.setattr("agentlightning.cli.load_plugins", lambda: loaded)

    def run(encoding: str, *words: str) -> str:
        written = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
        with pytest.raises(SystemExit) as ended:
            run_command(lambda: app(words)(list(words), prog_name="agl"))
        sys.stdout.flush()
        assert ended.value.code == 0
        return written.getvalue().decode(encoding)

    yield run


@pytest.mark.parametrize("encoding", ["ascii", "gbk", "iso8859-1"])
@pytest.mark.parametrize(
    "words",
    [
        "runs",
        "rollouts RUN",
        "explain RUN",
        "compare RUN RUN",
        "logs RUN",
        "top --once",
        "verify RUN",
    ],
)
def test_no_command_dies_of_a_letter(
    words: str, encoding: str, stored: Path, terminal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(stored.parent.parent)
    assert terminal(encoding, *words.replace("RUN", stored.name).split())


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_json_is_json_in_every_encoding(
    encoding: str, stored: Path, terminal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(stored.parent.parent)
    lines = terminal(encoding, "rollouts", stored.name, "--calls", "--json").strip().split("\n")
    assert any(WORD in json.dumps(json.loads(line), ensure_ascii=False) for line in lines)


@pytest.mark.slow
def test_a_user_without_name_and_home_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 54_321)  # of which the list of users has no entry
    summary = trainer(tmp_path / "runs", steps=1).fit(by_openai, [0, 1])
    assert (tmp_path / "runs" / summary["run_id"]).is_dir()
    with pytest.raises(agl.types.UsageError, match="user id 54321 has no home folder: set AGL_STORAGE"):
        SQLiteStore()


@pytest.mark.slow
def test_the_kept_copy_of_a_run_has_the_last_line_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fsspec")
    place = f"file://{tmp_path}/kept"
    monkeypatch.setenv("AGL_STORAGE", place)
    given: dict[str, Any] = {"output": tmp_path / "runs", "trackers": ["files"], "log": tmp_path / "all.log"}
    agl.Trainer(agl.Baseline(), run="whole", **given).fit(lambda task: 1.0, [1])
    with pytest.raises(ValueError, match="no luck"):
        agl.Trainer(Unlucky(), run="broken", **given).fit(lambda task: 1.0, [1])
    for run, end in {"whole": "INFO finished after ", "broken": "ValueError: no luck"}.items():
        assert fetch_run(place, tmp_path / "fetched", run, print)
        kept = (tmp_path / "fetched" / run / "training.log").read_text()
        assert end in kept.splitlines()[-1]
        assert kept == (tmp_path / "runs" / run / "training.log").read_text()
    assert "ERROR broken off: ValueError: no luck" in (tmp_path / "all.log").read_text()


class Unlucky(agl.Algorithm):
    async def run(self) -> None:
        raise ValueError("no luck")


def trainer(folder: Path, **fields: Any) -> agl.Trainer:
    return agl.Trainer(
        agl.RLOO(group_size=2),
        policy=POLICY,
        options={"engine": "thread", "threads": 1, "max_len": 256},
        output=folder,
        plugins=manager.build([agl_local.plugin, agl_audit.plugin, agl_gateway.plugin], discover=False),
        batch_size=2,
        **fields,
    )
