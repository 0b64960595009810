"""What the tests share: two policies with one tokenizer, an agent, runs of both, and a server that answers as
vLLM documents ``prompt_logprobs``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

import agl_audit.plugin
import agl_distill.plugin
import agl_local.plugin
from agentlightning import Trainer
from agentlightning.hookspecs import hookimpl
from agentlightning.plugins.manager import build
from agentlightning.types import Batch, Row, StepReport
from agl_audit.run import OpenRun, open_run
from agl_audit.verification.verify import verify
from agl_local.inspect import LocalInspector

OPTIONS = {"threads": 1, "engine": "thread", "max_len": 200, "lr": 1e-2, "deterministic": True}
TASKS = [{"say": word} for word in ("ada", "bob", "cid", "dee", "eve", "fay", "gus", "hal")]


class Watch:
    """Keeps what the driver gets, and the reports of its steps."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.reports: list[StepReport] = []

    @hookimpl
    def agl_rows_built(self, batch: Batch) -> None:
        self.batches.append(batch)

    @hookimpl
    def agl_policy_updated(self, report: StepReport) -> None:
        self.reports.append(report)

    @property
    def rows(self) -> list[Row]:
        return [row for batch in self.batches for row in batch.rows]


async def say(task: dict[str, Any], llm: Any) -> None:
    """Ask once; nobody knows how good the answer is."""
    await asked(task, llm)


async def asked(task: dict[str, Any], llm: Any, turns: int = 1, **fields: Any) -> str:
    """Ask ``turns`` times, each time with all that was said before; return the last answer."""
    messages = [{"role": "user", "content": task["say"]}]
    headers = {"Authorization": f"Bearer {llm.api_key}", "x-agl-agent": "sayer"}
    said = ""
    async with aiohttp.ClientSession() as http:
        for _ in range(turns):
            body = {"model": llm.model, "messages": messages, "max_tokens": 6, **fields}
            async with http.post(f"{llm.endpoint}/chat/completions", json=body, headers=headers) as answer:
                found = await answer.json()
            said = found["choices"][0]["message"]["content"] or ""
            messages = [
                *messages,
                {"role": "assistant", "content": said},
                {"role": "user", "content": "and?"},
            ]
    return said


def plugins(*more: Any) -> Any:
    return build([agl_local.plugin, agl_distill.plugin, agl_audit.plugin, *more], discover=False)


def trainer(folder: Path, policy: Any, watch: Watch, **fields: Any) -> Trainer:
    """A run of four rollouts a step."""
    given: dict[str, Any] = {
        "algorithm": "distill",
        "policy": policy,
        "options": OPTIONS,
        "steps": 2,
        "batch_size": 4,
        "output": folder,
        "run": "r",
        "trackers": ["files"],
        "log": "",
        "plugins": plugins(watch),
    }
    return Trainer(**{**given, **fields})


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[OpenRun]:
    async with open_run(str(folder / "r"), plugins=plugins()) as run:
        yield run


async def differences(folder: Path) -> list[str]:
    """What ``agl verify`` finds in the run."""
    async with opened(folder) as run:
        found = await verify(run)
        return [one.text for one in found.differences]


Spoil = Callable[[int, dict[str, Any]], web.Response | None]


class PromptLogprobs:
    """A server whose /v1/completions returns ``prompt_logprobs`` as vLLM does, of the policy in ``folder``.

    ``spoil``: ``(number of the request, its answer) -> what is sent instead``; it may change the answer.
    """

    def __init__(self, folder: Path) -> None:
        self.inspector = LocalInspector(folder)
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.spoil: Spoil = lambda n, answer: None
        self.url = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[PromptLogprobs]:
        app = web.Application()
        app.router.add_post("/v1/completions", self._completions)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _completions(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        self.keys.append(request.headers.get("Authorization"))
        ids = body["prompt"]
        n = len(ids)
        row = Row(
            row_id="prompt", rollout_id="ro", policy="policy", token_ids=ids, mask=[0] + [1] * (n - 1),
            advantages=[0.0] * n, logprobs=[0.0] * n, weights=[0.0] * n, versions=[-1] * n,
        )  # fmt: skip
        (found,) = self.inspector.logprobs([row])
        texts = self.inspector.decode(ids)
        entries: list[Any] = [None]
        for id_, text, value in list(zip(ids, texts, found, strict=True))[1:]:
            entries.append({str(id_): {"logprob": value, "rank": 1, "decoded_token": text}})
            entries[-1].setdefault("0", {"logprob": -0.01, "rank": 2, "decoded_token": "!"})
        choice = {"index": 0, "text": "", "finish_reason": "length", "prompt_logprobs": entries}
        answer = {"id": "cmpl-1", "object": "text_completion", "model": body["model"], "choices": [choice]}
        return self.spoil(len(self.asked), answer) or web.json_response(answer)
