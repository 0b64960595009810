"""The agent: the openai SDK, one call a turn, and notes of its own in the place of a growing conversation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openai import AsyncOpenAI

import agentlightning as agl
from text_world.games import game_of
from text_world.notes import Notes
from text_world.playing import Playing

SYSTEM = (
    "You play a text game. Find the kitchen, examine the cookbook, take what it lists, take the knife, "
    "cut and cook each thing as listed, then prepare meal and eat meal in the kitchen. A wrong cut or a "
    "wrong way to cook loses. Answer with one command and nothing else: explore (a step towards a new "
    "room), go kitchen (a step towards a known room), open fridge, take carrot, examine cookbook, chop "
    "carrot with knife, cook carrot with stove, prepare meal, eat meal."
)


@agl.rollout
async def play(task: Mapping[str, Any], llm: agl.LLM) -> float:
    """Play one game; return 1.0 if it is won within the task's turns, else 0.0."""
    game = Playing(game_of(dict(task)))
    notes = Notes(game.look())
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        for _ in range(task["turns"]):
            answer = await client.chat.completions.create(
                model=llm.model, messages=messages(notes), max_tokens=24
            )
            command = notes.meant(command_of(answer.choices[0].message.content))
            read = game.do(command)
            notes.did(command, read, game.look())
            if game.over:
                break
    return float(game.won)


def messages(notes: Notes) -> Any:
    """The messages of a turn."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": notes.text()}]


def command_of(answer: str | None) -> str:
    """The command in an answer: its first line, without a full stop."""
    lines = (answer or "").strip().splitlines()
    return lines[0].strip().rstrip(".") if lines else "nothing"
