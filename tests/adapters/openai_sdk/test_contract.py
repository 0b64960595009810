"""The bare openai SDK keeps the adapter contract: core's capture alone, and spans of the agent's author."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import openai._base_client as sdk
from agl_testing.contract.script import SOLVER, TEAM, TOOL
from contract.adapter import AdapterContract
from openai import AsyncOpenAI, OpenAI
from opentelemetry import trace

from agentlightning import semconv
from agentlightning.capture import install, installed, uninstall

FUNCTION = {
    "type": "function",
    "function": {
        "name": TOOL,
        "description": "Add two numbers.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}


class Capture:
    """Core's capture, switched as an instrumentor is."""

    is_instrumented_by_opentelemetry = property(lambda self: installed())

    def instrument(self, **kwargs: Any) -> None:
        install()

    def uninstrument(self) -> None:
        uninstall()


class Clients:
    """The blocking client and the other."""

    def __init__(self, url: str, key: str) -> None:
        self.sync = OpenAI(base_url=url, api_key=key, max_retries=3)
        self.loop = AsyncOpenAI(base_url=url, api_key=key, max_retries=3)


@contextmanager
def speaking(name: str) -> Iterator[None]:
    """An agent's turn, in OpenTelemetry's words."""
    attributes = {semconv.OPERATION_NAME: "invoke_agent", semconv.AGENT_NAME: name}
    with trace.get_tracer("author").start_as_current_span(f"invoke_agent {name}", attributes=attributes):
        yield


def executed(tool: Callable[..., Any], call: Any) -> dict[str, Any]:
    """Run a tool as an author would who traces with OpenTelemetry's names."""
    name, arguments = call.function.name, call.function.arguments
    tracer = trace.get_tracer("author")
    attributes = {
        semconv.OPERATION_NAME: "execute_tool",
        semconv.TOOL_NAME: name,
        semconv.TOOL_CALL_ARGUMENTS: arguments,
    }
    with tracer.start_as_current_span(f"execute_tool {name}", attributes=attributes) as span:
        try:
            result = str(tool(**json.loads(arguments)))
        except ArithmeticError as error:
            result = f"failed: {error}"
            span.set_status(trace.StatusCode.ERROR, result)
        span.set_attribute(semconv.TOOL_CALL_RESULT, result)
    return {"role": "tool", "tool_call_id": call.id, "content": result}


def asked(name: str, task: str) -> list[Any]:
    return [{"role": "system", "content": f"You are {name}."}, {"role": "user", "content": task}]


class TestOpenAISDK(AdapterContract):
    def instrumentor(self) -> Any:
        return Capture()

    def client(self, url: str, key: str) -> Any:
        return Clients(url, key)

    async def reply(self, client: Any, messages: list[Any], stream: bool, **fields: Any) -> Any:
        """One answer's message; the SDK puts a stream together."""
        completions = client.loop.chat.completions
        if not stream:
            return (await completions.create(model="policy", messages=messages, **fields)).choices[0].message
        async with completions.stream(model="policy", messages=messages, **fields) as chunks:
            return (await chunks.get_final_completion()).choices[0].message

    async def tool_agent(self, client: Any, task: str, tool: Callable[..., Any], stream: bool) -> str:
        messages = asked(SOLVER, task)
        with speaking(SOLVER):
            while (message := await self.reply(client, messages, stream, tools=[FUNCTION])).tool_calls:
                said = message.model_dump(include={"role", "content"})
                calls = [
                    call.model_dump(include={"id": True, "type": True, "function": {"name", "arguments"}})
                    for call in message.tool_calls
                ]
                results = [executed(tool, call) for call in message.tool_calls]
                messages += [{**said, "tool_calls": calls}, *results]
        return str(message.content)

    def tool_agent_sync(self, client: Any, task: str, tool: Callable[..., Any], stream: bool) -> str:
        messages = asked(SOLVER, task)
        create = client.sync.chat.completions.create
        with speaking(SOLVER), client.sync:
            while (
                message := create(model="policy", messages=messages, tools=[FUNCTION]).choices[0].message
            ).tool_calls:
                messages += [message.model_dump(exclude_none=True), executed(tool, message.tool_calls[0])]
        return str(message.content)

    async def team(self, client: Any, task: str, stream: bool) -> None:
        for name in TEAM:
            with speaking(name):
                task += str((await self.reply(client, asked(name, task), stream)).content)

    async def structured(self, client: Any, task: str, schema: type[Any], stream: bool) -> Any:
        with speaking(SOLVER):
            if stream:
                return (await self.reply(client, asked(SOLVER, task), True, response_format=schema)).parsed
            answer = await client.loop.chat.completions.parse(
                model="policy", messages=asked(SOLVER, task), response_format=schema
            )
            return answer.choices[0].message.parsed

    async def several(self, client: Any, task: str, n: int) -> bool:
        answer = await client.loop.chat.completions.create(model="policy", messages=asked(SOLVER, task), n=n)
        return len(answer.choices) == n

    async def close(self, client: Any) -> None:
        client.sync.close()
        await client.loop.close()

    def patched(self) -> Sequence[tuple[Any, str]]:
        return [
            (sdk.SyncAPIClient, "request"),
            (sdk.AsyncAPIClient, "request"),
            (sdk.BaseClient, "_build_request"),
        ]
