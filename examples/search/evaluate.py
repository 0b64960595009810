"""The reward of a policy on questions, all calls of the agent, in batches and without agent or server.

It sends the very prompts the agent sends, so with greedy decoding it gives the reward the agent would get,
but that a call which the tools refuse ends it, where the agent is told and goes on. It is for building and
testing the small policy. ``python -m search.evaluate [POLICY]`` prints a table by kind.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from agl_local.policy.folder import Policy, load_policy
from agl_local.text.cores import HERMES
from agl_local.text.syntax import CallSyntax
from agl_local.text.tools import parse_calls
from search.agent import CALLS, SYSTEM
from search.baselines import message
from search.grading import grade
from search.index import factbook
from search.questions import CLUES, Task, tasks
from search.reader import Call
from search.teacher import TOOLS
from small_policy.answering import complete

POLICY = Path(__file__).resolve().parent / "policy"
MAX_NEW = 40
"""Tokens of one answer."""
ARGUMENTS = {"search": "words", "read": "title"}


@dataclass
class Course:
    """A question on its way through the agent."""

    task: Task
    messages: list[dict[str, Any]] = field(default_factory=list)
    answer: str | None = None

    def __post_init__(self) -> None:
        self.messages = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": self.task["question"]},
        ]

    def take(self, text: str, syntax: CallSyntax = HERMES) -> None:
        """What the agent makes of an answer: a tool's result, or the end."""
        content, calls = parse_calls(text, syntax)
        done = [Call(one.name, json.loads(one.arguments).get(ARGUMENTS.get(one.name))) for one in calls]
        if content or len(done) != 1 or not isinstance(done[0].argument, str):
            self.answer = content or ""
            return
        said = getattr(factbook(), done[0].tool)(done[0].argument)
        self.messages += [message(done[0]), {"role": "tool", "tool_call_id": "call_0", "content": said}]


def courses(policy: Policy, asked: Sequence[Task], temperature: float = 0.0, seed: int = 0) -> list[Course]:
    """Let the policy answer every question once; temperature 0 is greedy."""
    found = [Course(one) for one in asked]
    draw = torch.Generator().manual_seed(seed)
    for _ in range(CALLS):
        open_ones = [one for one in found if one.answer is None]
        prompts = [policy.tokenizer.apply(one.messages, TOOLS) for one in open_ones]
        texts = complete(policy.model, policy.tokenizer, prompts, temperature, draw, MAX_NEW)
        for one, text in zip(open_ones, texts, strict=True):
            one.take(text, policy.tokenizer.syntax)
    return found


def reward(found: Sequence[Course]) -> float:
    """Mean reward."""
    return sum(grade(one.answer, one.task["answer"]) for one in found) / len(found)


def table(policy: Policy, n: int = 256) -> str:
    """Held-out reward by kind of clue, greedy and sampled, as a Markdown table."""
    lines = ["| clue | greedy | sampled, T = 1 |", "|---|---|---|"]
    asked = tasks("heldout", n)
    both = [courses(policy, asked, temperature) for temperature in (0.0, 1.0)]
    kinds: list[dict[str, list[Course]]] = []
    for found in both:
        grouped: dict[str, list[Course]] = defaultdict(list)
        for one in found:
            grouped[one.task["kind"]].append(one)
        kinds.append(grouped)
    lines += [f"| {kind} | {reward(kinds[0][kind]):.2f} | {reward(kinds[1][kind]):.2f} |" for kind in CLUES]
    lines.append(f"| **all** | **{reward(both[0]):.3f}** | **{reward(both[1]):.3f}** |")
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(table(load_policy(sys.argv[1] if sys.argv[1:] else POLICY)))
