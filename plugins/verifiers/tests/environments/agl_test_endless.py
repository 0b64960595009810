"""A taskset of verifiers for the tests that never ends."""

from collections.abc import Iterator
from itertools import count

import verifiers.v1 as vf


class Endless(vf.Task[vf.TaskData]):
    """One of many."""

    @vf.reward
    async def one(self) -> float:
        return 1.0


class Many(vf.Taskset[Endless, vf.TasksetConfig]):
    """All numbers."""

    INFINITE = True

    def load(self) -> Iterator[Endless]:
        for number in count():
            yield Endless(vf.TaskData(prompt=str(number)), self.config.task)


__all__ = ["Many"]
