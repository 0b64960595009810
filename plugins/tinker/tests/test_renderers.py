"""Prompts and calls over the Tinker API, for every family of chat templates that agl-local knows.

They are those of the tokenizer's own template, as transformers renders it, and of the local engine. What the
server is asked is not the matter here, so no server is: what it would draw is given.
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from marks import sampled

from agentlightning.types import LLM, UsageError
from agentlightning.types.work import PolicyFolder
from agl_local.fresh.roundtrip import ADD, TOOLS, USER, message, turn_text
from agl_local.policy.folder import Policy, init_model, save_policy
from agl_local.serving import LocalServer
from agl_tinker.client import Client
from agl_tinker.engine import RemoteEngine
from agl_tinker.options import Options
from plugins.local.tests.driver_fixtures import tiny_config
from plugins.local.tests.test_families import FAMILIES, READ, tokenizer

SYSTEM = {"role": "system", "content": "Be brief."}
SAID = {"role": "assistant", "content": "42.5 in all."}
ALONE = "hermes3"
"""Its template renders no conversation without tools, so no engine serves it."""
TEMPLATES = sorted(FAMILIES.keys() - {ALONE})
HISTORIES: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]] | None]] = {
    "a question": ([USER], None),
    "a system prompt": ([SYSTEM, USER], None),
    "several turns": ([SYSTEM, USER, SAID, USER], None),
    "tools": ([SYSTEM, USER], TOOLS),
}


class Drawn(Client):
    """A client whose server always draws ``text``."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    def sample(self, sampler: Any, prompt: Any, count: int, *, alternatives: int = 0, **params: Any) -> Any:
        one = SimpleNamespace(tokens=self.ids, logprobs=[-0.5] * len(self.ids), stop_reason="stop")
        found: Future[Any] = Future()
        found.set_result(SimpleNamespace(sequences=[one] * count))
        return found


def saved(name: str, folder: Path) -> Path:
    """A policy with the template ``name``, for which weights of any value do."""
    text = tokenizer(name)
    size = text.backend.get_vocab_size()
    config = tiny_config(size, positions=2048)
    return save_policy(Policy(init_model(config, 0), text, config), folder / name)


@asynccontextmanager
async def remote(folder: Path, ids: list[int]) -> AsyncIterator[LLM]:
    engine = RemoteEngine(folder, "tiny", Options(base_model="m"), Drawn(ids))
    try:
        yield await engine.start(None)
    finally:
        await engine.close()


async def asked(llm: LLM, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
    """Status and answer of a request to an engine."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {llm.api_key}"}
    url = f"{llm.endpoint.removesuffix('/v1')}{path}"
    request = urllib.request.Request(url, json.dumps({"model": "tiny", **body}).encode(), headers)

    def ask() -> tuple[int, dict[str, Any]]:
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    return await asyncio.to_thread(ask)


@pytest.mark.parametrize("name", sampled(TEMPLATES, TEMPLATES.index("llama3_1"), TEMPLATES.index("qwen3")))
async def test_prompts_are_those_of_the_tokenizers_own_template(name: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = saved(name, tmp_path)
    own = AutoTokenizer.from_pretrained(folder)
    local = LocalServer(PolicyFolder(str(folder), name="tiny", options={"engine": "thread"}))
    rendered = 0
    try:
        here = await local.start()
        async with remote(folder, []) as there:
            for case, (messages, tools) in HISTORIES.items():
                body = {"messages": messages, **({"tools": tools} if tools else {})}
                found, wanted = [await asked(llm, "/tokenize", **body) for llm in (there, here)]
                assert found == wanted, case
                options = {"tools": tools, "add_generation_prompt": True, "return_dict": False}
                try:
                    ids = own.apply_chat_template(messages, **options)
                except Exception as refusal:  # the template's own, such as of a system prompt
                    assert found[0] == 400 and str(refusal) in found[1]["error"]["message"], case
                    continue
                assert found[1]["tokens"] == ids, case
                rendered += 1
    finally:
        await local.close()
    assert rendered >= 3


async def test_what_the_local_engine_does_not_serve_is_refused_alike(tmp_path: Path) -> None:
    folder = saved(ALONE, tmp_path)
    local = LocalServer(PolicyFolder(str(folder), name="tiny", options={"engine": "thread"}))
    with pytest.raises(UsageError) as here:
        await local.start()
    await local.close()
    with pytest.raises(UsageError) as there:
        RemoteEngine(folder, "tiny", Options(base_model="m"), Drawn([]))
    assert str(there.value) == str(here.value) and "template cannot be used" in str(here.value)


@pytest.mark.parametrize("name", sampled(sorted({*READ} - {ALONE}), 0))
async def test_calls_are_read_as_the_template_writes_them(name: str, tmp_path: Path) -> None:
    text = tokenizer(name)
    ids = [*text.encode(turn_text(text, [USER], message(None, [ADD]))), text.eos_ids[0]]
    async with remote(saved(name, tmp_path), ids) as llm:
        status, answer = await asked(
            llm, "/v1/chat/completions", messages=[USER], tools=TOOLS, max_tokens=999, return_token_ids=True
        )
    assert status == 200, answer
    choice = answer["choices"][0]
    assert choice["token_ids"] == ids and choice["finish_reason"] == "tool_calls"
    [call] = choice["message"]["tool_calls"]
    function = call["function"]
    assert (function["name"], json.loads(function["arguments"])) == ADD
