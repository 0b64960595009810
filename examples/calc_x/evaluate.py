"""The reward of a policy on a set of problems, both calls of the agent, in one batch and without agent or
server.

It sends the very prompts the agent sends (``teacher``), so with greedy decoding it gives the reward the agent
would get; it is for building and testing the shipped policy, where thousands of answers are wanted in
seconds. ``python -m calc_x.evaluate [POLICY]`` prints the held-out reward, greedy and sampled, per kind.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from agl_local.policy.folder import Policy, load_policy
from agl_local.text.cores import HERMES
from agl_local.text.syntax import CallSyntax
from agl_local.text.tools import parse_calls
from calc_x.calculator import calculate_text
from calc_x.grading import grade
from calc_x.oracle import call_message
from calc_x.problems import KINDS, Problem, generate
from calc_x.teacher import AUTOGEN, Wording, first_request, second_request
from small_policy.answering import complete

POLICY = Path(__file__).resolve().parent / "policy"
MAX_NEW = 32
"""Tokens of one answer; the longest right one has 16."""


@dataclass(frozen=True)
class Evaluation:
    """Rewards per problem, in their order."""

    problems: Sequence[Problem]
    rewards: list[float]
    called: float
    """Share of problems whose first answer was a well-formed call of the calculator."""

    @property
    def reward(self) -> float:
        return sum(self.rewards) / len(self.rewards)

    @property
    def by_kind(self) -> dict[str, float]:
        groups: dict[str, list[float]] = defaultdict(list)
        for problem, reward in zip(self.problems, self.rewards, strict=True):
            groups[problem["kind"]].append(reward)
        return {kind: sum(values) / len(values) for kind, values in groups.items()}


def evaluate(
    policy: Policy,
    problems: Sequence[Problem],
    temperature: float = 0.0,
    seed: int = 0,
    wording: Wording = AUTOGEN,
) -> Evaluation:
    """Let the policy answer every problem once; temperature 0 is greedy."""
    if not problems:
        raise ValueError("there are no problems to evaluate on")
    tokenizer = policy.tokenizer
    random = torch.Generator().manual_seed(seed)
    prompts = [
        tokenizer.apply(first_request(problem["question"], wording), wording.tools) for problem in problems
    ]
    texts = complete(policy.model, tokenizer, prompts, temperature, random, MAX_NEW)
    found = [called_expression(text, tokenizer.syntax) for text in texts]
    calls = {i: expression for i, expression in enumerate(found) if expression is not None}
    requests = [
        second_request(problems[i]["question"], call_message(call), calculate_text(call), wording)
        for i, call in calls.items()
    ]
    prompts = [tokenizer.apply(request, wording.again) for request in requests]
    answers = complete(policy.model, tokenizer, prompts, temperature, random, MAX_NEW)
    for i, text in zip(calls, answers, strict=True):
        texts[i] = text
    rewards = [grade(text, problem["result"]) for text, problem in zip(texts, problems, strict=True)]
    return Evaluation(problems, rewards, len(calls) / len(problems))


def called_expression(text: str, syntax: CallSyntax = HERMES) -> str | None:
    """The expression of a call of the calculator in ``syntax``, None when the text is not exactly one."""
    content, calls = parse_calls(text, syntax)
    if content or len(calls) != 1 or calls[0].name != "calculate":
        return None
    expression = json.loads(calls[0].arguments).get("expression")
    return expression if isinstance(expression, str) else None


def table(policy: Policy, n: int = 400, wording: Wording = AUTOGEN) -> str:
    """Greedy and sampled reward on ``n`` held-out problems, per kind, as a Markdown table."""
    problems = generate("heldout", n)
    greedy = evaluate(policy, problems, wording=wording)
    sampled = evaluate(policy, problems, temperature=1.0, wording=wording)
    lines = ["| kind | greedy | sampled, T = 1 |", "|---|---|---|"]
    lines += [f"| {kind} | {greedy.by_kind[kind]:.2f} | {sampled.by_kind[kind]:.2f} |" for kind in KINDS]
    lines.append(f"| **all** | **{greedy.reward:.3f}** | **{sampled.reward:.3f}** |")
    lines.append(f"| calls the tool | {greedy.called:.3f} | {sampled.called:.3f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(table(load_policy(sys.argv[1] if sys.argv[1:] else POLICY)))
