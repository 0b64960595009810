"""DSPy keeps the adapter contract. Its agents ask for fields of text, and stream by ``streamify``."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import openai._base_client as sdk
import pytest

pytest.importorskip("dspy")

import dspy
import litellm
from agl_testing.contract.script import ARGUMENTS, SOLVER, TEAM, TOOL, TYPED
from agl_testing.template import text_of
from contract.adapter import AdapterContract
from dspy.clients.cache import Cache

from agl_dspy.instrumentor import DSPyInstrumentor
from agl_dspy.models import selecting

pytestmark = pytest.mark.filterwarnings("ignore")  # litellm's own, of pydantic

OBSERVED = re.compile(r"\[\[ ## observation_0 ## \]\]\n(.*)")


def fields(**given: str) -> str:
    """An answer in the form of ``ChatAdapter``, which reads the fields that its signature has."""
    return "\n\n".join(f"[[ ## {name} ## ]]\n{value}" for name, value in {**given, "completed": ""}.items())


async def close_clients() -> None:
    """Close this loop's clients of litellm, which keeps them by address: later tests use the same ports."""
    known = litellm.in_memory_llm_clients_cache
    for key, one in list(known.cache_dict.items()):
        if isinstance(one, sdk.AsyncAPIClient) and key.endswith(f"-{id(asyncio.get_running_loop())}"):
            del known.cache_dict[key]
            await one.close()


class Solver(dspy.Module):  # type: ignore[misc]
    """A program with one agent, which thinks once, calls its tool, and answers."""

    def __init__(self, tool: Callable[..., Any]) -> None:
        super().__init__()
        asked = dspy.Signature("task -> answer", f"You are {SOLVER}.")
        self.solver = dspy.ReAct(asked, tools=[tool], max_iters=1)

    def forward(self, task: str) -> Any:
        return self.solver(task=task)

    async def aforward(self, task: str) -> Any:
        return await self.solver.acall(task=task)


class Asked(dspy.Module):  # type: ignore[misc]
    """A program that asks each of ``names`` in turn, once."""

    def __init__(self, *names: str, answer: Any = str) -> None:
        super().__init__()
        self.names = names
        for name in names:
            asked = dspy.Signature("task -> answer", f"You are {name}.")
            setattr(self, name, dspy.Predict(asked.with_updated_fields("answer", type_=answer)))

    async def aforward(self, task: str) -> Any:
        for name in self.names:
            answer = (await getattr(self, name).acall(task=task)).answer
            task = f"{task}\n{answer}"
        return dspy.Prediction(answer=answer)


async def answered(program: Any, task: str, stream: bool) -> Any:
    """Run a program, with the answers of its model whole or streamed."""
    if not stream:
        return (await program.acall(task=task)).answer
    values = [value async for value in dspy.streamify(program, is_async_program=True)(task=task)]
    return values[-1].answer


class TestDSPy(AdapterContract):
    # the policy of random weights there calls tools by the API; DSPy's agents read fields of text
    test_on_the_local_engine_every_call_is_exact = None
    test_a_prompt_that_is_too_long_raises = None  # it tries shorter ones: test_a_prompt_that_is_too_long
    # DSPy retries above the SDK: test_every_try_of_dspys_is_recorded, test_a_model_that_fails_for_good
    test_retries_are_visible = None
    test_a_model_that_fails_for_good_is_an_error_span = None

    @pytest.fixture(autouse=True)
    def fresh_cache(self) -> None:
        """With the adapter off, DSPy answers what an earlier test has asked."""
        dspy.configure_cache(enable_disk_cache=False)

    def instrumentor(self) -> Any:
        return DSPyInstrumentor()

    def client(self, url: str, key: str) -> Any:
        return dspy.LM("openai/policy", api_base=url, api_key=key, num_retries=0)

    def context(self, client: Any, adapter: Any = None) -> Any:
        return dspy.context(lm=client, adapter=adapter or dspy.ChatAdapter())

    def say(self, body: dict[str, Any]) -> Any:
        system, last = (text_of(body["messages"][at]["content"]) for at in (0, -1))
        if body.get("response_format"):
            return f'{{"answer":  {TYPED}}}'
        if "next_tool_name" in system and not OBSERVED.search(last):
            return fields(next_thought="a tool", next_tool_name=TOOL, next_tool_args=ARGUMENTS)
        observed = OBSERVED.search(last)
        return self.answer(f"{len(last)} · {observed[1] if observed else ''}")

    def answer(self, text: str) -> Any:
        done = {"next_thought": "done", "next_tool_name": "finish", "next_tool_args": "{}"}
        return fields(**done, reasoning="so", answer=text)

    async def tool_agent(self, client: Any, task: str, tool: Callable[..., Any], stream: bool) -> str:
        with self.context(client):
            return str(await answered(Solver(tool), task, stream))

    def tool_agent_sync(self, client: Any, task: str, tool: Callable[..., Any], stream: bool) -> str:
        with self.context(client):
            answer = str(Solver(tool)(task=task).answer)
        for key, one in list(litellm.in_memory_llm_clients_cache.cache_dict.items()):
            if isinstance(one, sdk.SyncAPIClient):
                del litellm.in_memory_llm_clients_cache.cache_dict[key]
                one.close()
        return answer

    async def team(self, client: Any, task: str, stream: bool) -> None:
        with self.context(client):
            await answered(Asked(*TEAM), task, stream)

    async def structured(self, client: Any, task: str, schema: type[Any], stream: bool) -> Any:
        with self.context(client, dspy.JSONAdapter()):
            return await answered(Asked(SOLVER, answer=schema), task, stream)

    async def several(self, client: Any, task: str, n: int) -> bool:
        await client.acall(task, n=n)
        return True

    def arguments(self, stream: bool) -> str:
        return json.dumps(json.loads(ARGUMENTS))

    async def close(self, client: Any) -> None:
        await close_clients()

    def patched(self) -> Sequence[tuple[Any, str]]:
        return [
            (sdk.SyncAPIClient, "request"),
            (sdk.AsyncAPIClient, "request"),
            (sdk.BaseClient, "_build_request"),
            (dspy.Module, "__call__"),
            (dspy.Module, "acall"),
            (dspy.Tool, "__call__"),
            (dspy.Tool, "acall"),
            (Cache, "get"),
            (Cache, "put"),
            *((place, "select_backend") for place in selecting()),
        ]
