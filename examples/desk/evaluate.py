"""The reward of a policy on tasks, whole talks with the scripted customer, in batches and without a server.

It sends the very prompts the agent sends, so with greedy decoding it gives the reward the agent would get. It
is for building and testing the small policy. ``python -m desk.evaluate [POLICY]`` prints a table by kind.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import torch

from agl_local.policy.folder import Policy, load_policy
from agl_local.text.cores import HERMES
from agl_local.text.syntax import CallSyntax
from agl_local.text.tools import parse_calls
from desk.shop import SCHEMAS
from desk.talk import Talk, advance
from desk.tasks import KINDS, Task, grade, tasks
from small_policy.answering import complete

POLICY_FOLDER = Path(__file__).resolve().parent / "policy"
MAX_NEW = 40
"""Tokens of one answer; the longest right one has 12."""


def message(text: str, syntax: CallSyntax = HERMES) -> dict[str, Any]:
    """The assistant message of what a model wrote."""
    content, found = parse_calls(text, syntax)
    calls = [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": one.name, "arguments": one.arguments},
        }
        for number, one in enumerate(found)
    ]
    return {"role": "assistant", "content": content or None, **({"tool_calls": calls} if calls else {})}


def rewards(policy: Policy, given: Sequence[Task], temperature: float = 0.0, seed: int = 0) -> list[float]:
    """Let the policy serve every customer once; temperature 0 is greedy."""
    draw = torch.Generator().manual_seed(seed)
    with ExitStack() as stack:
        talks = [(stack.enter_context(closing(Talk(one["orders"]))), one) for one in given]
        while waiting := [talk for talk, one in talks if advance(talk, one)]:
            prompts = [policy.tokenizer.apply(talk.messages, SCHEMAS) for talk in waiting]
            texts = complete(policy.model, policy.tokenizer, prompts, temperature, draw, MAX_NEW)
            for talk, text in zip(waiting, texts, strict=True):
                talk.take(message(text, policy.tokenizer.syntax))
        return [grade(one, talk.shop) for talk, one in talks]


def table(policy: Policy, n: int = 576) -> str:
    """Held-out reward by kind of wish, greedy and sampled, as a Markdown table."""
    given = tasks(n, held_out=True)
    both = [rewards(policy, given, temperature) for temperature in (0.0, 1.0)]
    lines = ["| wish, broken rule | greedy | sampled, T = 1 |", "|---|---|---|"]
    for kind in dict.fromkeys(f"{wish}, {rule}" for wish, rule in KINDS):
        lines.append(f"| {kind} | {' | '.join(f'{mean(found, given, kind):.2f}' for found in both)} |")
    lines.append(f"| **all** | {' | '.join(f'**{sum(found) / n:.3f}**' for found in both)} |")
    return "\n".join(lines)


def mean(found: Sequence[float], given: Sequence[Task], kind: str) -> float:
    """Mean reward of the tasks of a kind."""
    own = [reward for reward, one in zip(found, given, strict=True) if one["kind"] == kind]
    return sum(own) / len(own)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(table(load_policy(sys.argv[1] if sys.argv[1:] else POLICY_FOLDER)))
