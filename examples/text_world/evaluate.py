"""The reward of a policy on games, in batches and without agent or server.

It sends the very prompts the agent sends, so with greedy decoding it gives the reward the agent would get.
It is for building and testing the small policy. ``python -m text_world.evaluate [POLICY]`` prints a table
by kind of game.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from agl_local.policy.folder import Policy, load_policy
from small_policy.answering import complete
from text_world.agent import command_of, messages
from text_world.games import KINDS, Task, game_of, tasks
from text_world.notes import Notes
from text_world.playing import Playing

POLICY = Path(__file__).resolve().parent / "policy"
MAX_NEW = 12
"""Tokens of one answer."""


@dataclass
class Course:
    """A game on its way through the agent."""

    task: Task
    turns: int = 0

    def __post_init__(self) -> None:
        self.game = Playing(game_of(self.task))
        self.notes = Notes(self.game.look())

    @property
    def open(self) -> bool:
        """Whether the agent would ask for another command."""
        return not self.game.over and self.turns < self.task["turns"]

    def take(self, answer: str) -> None:
        """What the agent makes of an answer."""
        command = self.notes.meant(command_of(answer))
        read = self.game.do(command)
        self.notes.did(command, read, self.game.look())
        self.turns += 1


def courses(policy: Policy, given: Sequence[Task], temperature: float = 0.0, seed: int = 0) -> list[Course]:
    """Let the policy play every game once; temperature 0 is greedy."""
    found = [Course(one) for one in given]
    draw = torch.Generator().manual_seed(seed)
    while under_way := [one for one in found if one.open]:
        prompts = [policy.tokenizer.apply(messages(one.notes)) for one in under_way]
        texts = complete(policy.model, policy.tokenizer, prompts, temperature, draw, MAX_NEW)
        for one, text in zip(under_way, texts, strict=True):
            one.take(text)
    return found


def reward(found: Sequence[Course]) -> float:
    """Mean reward."""
    return sum(one.game.won for one in found) / len(found)


def table(policy: Policy, n: int) -> str:
    """Held-out reward by kind of game, greedy and sampled, as a Markdown table."""
    given = tasks("heldout", n)
    both = [courses(policy, given, temperature) for temperature in (0.0, 1.0)]
    lines = ["| game | greedy | sampled, T = 1 |", "|---|---|---|"]
    for kind in KINDS:
        cells = [reward([one for one in found if one.task["kind"] == kind]) for found in both]
        lines.append(f"| {kind} | {cells[0]:.2f} | {cells[1]:.2f} |")
    lines.append(f"| **all** | **{reward(both[0]):.3f}** | **{reward(both[1]):.3f}** |")
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(table(load_policy(sys.argv[1] if sys.argv[1:] else POLICY), 192))
