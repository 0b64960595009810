"""A taskset of verifiers for the tests: sums, of a single turn."""

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf

SUMS = (("1+2", "3"), ("2+2", "4"))


class Config(vf.TasksetConfig):
    """``kind``: what its tasks do."""

    kind: str = "single"


class Data(vf.TaskData):
    """A sum and what it gives."""

    answer: str
    kind: str


class Sum(vf.Task[Data]):
    """Rewarded where the last message holds the answer."""

    @vf.reward
    async def right(self, trace: Any) -> float:
        if self.data.kind == "broken":
            raise KeyError("no such key")
        return float(self.data.answer in last(trace))

    @vf.reward(weight=0.5)
    async def short(self, trace: Any) -> float:
        return 1.0 / max(1, len(last(trace)))

    @vf.metric
    async def length(self, trace: Any) -> float:
        return float(len(last(trace)))


class Sums(vf.Taskset[Sum, Config]):
    """The sums."""

    def load(self) -> Iterator[Sum]:
        for question, answer in SUMS:
            yield Sum(Data(prompt=question, answer=answer, kind=self.config.kind), self.config.task)


__all__ = ["Sums"]


def last(trace: Any) -> str:
    messages = trace.branches[-1].messages if trace.branches else []
    return str(messages[-1].content or "") if messages else ""
