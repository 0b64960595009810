"""The agent of the drill over all processes: a few calls to a scripted model, each noted when answered.

A note is one write to a file opened for appending, so that what a killed process had noted stays. The agent
repeats a call whose gateway is gone; it does not hide a refusal.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import aiohttp

from agentlightning import LLM
from agentlightning.capture.context import current_attempt

JOURNAL = "AGL_DRILL_JOURNAL"
CALLS = 4
PATIENCE = 240.0
"""Seconds for which a gateway may be away."""
BETWEEN = 0.15
"""Seconds of work between two calls."""


async def talk(task: Any, llm: LLM) -> float:
    """Ask a few times, with a history that grows."""
    context = current_attempt()
    assert context is not None
    note("attempt", context.rollout_id, context.attempt_id, str(os.getpid()))
    messages: list[dict[str, str]] = []
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {llm.api_key}"}) as http:
        for turn in range(CALLS):
            messages.append({"role": "user", "content": f"{task} {turn}"})
            answer = await ask(http, llm, messages)
            note("call", context.rollout_id, context.attempt_id, answer["id"])
            messages.append(answer["choices"][0]["message"])
            await asyncio.sleep(BETWEEN)
    return 1.0


async def ask(http: aiohttp.ClientSession, llm: LLM, messages: list[dict[str, str]]) -> dict[str, Any]:
    """Ask once, and again while nobody answers."""
    until = asyncio.get_running_loop().time() + PATIENCE
    while True:
        try:
            url, body = f"{llm.endpoint}/chat/completions", {"model": llm.model, "messages": messages}
            async with http.post(url, json=body) as response:
                if response.status == 200:
                    answer: dict[str, Any] = await response.json()
                    return answer
                if response.status < 500 and response.status != 429:
                    raise RuntimeError(f"{response.status}: {(await response.text())[:200]}")
        except aiohttp.ClientError:
            pass
        if asyncio.get_running_loop().time() > until:
            raise TimeoutError(f"{llm.endpoint} did not answer for {PATIENCE:.0f} s")
        await asyncio.sleep(0.1)


def note(*words: str) -> None:
    """Append a line to the journal."""
    line = " ".join(words) + "\n"
    file = os.open(os.environ[JOURNAL], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)
