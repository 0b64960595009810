"""What a bare OpenAI client asks of the policy, one case a kind of call, and what each must get."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import openai
from openai import AsyncOpenAI

CHOICES = ["yes", "no"]
CALCULATE: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Calculate the value of an arithmetic expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}


@dataclass
class Asking:
    """A client, the model's name, a problem as chat messages, and a prompt with many likely answers."""

    client: AsyncOpenAI
    model: str
    messages: list[dict[str, Any]]
    wide: list[dict[str, Any]]

    async def chat(self, messages: list[dict[str, Any]] | None = None, **more: Any) -> Any:
        """A whole chat answer."""
        create: Any = self.client.chat.completions.create
        return await create(model=self.model, messages=messages or self.messages, **more)

    async def streamed(self, messages: list[dict[str, Any]] | None = None, **more: Any) -> list[Any]:
        """The chunks of a streamed chat answer."""
        return [chunk async for chunk in await self.chat(messages, stream=True, **more)]


Case = Callable[[Asking], Awaitable[None]]


def must(holds: object, what: str) -> None:
    """RuntimeError unless it holds."""
    if not holds:
        raise RuntimeError(what)


def arguments(chunks: list[Any]) -> str:
    """Of the one tool call in a stream."""
    calls = [call for c in chunks for choice in c.choices for call in choice.delta.tool_calls or ()]
    return "".join(call.function.arguments or "" for call in calls)


# ------------------------------------------------------------------------------------------- ways to ask
async def chat(a: Asking) -> None:
    answer = await a.chat(a.wide, max_tokens=40)
    must(answer.choices[0].message.content, "an answer has a text")


async def tools(a: Asking) -> None:
    """A tool call, its result, and the answer after it."""
    said = (await a.chat(tools=[CALCULATE])).choices[0].message
    must(said.tool_calls, "the policy calls its tool")
    turn = said.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True)
    result = {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "12"}
    answer = await a.chat([*a.messages, turn, result], tools=[CALCULATE])
    must(answer.choices[0].finish_reason == "stop", "the policy answers after its tool's result")


async def stream(a: Asking) -> None:
    chunks = await a.streamed(a.wide, max_tokens=40, stream_options={"include_usage": True})
    must(chunks[-1].usage.completion_tokens, "the usage that was asked for comes last")


async def stream_tools(a: Asking) -> None:
    must(
        arguments(await a.streamed(tools=[CALCULATE])).startswith("{"),
        "a streamed tool call has its arguments",
    )


async def logprobs(a: Asking) -> None:
    answer = await a.chat(a.wide, logprobs=True, top_logprobs=2, max_tokens=8)
    must(all(len(t.top_logprobs) >= 2 for t in answer.choices[0].logprobs.content), "top_logprobs come too")


async def several(a: Asking) -> None:
    must(len((await a.chat(a.wide, n=3, max_tokens=20)).choices) == 3, "n=3 has three choices")


async def several_streamed(a: Asking) -> None:
    chunks = await a.streamed(a.wide, n=2, max_tokens=20)
    must({choice.index for chunk in chunks for choice in chunk.choices} == {0, 1}, "n=2 streams two choices")


async def unreasoned(a: Asking) -> None:
    """A field with which vLLM would hide its token ids."""
    hide = {"include_reasoning": False}
    await a.chat(tools=[CALCULATE], extra_body=hide)
    must(arguments(await a.streamed(tools=[CALCULATE], extra_body=hide)), "a tool is called")


async def stop(a: Asking) -> None:
    """The text ends before the word that stopped it; its tokens are there."""
    answer = await a.chat(a.wide, stop=["1"], max_tokens=40)
    must("1" not in answer.choices[0].message.content, "the text ends before the stop word")


async def at_once(a: Asking) -> None:
    await asyncio.gather(*(a.chat(a.wide, max_tokens=12) for _ in range(8)))


async def completions(a: Asking) -> None:
    create: Any = a.client.completions.create
    await create(model=a.model, prompt="Tom has", max_tokens=12)
    answer = await create(model=a.model, prompt=["Tom has", "Ann"], n=2, max_tokens=6)
    must(len(answer.choices) == 4, "two prompts and n=2 have four choices")


async def completions_streamed(a: Asking) -> None:
    create: Any = a.client.completions.create
    must(
        [_ async for _ in await create(model=a.model, prompt="Tom has", max_tokens=12, stream=True)],
        "it streams",
    )


async def responses(a: Asking) -> None:
    """OpenAI's other API, which the gateway translates."""
    create: Any = a.client.responses.create
    said = a.messages[-1]["content"]
    must((await create(model=a.model, input=said, max_output_tokens=40)).output_text, "a response has a text")
    events = [event.type async for event in await create(model=a.model, input=said, stream=True)]
    must(events[-1] == "response.completed", "a streamed response is completed")


# ------------------------------------------------------------------------------- the agent's own sampling
async def seeded(a: Asking) -> None:
    """In validation an agent's seed is its own: the same seed, the same tokens."""
    first, second, other = [
        (await a.chat(a.wide, seed=seed, max_tokens=24)).choices[0].model_extra["token_ids"]
        for seed in (5, 5, 6)
    ]
    must(first == second != other, "the same seed gives the same tokens, another seed others")


async def cooler(a: Asking) -> None:
    """In validation an agent's temperature is its own."""
    await a.chat(a.wide, temperature=0.7, max_tokens=40)


# ----------------------------------------------------------------------- what is sampled in another way
async def guided(a: Asking) -> None:
    """Both names of a guided choice; vLLM itself knows only the second."""
    for extra in ({"guided_choice": CHOICES}, {"structured_outputs": {"choice": CHOICES}}):
        said = (await a.chat(extra_body=extra)).choices[0].message.content
        must(said in CHOICES, f"{extra} was answered with {said!r}")


async def forced(a: Asking) -> None:
    answer = await a.chat(tools=[CALCULATE], tool_choice="required")
    must(answer.choices[0].message.tool_calls, "a tool that is required is called")


# ------------------------------------------------------------------------------------------- too long
async def too_long(a: Asking) -> None:
    for stream in (False, True):
        try:
            await a.chat([*a.messages, {"role": "user", "content": "7 " * 2000}], stream=stream)
        except openai.BadRequestError as error:
            must(
                error.code == "context_length_exceeded",
                f"too long is said as OpenAI says it, not {error.code!r}",
            )
        else:
            must(False, "a prompt that is too long is refused")


async def truncated(a: Asking) -> None:
    """An old turn is dropped, so that the prompt fits."""
    chatter = [{"role": "user", "content": "7 " * 300}, {"role": "assistant", "content": "8 " * 300}]
    first, *rest = a.messages
    await a.chat([first, *rest, *chatter, *rest], max_tokens=20)


TRAINED: dict[str, Case] = {
    "chat": chat,
    "tools": tools,
    "stream": stream,
    "stream, tools": stream_tools,
    "logprobs": logprobs,
    "n=3": several,
    "n=2, stream": several_streamed,
    "include_reasoning": unreasoned,
    "stop": stop,
    "8 at once": at_once,
    "completions": completions,
    "completions, stream": completions_streamed,
    "responses": responses,
}
OWN: dict[str, Case] = {"seed": seeded, "temperature": cooler}
MASKED: dict[str, Case] = {"guided choice": guided, "tool_choice=required": forced}
LENGTHS: dict[str, Case] = {"too long": too_long, "truncate": truncated}
