"""A taskset of verifiers for the tests that cannot be used: its tasks need a container, and never end."""

from collections.abc import Iterator

import verifiers.v1 as vf


class Config(vf.TasksetConfig):
    """Whether the tasks need a container."""


class Contained(vf.Task[vf.TaskData]):
    """Needs a container."""

    NEEDS_CONTAINER = True


class Many(vf.Taskset[Contained, Config]):
    """Nothing."""

    def load(self) -> Iterator[Contained]:
        yield from ()


__all__ = ["Many"]
