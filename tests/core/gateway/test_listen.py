"""Where the gateway listens: what is refused before anything is bound, and what agents are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest
from contract.model_server import ModelServer

import agentlightning as agl
from agentlightning.gateway.settings import agent_url, parse_listen
from agentlightning.types import UsageError

SECRET = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, ("127.0.0.1", 0)),
        ("8080", ("127.0.0.1", 8080)),
        ("127.0.0.1:8080", ("127.0.0.1", 8080)),
        ("localhost", ("localhost", 0)),
        ("[::1]:80", ("::1", 80)),
        ("[::1]", ("::1", 0)),
        ("::1", ("::1", 0)),
    ],
)
def test_places_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, text: str | None, expected: tuple[str, int]
) -> None:
    monkeypatch.delenv("AGL_SECRET", raising=False)
    assert parse_listen(text) == expected


@pytest.mark.parametrize(
    ("secret", "listen", "advertise", "why"),
    [
        (None, "0.0.0.0", "http://10.0.0.5", "Set AGL_SECRET"),
        (None, "10.0.0.5:80", None, "Set AGL_SECRET"),
        ("", "10.0.0.5", None, "Set AGL_SECRET"),
        (SECRET, "0.0.0.0:80", None, "name one with gateway.advertise"),
        (SECRET, "[::]:80", None, "name one with gateway.advertise"),
        (None, "127.0.0.1:http", None, "is no host, port, host:port"),
        (None, "127.0.0.1:99999", None, "is no host, port, host:port"),
        (None, ":80", None, "is no host, port, host:port"),
        (None, None, "10.0.0.5:80", r"must be http\(s\)://host"),
        (None, None, "ftp://10.0.0.5", r"must be http\(s\)://host"),
        (None, None, "http://user@10.0.0.5", r"must be http\(s\)://host"),
        (None, None, "http://10.0.0.5/v1", r"must be http\(s\)://host"),
        (None, None, "http://10.0.0.5:x", r"must be http\(s\)://host"),
    ],
)
def test_what_cannot_be_is_refused_before_it_is_bound(
    monkeypatch: pytest.MonkeyPatch, secret: str | None, listen: str | None, advertise: str | None, why: str
) -> None:
    monkeypatch.delenv("AGL_SECRET", raising=False)
    if secret is not None:
        monkeypatch.setenv("AGL_SECRET", secret)
    with pytest.raises(UsageError, match=why):
        agl.Trainer(listen=listen, advertise=advertise)


@pytest.mark.parametrize(
    ("advertise", "told"),
    [
        (None, "http://10.0.0.5:80/v1"),
        ("http://trainer", "http://trainer:80/v1"),
        ("http://trainer:8000", "http://trainer:8000/v1"),
        ("https://trainer/", "https://trainer/v1"),
    ],
)
def test_the_address_that_agents_are_told(advertise: str | None, told: str) -> None:
    assert agent_url("10.0.0.5", 80, advertise) == told


@pytest.mark.plugins
async def test_a_run_on_every_interface_tells_the_advertised_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGL_SECRET", SECRET)
    seen: list[str] = []

    async def agent(task: Any, llm: agl.LLM) -> float:
        seen.append(llm.endpoint)
        headers = {"Authorization": f"Bearer {llm.api_key}"}
        body = {"model": llm.model, "messages": [{"role": "user", "content": "hi"}]}
        url = f"{llm.endpoint}/chat/completions"
        async with aiohttp.ClientSession(headers=headers) as http, http.post(url, json=body) as answer:
            return float(answer.status == 200)

    with ModelServer() as server:
        trainer = agl.Trainer(
            policy={"other": agl.LLM(endpoint=server.url, model=server.model)},
            policies={"re:.*": "other"},
            listen="0.0.0.0",
            advertise="http://localhost",
            output=tmp_path,
            trackers=[],
        )
        async with trainer.session(agent, (), ["a"]) as context:
            assert context.gateway.url.startswith("http://localhost:")
            evaluation = await context.evaluate(["a"], name="x")
    assert evaluation.reward == 1.0
    assert seen[0].startswith("http://localhost:")
