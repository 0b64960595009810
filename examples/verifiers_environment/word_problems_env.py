"""Word problems as a taskset of verifiers, with a calculator as its tool, scored by its task.

It is written as verifiers' own tasksets are, and imports nothing of ours but the problems.
"""

from __future__ import annotations

from collections.abc import Iterator

import verifiers.v1 as vf

from calc_x.calculator import calculate_text
from calc_x.datasets import load
from calc_x.grading import ANSWER_FORM, grade


class Config(vf.TasksetConfig):
    """``split``: ``train`` or ``heldout``; ``count``: how many problems."""

    split: str = "train"
    count: int = 400


class Data(vf.TaskData):
    """A problem and its answer."""

    answer: str


class Calculator(vf.Toolset[vf.ToolsetConfig]):
    """The tool, whose name is that of its function alone."""

    TOOL_PREFIX = None

    @vf.tool
    async def calculate(self, expression: str) -> str:
        """Calculate the value of an arithmetic expression."""
        return calculate_text(expression)


class Problem(vf.Task[Data]):
    """Rewarded by 1.0 if the last message holds the right answer, else 0.0."""

    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        messages = trace.branches[-1].messages if trace.branches else []
        return grade(str(messages[-1].content or ""), self.data.answer) if messages else 0.0


class WordProblems(vf.Taskset[Problem, Config]):
    """The problems."""

    @classmethod
    def toolsets(cls, config: Config) -> list[vf.Toolset]:
        return [Calculator(vf.ToolsetConfig())]

    def load(self) -> Iterator[Problem]:
        for problem in load(f"generated:{self.config.split}", self.config.count):
            asked = f"{problem['question']}\n\n{ANSWER_FORM}"
            data = Data(prompt=asked, system_prompt="Use the calculator.", answer=str(problem["result"]))
            yield Problem(data, self.config.task)


__all__ = ["WordProblems"]

if __name__ == "__main__":  # verifiers starts this module as the server of the tool
    Calculator.run()
