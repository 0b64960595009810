"""What is learned without its reward: the agents with their rule, and what a judge can read of it.

An agent returns what its rule says, and does not emit it: ``learn.py`` hands it on where a run may see it. Of
calc_x a judge sees the gold answer beside the candidates. Of werewolf it sees whole games: the wolves hear
from the moderator who has won, in a call that is not trained.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))

from openai import AsyncOpenAI  # noqa: E402

import agentlightning as agl  # noqa: E402
from agl_judge.check import Pair  # noqa: E402
from calc_x.agent import answer  # noqa: E402
from calc_x.datasets import load  # noqa: E402
from calc_x.grading import grade  # noqa: E402

Given = Mapping[str, Any]
WON = "The wolves win."
"""The moderator's words (``examples/werewolf/prompts/en.yaml``)."""


@dataclass(frozen=True)
class Task:
    """An example, its rule, and the budget that every arm gets."""

    config: str
    """The example's configuration, in the repository."""
    agent: Callable[[Given, agl.LLM, agl.Rollout], Awaitable[float]]
    """Returns what the rule says of the rollout, 1.0 or 0.0."""
    right: Callable[[Given, str], float]
    """The same of a candidate as the judge reads it: the task's fields of ``show``, and the transcript."""
    show: tuple[str, ...]
    pairs: Callable[[int], list[Pair]]
    """Labelled pairs by which a real model is measured as a judge."""
    steps: int
    greedy: bool
    """Whether evaluations are greedy. They sample where the start policy plays legal moves at random."""
    sets: tuple[str, ...]
    """What else differs from the example's configuration."""
    read: str = ""
    """What reads the answer that agreement compares; empty: answers are no texts to compare."""


async def calculate(task: Given, llm: agl.LLM, rollout: agl.Rollout) -> float:
    """Answer a problem."""
    return grade(await answer(task["question"], llm), task["result"], task["question"])


def is_right(task: Given, candidate: str) -> float:
    return grade(candidate.rpartition("assistant: ")[2], task["result"], task["question"])


def answers(n: int) -> list[Pair]:
    """A right and a wrong answer to each of ``n`` problems; the right one stands first in half of them."""
    made = []
    for number, task in enumerate(load("generated:heldout", limit=n, seed=2)):
        texts = [f"### ANSWER: {value} ###" for value in (task["result"], int(float(task["result"])) + 7)]
        made.append(pair(task["question"], *texts, number))
    return made


async def play(task: Given, llm: agl.LLM, rollout: agl.Rollout) -> float:
    """Play the wolves of a game; in training they hear its end, so that the transcript shows it."""
    from werewolf.agent import play_through

    game = await play_through(task, llm, rollout, {})
    if rollout.mode == "train":
        said = [{"role": "user", "content": game.ending}]
        async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
            with agl.tagged(agent="moderator"):
                await client.chat.completions.create(
                    model=llm.model, messages=said, extra_body={"guided_choice": ["过"]}
                )
    return game.outcome


def has_won(task: Given, candidate: str) -> float:
    return float(WON in candidate)


def games(n: int) -> list[Pair]:
    """Two games of each of ``n`` deals as the moderator tells them to everybody: one that the wolves won, and
    one that they lost.
    """
    from werewolf.engine import Game, Side
    from werewolf.players.local import local_player
    from werewolf.table import play_local
    from werewolf.tasks import EVALUATION
    from werewolf.wording import wording

    words, made = wording("en"), list[Pair]()
    for number in range(n):
        told: dict[bool, str] = {}
        deal = EVALUATION + number
        for chance in range(1_000):
            game = Game("mini5", deal, f"{deal}:{chance}")
            players = {seat: local_player("random", game, seat, chance, words) for seat in game.state.roles}
            won = play_local(game, players).winner is Side.WOLVES
            told[won] = "\n".join(words.event(one) for one in game.events if one.audience is None).strip()
            if len(told) == 2:
                break
        made.append(pair("Win a game of Werewolf for the wolves.", told[True], told[False], number))
    return made


def pair(prompt: str, right: str, wrong: str, number: int) -> Pair:
    return Pair(prompt, (right, wrong), 1) if number % 2 == 0 else Pair(prompt, (wrong, right), 2)


TASKS = {
    "calc_x": Task(
        config="examples/calc_x/cpu.yaml",
        agent=calculate,
        right=is_right,
        show=("question", "result"),
        pairs=answers,
        steps=24,
        greedy=True,
        sets=("environment.val.args.limit=128", "environment.headroom={}"),
        read="calc_x.grading:extract",
    ),
    "werewolf": Task(
        config="examples/werewolf/cpu.yaml",
        agent=play,
        right=has_won,
        show=("id",),
        pairs=games,
        steps=10,
        greedy=False,
        sets=(
            "training.batch_size=4",
            "training.recipe={group_size: 8, credit: broadcast, loss_aggregation: rollout}",
            "environment.train.args={n: 4000, trained: wolves, preset: mini5, language: en}",
            "environment.val.args={n: 96, first: 1000000, trained: wolves, preset: mini5}",
        ),
    ),
}
"""``werewolf``: the game of five with the budget of ``bench/algorithms``. One number a game goes to each of
its decisions, in every arm."""
