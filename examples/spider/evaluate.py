"""The reward of a policy on a set of questions, all calls of the agent, in batches and without agent or
server.

It sends the very prompts the agent sends, so with greedy decoding it gives the reward the agent would get; it
is for building and testing the shipped policy, where thousands of answers are wanted in seconds. ``python -m
spider.evaluate [POLICY]`` prints the held-out reward, greedy and sampled, per kind.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from agl_local.policy.folder import Policy, load_policy
from small_policy.answering import complete
from spider.budget import BRIEF
from spider.databases import find
from spider.prompts import Messages, is_right, query_in, to_check, to_rewrite, to_write
from spider.questions import KINDS, Question, generate
from spider.sql.matching import match
from spider.teacher import judgement_of, result_of, schema_of

POLICY = Path(__file__).resolve().parent / "policy"
MAX_NEW = BRIEF.answer_tokens


@dataclass
class Course:
    """One question on its way through the agent."""

    question: Question
    query: str = ""
    result: str = ""
    judgement: str = ""
    turns: int = 0
    tried: list[str] = field(default_factory=list)
    """Every query in order."""
    sound: list[bool] = field(default_factory=list)
    """Of each review, whether its verdict is what the result says."""

    @property
    def schema(self) -> str:
        return schema_of(self.question["db_id"])

    def prompt(self, node: str) -> Messages:
        """What the node sends."""
        asked = self.question["question"]
        if node == "write":
            return to_write(self.schema, asked)
        if node == "check":
            return to_check(self.schema, asked, self.query, self.result)
        return to_rewrite(self.schema, asked, self.query, self.result, self.judgement)

    def take(self, node: str, answer: str) -> None:
        """What the node makes of an answer."""
        if node == "check":
            self.judgement = answer
            self.sound.append(is_right(answer) is is_right(judgement_of(self.result)))
            return
        self.query = query_in(answer, otherwise=self.query if node == "rewrite" else None)
        self.result = result_of(self.question["db_id"], self.query)
        self.tried.append(self.query)
        self.turns += 1

    @property
    def reward(self) -> float:
        return self.reward_of(self.query)

    def reward_of(self, query: str) -> float:
        """1.0 for a query that answers as the gold query does."""
        return match(self.question["query"], query, find(self.question["db_id"])).reward


@dataclass(frozen=True)
class Evaluation:
    """Courses with their rewards, in the order of the questions."""

    courses: Sequence[Course]
    rewards: list[float]

    @property
    def reward(self) -> float:
        return sum(self.rewards) / len(self.rewards)

    @property
    def by_kind(self) -> dict[str, float]:
        groups: dict[str, list[float]] = defaultdict(list)
        for course, reward in zip(self.courses, self.rewards, strict=True):
            groups[course.question["kind"]].append(reward)
        return {kind: sum(values) / len(values) for kind, values in groups.items()}

    @property
    def rewritten(self) -> float:
        """Share of questions with more than one query."""
        return sum(course.turns > 1 for course in self.courses) / len(self.courses)

    @property
    def corrected(self) -> float:
        """Share of questions whose first query was wrong and whose last one is right."""
        pairs = zip(self.courses, self.rewards, strict=True)
        return sum(bool(r) and not c.reward_of(c.tried[0]) for c, r in pairs) / len(self.courses)

    @property
    def sound(self) -> float:
        """Share of reviews that say what the result says."""
        verdicts = [verdict for course in self.courses for verdict in course.sound]
        return sum(verdicts) / len(verdicts)


def evaluate(
    policy: Policy, questions: Sequence[Question], temperature: float = 0.0, seed: int = 0
) -> Evaluation:
    """Let the policy answer every question once; temperature 0 is greedy. Reviews are always greedy, as the
    agent asks for them.
    """
    if not questions:
        raise ValueError("there are no questions to evaluate on")
    random = torch.Generator().manual_seed(seed)
    courses = [Course(question) for question in questions]
    _turn(policy, courses, "write", temperature, random)
    open_ones = courses
    for _ in range(BRIEF.turns - 1):
        _turn(policy, open_ones, "check", 0.0, random)
        open_ones = [course for course in open_ones if not is_right(course.judgement)]
        _turn(policy, open_ones, "rewrite", temperature, random)
    return Evaluation(courses, [course.reward for course in courses])


def _turn(
    policy: Policy, courses: Sequence[Course], node: str, temperature: float, random: torch.Generator
) -> None:
    prompts = [policy.tokenizer.apply(course.prompt(node)) for course in courses]
    answers = complete(policy.model, policy.tokenizer, prompts, temperature, random, MAX_NEW)
    for course, answer in zip(courses, answers, strict=True):
        course.take(node, answer)


def table(policy: Policy, n: int = 360) -> str:
    """Greedy and sampled reward on ``n`` held-out questions, per kind, as a Markdown table."""
    questions = generate("heldout", n)
    greedy = evaluate(policy, questions)
    sampled = evaluate(policy, questions, temperature=1.0)
    lines = ["| kind | greedy | sampled, T = 1 |", "|---|---|---|"]
    lines += [f"| {kind} | {greedy.by_kind[kind]:.2f} | {sampled.by_kind[kind]:.2f} |" for kind in KINDS]
    lines.append(f"| **all** | **{greedy.reward:.3f}** | **{sampled.reward:.3f}** |")
    for name in ("rewritten", "corrected", "sound"):
        what = {"sound": "reviews that say what the result says"}.get(name, name)
        lines.append(f"| {what} | {getattr(greedy, name):.3f} | {getattr(sampled, name):.3f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(table(load_policy(sys.argv[1] if sys.argv[1:] else POLICY)))
