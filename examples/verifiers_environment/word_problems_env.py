"""Word problems as an environment of verifiers: a ``ToolEnv`` with a calculator, scored by its rubric.

It is written as verifiers' own environments are, and imports nothing of ours but the problems.
"""

from __future__ import annotations

from typing import Any

import verifiers as vf
from datasets import Dataset

from calc_x.calculator import calculate_text
from calc_x.datasets import load
from calc_x.grading import ANSWER_FORM, grade


def calculate(expression: str) -> str:
    """Calculate the value of an arithmetic expression.

    Args:
        expression: The expression.
    """
    return calculate_text(expression)


def correct(completion: Any, answer: str) -> float:
    """1.0 if the last message holds the right answer, else 0.0."""
    return grade(str(completion[-1].content or ""), answer) if completion else 0.0


def problems(spec: str, limit: int) -> Dataset:
    """Problems as verifiers' datasets are: a question and its answer."""
    return Dataset.from_list(
        [
            {"question": f"{problem['question']}\n\n{ANSWER_FORM}", "answer": str(problem["result"])}
            for problem in load(spec, limit)
        ]
    )


def load_environment(train: int = 400, held_out: int = 64, max_turns: int = 4) -> vf.Environment:
    """The environment, with so many problems to train on and to evaluate with."""
    return vf.ToolEnv(
        tools=[calculate],
        max_turns=max_turns,
        dataset=problems("generated:train", train),
        eval_dataset=problems("generated:heldout", held_out),
        system_prompt="Use the calculator.",
        rubric=vf.Rubric(funcs=[correct]),
    )
