"""The driver against our own server by the official client."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.error
import urllib.request
from concurrent.futures import Future
from contextlib import AsyncExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tinker.types")

from contract.driver import RECIPE, ContractJob, DriverContract

from agentlightning.train.configured import configure
from agentlightning.train.run_file import load_config
from agentlightning.types import LLM, Recipe, UsageError
from agentlightning.types.work import PolicyFolder
from agl_local.peers import PeerDriver
from agl_local.serving import LocalServer
from agl_tinker import client
from agl_tinker.client import Client, ServerError
from agl_tinker.driver import Remote, TinkerDriver
from agl_tinker.machine import environment_info
from plugins.tinker.tests.running import Running


def policy(folder: Path, served: Running, **options: Any) -> PolicyFolder:
    given = {"base_model": "tiny", "base_url": served.url, "rank": 4, "lr": 1e-2, **options}
    return PolicyFolder(str(folder), name="tiny", options=given)


class TestTinker(DriverContract):
    @pytest.fixture(autouse=True)
    def surroundings(self, served: Running, folder: Path) -> None:
        self.served, self.folder = served, folder

    def make(self, recipe: Recipe = RECIPE, **options: Any) -> PeerDriver:
        return TinkerDriver(policy(self.folder, self.served, **options), recipe)


def chat(llm: LLM, **body: Any) -> dict[str, Any]:
    asked = {"model": llm.model, "logprobs": True, "return_token_ids": True, **body}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {llm.api_key}"}
    request = urllib.request.Request(f"{llm.endpoint}/chat/completions", json.dumps(asked).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return dict(json.load(answer))


MESSAGES = [{"role": "user", "content": "say something"}]


@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": 30},
        {"max_tokens": 30, "n": 3},
        {"temperature": 0, "max_tokens": 9, "top_logprobs": 2},
        {"max_tokens": 60},
    ],
)
async def test_answers_are_those_of_the_local_engine(
    served: Running, folder: Path, body: dict[str, Any]
) -> None:
    """The same template, tokens, logprobs, texts and ends, drawn by the same seed."""
    remote, local = (
        Remote(policy(folder, served)),
        LocalServer(PolicyFolder(str(folder), name="tiny", options={"engine": "thread"})),
    )
    try:
        there, here = await remote.start(), await local.start()
        asked = {"messages": MESSAGES, "seed": 11, **body}
        found, wanted = [await asyncio.to_thread(chat, llm, **asked) for llm in (there, here)]
        if "n" not in body and body["max_tokens"] == 60:  # a text that ends an answer in its middle
            text = wanted["choices"][0]["message"]["content"]
            asked["stop"] = [text[10:12]]
            found, wanted = [await asyncio.to_thread(chat, llm, **asked) for llm in (there, here)]
            assert len(wanted["choices"][0]["message"]["content"]) < len(text)
    finally:
        await remote.close()
        await local.close()
    assert found["prompt_token_ids"] == wanted["prompt_token_ids"]
    assert found["usage"]["completion_tokens"] == wanted["usage"]["completion_tokens"]
    for mine, theirs in zip(found["choices"], wanted["choices"], strict=True):
        assert (mine["token_ids"], mine["message"], mine["finish_reason"]) == (
            theirs["token_ids"], theirs["message"], theirs["finish_reason"],
        )  # fmt: skip
        for entry, other in zip(mine["logprobs"]["content"], theirs["logprobs"]["content"], strict=True):
            assert entry["logprob"] == pytest.approx(other["logprob"], abs=1e-4)
            top, known = [[one["token"] for one in some["top_logprobs"]] for some in (entry, other)]
            assert top == known and len(top) == body.get("top_logprobs", 0)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"logit_bias": {"5": 1.0}}, "logit_bias"),
        ({"response_format": {"type": "json_object"}}, "structured output"),
    ],
)
async def test_what_the_api_has_no_word_for_is_refused(
    served: Running, folder: Path, body: dict[str, Any], says: str
) -> None:
    remote = Remote(policy(folder, served))
    try:
        llm = await remote.start()
        with pytest.raises(urllib.error.HTTPError) as refused:
            await asyncio.to_thread(chat, llm, messages=MESSAGES, max_tokens=4, **body)
        assert refused.value.code == 400 and says in refused.value.read().decode()
    finally:
        await remote.close()


async def test_streamed_answers(served: Running, folder: Path) -> None:
    remote = Remote(policy(folder, served))
    try:
        llm = await remote.start()
        whole = await asyncio.to_thread(chat, llm, messages=MESSAGES, max_tokens=12, seed=4)

        def stream() -> list[Any]:
            body = {"model": llm.model, "messages": MESSAGES, "max_tokens": 12, "seed": 4, "stream": True}
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {llm.api_key}"}
            asked = urllib.request.Request(
                f"{llm.endpoint}/chat/completions", json.dumps(body).encode(), headers
            )
            with urllib.request.urlopen(asked, timeout=120) as answer:
                lines = [line.decode() for line in answer if line.startswith(b"data: {")]
            return [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines]

        pieces = await asyncio.to_thread(stream)
        assert (
            "".join(p["delta"].get("content", "") for p in pieces)
            == whole["choices"][0]["message"]["content"]
        )
        assert pieces[-1]["finish_reason"] == whole["choices"][0]["finish_reason"]
    finally:
        await remote.close()


async def test_a_server_that_ends_in_a_step_loses_none(served: Running, folder: Path, tmp_path: Path) -> None:
    """It is ended and started again while the driver waits for its step, which is then made, once."""
    driver = TinkerDriver(policy(folder, served, save_every=1), RECIPE)
    try:
        job = ContractJob(driver, await driver.start(), tmp_path, 3)
        collect = job.collect

        async def collected(step: int) -> Any:
            batch = await collect(step)
            if step == 1:
                await asyncio.to_thread(served.restart)
            return batch

        job.collect = collected  # type: ignore[method-assign]
        await driver.run(job)  # type: ignore[arg-type]
        assert [report.metrics["optimizer_steps"] for report in job.reports] == [1, 1, 1]
        assert driver.version == 3
    finally:
        await driver.close()


async def test_a_server_that_is_away_is_said_before_it_is_waited_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def begins(session: Client) -> None:
        raise ServerError("the session begins")

    monkeypatch.setattr(Client, "open", begins)
    options = {"base_model": "tiny", "base_url": "http://127.0.0.1:9"}
    driver = TinkerDriver(PolicyFolder(str(folder), name="tiny", options=options), RECIPE)
    with pytest.raises(ServerError, match="the session begins"):
        await driver.start()
    assert (
        "http://127.0.0.1:9" in caplog.text and "`agl tinker serve` starts one. The run waits" in caplog.text
    )


async def test_a_long_wait_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(client, "SILENCE", 0.01)
    answer: Future[int] = Future()
    waiting = asyncio.create_task(client.done(answer))
    while "has not answered" not in caplog.text:
        await asyncio.sleep(0.01)
    answer.set_result(3)
    assert await waiting == 3


async def test_a_model_that_the_server_has_not_begins_no_run(served: Running, folder: Path) -> None:
    driver = TinkerDriver(policy(folder, served, base_model="Qwen/Qwen3-8B"), RECIPE)
    with pytest.raises(UsageError, match=r"has no model 'Qwen/Qwen3-8B'; it has \['tiny'\]"):
        await driver.start()


def test_doctor_asks_the_server(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(environment_info({})) == {"tinker"}  # no server is asked
    found = environment_info({"base_model": "tiny", "base_url": served.url})
    assert (found["model"], found["context"]) == ("tiny", "256")
    with pytest.raises(UsageError, match=r"has no model 'Qwen/Qwen3-8B'; it has \['tiny'\]"):
        environment_info({"base_model": "Qwen/Qwen3-8B", "base_url": served.url})
    with pytest.raises(UsageError, match="agl tinker serve"):
        environment_info({"base_model": "tiny", "base_url": "http://127.0.0.1:9"})
    with pytest.raises(UsageError, match=r"max_len is 512, .* takes 256 tokens"):
        environment_info({"base_model": "tiny", "base_url": served.url, "max_len": 512})
    monkeypatch.delenv("TINKER_API_KEY")
    with pytest.raises(UsageError, match="TINKER_API_KEY is not set"):
        environment_info({"base_model": "tiny", "base_url": served.url})


@pytest.mark.plugins
@pytest.mark.parametrize("model", ["tiny", "Qwen/Qwen3-8B"])
async def test_doctor_says_before_a_run_what_the_server_has(
    served: Running, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    configuration = pytest.importorskip("agl_testing.doctor.checks.configuration")
    findings = pytest.importorskip("agl_testing.doctor.findings")
    (tmp_path / "agent_of_doctor.py").write_text("async def solve(task):\n    return 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "tasks.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(40)))
    described = {
        "agent": {"target": "agent_of_doctor:solve"},
        "backend": {
            "driver": "tinker",
            "policy": str(folder),
            "options": {"base_model": model, "base_url": served.url},
        },
        "environment": {"train": {"file": "tasks.jsonl"}},
        "output": str(tmp_path / "runs"),
    }
    (tmp_path / "run.yaml").write_text(json.dumps(described))
    found = findings.Findings(
        lambda: configure(load_config(tmp_path / "run.yaml")), None, tmp_path, AsyncExitStack()
    )
    if model == "tiny":
        check = await configuration.check_configuration(found)
        said = f"server {served.url}, model tiny, context 256"
        assert any(said in line for line in check.detail), check
    else:
        with pytest.raises(UsageError, match=r"has no model 'Qwen/Qwen3-8B'; it has \['tiny'\]"):
            await configuration.check_configuration(found)


def test_doctor_refuses_a_model_that_the_server_does_not_train() -> None:
    class Only(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"supported_models": [{"model_name": "tiny", "trainable": False}]}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Only) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(UsageError, match="'tiny' is not trainable"):
            environment_info({"base_model": "tiny", "base_url": url})
        server.shutdown()


async def test_no_answer_is_longer_than_max_tokens(served: Running, folder: Path) -> None:
    remote = Remote(policy(folder, served, max_tokens=5))
    try:
        llm = await remote.start()
        for asked in ({}, {"max_tokens": 30}, {"max_tokens": 3}):
            answer = await asyncio.to_thread(chat, llm, messages=MESSAGES, seed=11, **asked)
            most = min(5, asked.get("max_tokens", 5))
            assert answer["usage"]["completion_tokens"] == most
            assert answer["choices"][0]["finish_reason"] == "length"
    finally:
        await remote.close()


async def test_a_run_without_a_key_does_not_begin(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TINKER_API_KEY")
    options = {"base_model": "tiny", "base_url": "http://127.0.0.1:9"}
    remote = Remote(PolicyFolder(str(folder), name="tiny", options=options))
    try:
        with pytest.raises(UsageError, match="TINKER_API_KEY is not set"):
            await remote.start()
    finally:
        await remote.close()


async def test_the_reference_is_the_policy_that_the_run_began_with(
    served: Running, folder: Path, tmp_path: Path
) -> None:
    recipe = Recipe(name="kl", kl=0.1, group_size=16)
    driver = TinkerDriver(policy(folder, served, save_every=0), recipe)
    try:
        job = ContractJob(driver, await driver.start(), tmp_path, 3)
        await driver.run(job)  # type: ignore[arg-type]
    finally:
        await driver.close()
    kl = [report.metrics["kl_reference"] for report in job.reports]
    assert kl[0] == pytest.approx(0.0, abs=1e-6) and kl[2] > 1e-4


async def test_saved_weights_are_served_frozen_and_begun_with(
    served: Running, folder: Path, tmp_path: Path
) -> None:
    driver = TinkerDriver(policy(folder, served, save_every=2), RECIPE)
    try:
        job = ContractJob(driver, await driver.start(), tmp_path, 2)
        await driver.run(job)  # type: ignore[arg-type]
        trained = await driver.logprobs(job.rows)
    finally:
        await driver.close()
    [place] = (tmp_path / "checkpoints").glob("*/position.json")
    path = json.loads(place.read_text(encoding="utf-8"))["path"]
    frozen = Remote(policy(folder, served, start_from=path))
    begun = TinkerDriver(policy(folder, served, start_from=path), RECIPE)
    try:
        asked = {"messages": MESSAGES, "max_tokens": 8, "temperature": 0}
        first, second = [await asyncio.to_thread(chat, await one.start(), **asked) for one in (frozen, begun)]
        assert first["choices"][0]["token_ids"] == second["choices"][0]["token_ids"]
        assert await begun.logprobs(job.rows) == pytest.approx(trained, abs=1e-4)
    finally:
        await frozen.close()
        await begun.close()


async def test_used_tokens_are_counted(served: Running, folder: Path, tmp_path: Path) -> None:
    driver = TinkerDriver(policy(folder, served, save_every=0), RECIPE)
    try:
        job = ContractJob(driver, await driver.start(), tmp_path, 1)
        await driver.run(job)  # type: ignore[arg-type]
    finally:
        await driver.close()
    used = job.reports[0].metrics
    rows = [row for row in job.rows if row.advantages[-1]]
    assert used["service/prefill_tokens"] == len(job.rows[0].token_ids) - job.rows[0].trained_tokens
    assert used["service/sampled_tokens"] == sum(row.trained_tokens for row in job.rows)
    sent = sum(len(row.token_ids) - 1 for row in rows)
    assert used["service/trained_tokens"] == used["service/forward_tokens"] == sent
