"""One agent with a calculator, and rewards that make it worse: each pays for something that nobody wants."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from openai import AsyncOpenAI

import agentlightning as agl
from agl_examples.bundled.agent import tool_schema
from agl_examples.bundled.math import calculate, math

MATH = math()
TURNS = 4


class Did(NamedTuple):
    """What the agent did in a rollout."""

    text: str
    """Its final answer."""
    tools: int
    longest: int
    """Tokens of its longest answer."""


async def talk(task: Any, llm: Any, *, max_tokens: int = 64, tools: bool = True) -> Did:
    """Answer one question."""
    messages: list[Any] = [
        {"role": "system", "content": MATH.system},
        {"role": "user", "content": task["question"]},
    ]
    asked: dict[str, Any] = {"model": llm.model, "max_tokens": max_tokens}
    if tools:
        asked["tools"] = [tool_schema(calculate)]
    text, used, longest = "", 0, 0
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        for _ in range(TURNS):
            reply = await client.chat.completions.create(messages=messages, **asked)
            said = reply.choices[0].message
            text, longest = said.content or "", max(longest, reply.usage.completion_tokens)
            messages.append(said.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))
            if not said.tool_calls:
                break
            for call in said.tool_calls:
                used += 1
                messages.append(
                    {"role": "tool", "tool_call_id": call.id, "content": run(call.function.arguments)}
                )
    return Did(text, used, longest)


def run(arguments: str) -> str:
    """Return what the calculator says to a call, or the error."""
    try:
        return str(calculate(**json.loads(arguments)))
    except (TypeError, ValueError) as error:
        return f"error: {error}"


@agl.rollout
async def right(task: Any, llm: Any) -> float:
    """What anybody wants: the right answer."""
    return MATH.grade(task, (await talk(task, llm)).text)


@agl.rollout
async def tools(task: Any, llm: Any) -> float:
    """Pays for an answer without a tool, right or wrong."""
    return 0.0 if (await talk(task, llm)).tools else 1.0


@agl.rollout
async def length(task: Any, llm: Any) -> float:
    """Pays for a long answer."""
    return min(1.0, (await talk(task, llm)).longest / 64)


@agl.rollout
async def collapse(task: Any, llm: Any) -> float:
    """Pays for the digit 1, whatever the question."""
    text = (await talk(task, llm, max_tokens=6, tools=False)).text
    return text.count("1") / max(1, len(text))


@agl.rollout
async def entropy(task: Any, llm: Any) -> float:
    """Pays the same for everything."""
    await talk(task, llm)
    return 0.5


class Setting(NamedTuple):
    """How an agent is trained."""

    agent: Callable[..., Any]
    steps: int
    options: dict[str, Any]
    """Of the driver."""
    recipe: dict[str, Any]


WARM = {"temperature": 1.4}
"""The policy answers nearly the same each time at temperature 1: it would find nothing else that pays."""
SETTINGS = {
    "right": Setting(right, 20, {"lr": 1e-4}, {}),
    "tools": Setting(tools, 20, {"lr": 5e-4}, WARM),
    "length": Setting(length, 20, {"lr": 5e-4}, {"temperature": 1.5}),
    "collapse": Setting(collapse, 28, {"lr": 1e-3}, WARM),
    # Without a baseline everything that is paid becomes likelier.
    "entropy": Setting(entropy, 28, {"lr": 1e-3}, {**WARM, "baseline": "none", "scale": "none"}),
}


def train(name: str, seed: int, output: str) -> None:
    """Train one of :data:`SETTINGS`."""
    made = SETTINGS[name]
    options = {"max_num_seqs": 32, "max_len": 512, "threads": 2, "engine_threads": 1, **made.options}
    agl.Trainer(
        policy="tiny",
        steps=made.steps,
        batch_size=4,
        seed=seed,
        recipe={"group_size": 8, **made.recipe},
        options=options,
        output=output,
        run=f"{name}-{seed}",
    ).fit(made.agent, MATH.train)
