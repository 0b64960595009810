"""Build the policy of these programs: ``python -m typed_answers.policy --seed 1`` (minutes on one core).

calc_x's network, problems and teacher, who is wrong on purpose, in the forms of two frameworks
(:mod:`typed_answers.forms`).
"""

from __future__ import annotations

import argparse
import random
import re
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

import torch

from agl_local.policy.folder import Policy, save_policy
from agl_local.text.tokenizer import ChatTokenizer
from calc_x.calculator import calculate_text
from calc_x.evaluate import MAX_NEW
from calc_x.grading import grade
from calc_x.problems import Problem, generate, problems
from calc_x.teacher import ERROR_RATE, Example, expression_of
from calc_x.tokenizer import build_tokenizer
from calc_x.warmstart import HELD_OUT, row
from small_policy import teaching
from small_policy.answering import complete
from typed_answers.forms import FORMS, HERE, SMOLAGENTS, Form

STEPS = 340
FIRST_CALLS, SECOND_CALLS = 72, 24
"""Rows of each step, of two forms."""
TEMPLATE = HERE.parent / "quickstart" / "template.jinja"
CALL = re.compile(
    r'<tool_call>\n\{"name": "(\w+)", "arguments": \{"(?:expression|answer)": "?([^"}]*)"?\}\}\n</tool_call>'
)


def scaffold() -> tuple[str, ...]:
    """The fixed pieces of these prompts, each one token, smolagents' whole system message too."""
    tools = [f"\ncalculate(expression)\n{form.last}(answer)" for form in FORMS]
    pieces = (
        "system\n", "user\n", "assistant\n", "Use the calculator.", SMOLAGENTS,
        "\nTools, called as JSON within <tool_call></tool_call>:", *tools,
        "New task:\n", "Observation:\n", "Calling tools:\n[{'id': 'call_",
        "', 'type': 'function', 'function': {'name': 'calculate', 'arguments': {'expression': '", "'}}}]",
        "<tool_call>\n", '{"name": "calculate", "arguments": {"expression": "',
        '{"name": "final_result", "arguments": {"answer": ',
        '{"name": "final_answer", "arguments": {"answer": "',
        '"}}\n', "}}\n", "</tool_call>", "<tool_response>\n", "\n</tool_response>",
    )  # fmt: skip
    return tuple(dict.fromkeys(pieces))


def tokenizer() -> ChatTokenizer:
    """The policy's tokenizer; the same every time."""
    return build_tokenizer(scaffold(), TEMPLATE)


def traces(seed: int) -> Iterator[tuple[Example, Example]]:
    """The endless stream of the teacher's calls over training problems, the forms in turn."""
    rng = random.Random(f"typed_answers:{seed}")
    for problem, form in zip(problems("train", seed), cycle(FORMS), strict=False):
        expression = expression_of(problem, rng.random() < ERROR_RATE)
        yield form.examples(problem["question"], expression, f"call_{rng.randbytes(12).hex()}")


def batches(tokenizer: ChatTokenizer, seed: int) -> Iterator[list[list[teaching.Row]]]:
    """The rows of each step, in micro-batches."""
    stream = traces(seed)
    while True:
        pairs = list(islice(stream, FIRST_CALLS))
        examples = [first for first, _ in pairs] + [second for _, second in pairs[:SECOND_CALLS]]
        yield teaching.micro_batches([row(tokenizer, example) for example in examples])


def called(text: str) -> tuple[str, str] | None:
    """Tool and argument of an answer, None where it is not exactly one call."""
    found = CALL.fullmatch(text.strip())
    return (found[1], found[2]) if found else None


def rewards(policy: Policy, form: Form, asked: list[Problem], temperature: float = 0.0) -> list[float]:
    """The reward of each problem, both calls in one batch and without framework or grammar."""
    draw = torch.Generator().manual_seed(0)
    prompts = [policy.tokenizer.apply(form.first(problem["question"]), form.tools) for problem in asked]
    answers = complete(policy.model, policy.tokenizer, prompts, temperature, draw, MAX_NEW)
    written = {
        i: found[1] for i, text in enumerate(answers) if (found := called(text)) and found[0] == "calculate"
    }
    prompts = [
        policy.tokenizer.apply(
            form.second(asked[i]["question"], expression, calculate_text(expression), f"call_{i:024x}"),
            form.tools,
        )
        for i, expression in written.items()
    ]
    last = complete(policy.model, policy.tokenizer, prompts, temperature, draw, MAX_NEW)
    given = {
        i: found[1]
        for i, text in zip(written, last, strict=True)
        if (found := called(text)) and found[0] == form.last
    }
    return [grade(given.get(i), problem["result"]) for i, problem in enumerate(asked)]


def table(policy: Policy) -> str:
    """Held-out reward of every form, greedy and sampled, as a Markdown table."""
    lines = ["| form | greedy | sampled, T = 1 |", "|---|---|---|"]
    asked = generate("heldout", HELD_OUT)
    for form in FORMS:
        greedy, sampled = (sum(rewards(policy, form, asked, t)) / HELD_OUT for t in (0.0, 1.0))
        lines.append(f"| {form.name} | {greedy:.3f} | {sampled:.3f} |")
    return "\n".join(lines)


def main() -> None:
    """Build, save, evaluate, and write the card with what was measured."""
    parser = argparse.ArgumentParser(prog="python -m typed_answers.policy", description="Build the policy.")
    parser.add_argument("--out", type=Path, default=HERE / "policy")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    begin = time.process_time()
    words = tokenizer()
    fresh = teaching.fresh(words, arguments.seed)
    policy = teaching.teach(fresh, batches(words, arguments.seed), arguments.steps)
    seconds = time.process_time() - begin
    save_policy(policy, arguments.out)
    measured = table(policy)
    card = (HERE / "card.md").read_text(encoding="utf-8").format(
        parameters=sum(parameter.numel() for parameter in policy.model.parameters()),
        n=HELD_OUT, table=measured, seed=arguments.seed, steps=arguments.steps, seconds=seconds,
    )  # fmt: skip
    (arguments.out / "README.md").write_text(card, encoding="utf-8")
    print(measured)


if __name__ == "__main__":
    main()
