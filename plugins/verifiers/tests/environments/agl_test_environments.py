"""Environments of verifiers for the tests: of a single turn, with a tool, and those that cannot be used."""

from typing import Any

import verifiers as vf
from datasets import Dataset

ROWS = Dataset.from_list([{"question": "1+2", "answer": "3"}, {"question": "2+2", "answer": "4"}])


def right(completion: Any, answer: str) -> float:
    return float(answer in str(completion[-1].content))


def short(completion: Any) -> float:
    return 1.0 / len(str(completion[-1].content))


def broken(completion: Any) -> float:
    raise KeyError("no such key")


def compare(completions: list[Any]) -> list[float]:
    return [0.0] * len(completions)


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: One.
        b: The other.
    """
    return a + b


def load_environment(kind: str = "single") -> vf.Environment:
    if kind == "tool":
        return vf.ToolEnv(
            tools=[add], max_turns=3, dataset=ROWS, rubric=vf.Rubric([right, short], [1.0, 0.5])
        )
    functions = {"broken": [broken, right], "compare": [compare]}.get(kind, [right])
    rubric = vf.Rubric(functions)
    return vf.SingleTurnEnv(
        dataset=ROWS, eval_dataset=ROWS.select([1]), rubric=rubric, score_rollouts=kind != "unscored"
    )
