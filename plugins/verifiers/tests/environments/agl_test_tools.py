"""A taskset of verifiers for the tests: sums with a tool, whose state is that of a rollout."""

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf
from agl_test_environments import SUMS, last


class Data(vf.TaskData):
    """A sum and what it gives."""

    answer: str


class State(vf.State):
    """Each rollout counts its own calls of the tool."""

    added: int = 0


class Adder(vf.Toolset[vf.ToolsetConfig, State]):
    """A tool that has a state."""

    @vf.tool
    async def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        self.state.added += 1
        return a + b


class ToolSum(vf.Task[Data, State]):
    """Rewarded where the last message holds the answer, at whatever turn it stands."""

    @vf.reward
    async def right(self, trace: Any) -> float:
        return float(self.data.answer in last(trace))

    @vf.metric
    async def added(self, trace: Any) -> float:
        return float(trace.state.added)

    @classmethod
    def toolsets(cls, config: Any) -> list[Any]:
        return [Adder(vf.ToolsetConfig())]


class ToolSums(vf.Taskset[ToolSum, vf.TasksetConfig]):
    """The sums."""

    def load(self) -> Iterator[ToolSum]:
        for question, answer in SUMS:
            yield ToolSum(Data(prompt=question, answer=answer), self.config.task)


__all__ = ["ToolSums"]

if __name__ == "__main__":
    Adder.run()
