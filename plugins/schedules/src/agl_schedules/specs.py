"""Curricula of plugins: what one does, and how it is named. Importing this imports no library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # pydantic is not imported for it
    from pydantic import BaseModel


class Curriculum(Protocol):
    """Chooses the tasks of each step, by their positions in the training data. A choice is a function of
    seed, step, and what was learned before it; :meth:`state`, as JSON, is what a checkpoint keeps.
    """

    def choose(self, step: int, size: int, taken: Sequence[int] = ()) -> list[int]:
        """Return ``size`` positions for a step. ``taken``: positions that the step has already."""

    def learn(self, step: int, groups: Sequence[tuple[int, Sequence[float | None]]]) -> None:
        """Take a credited step: each group's position and rewards, as credited; ``None``: left out."""

    def metrics(self) -> dict[str, float]:
        """Return the step's metrics, ``curriculum/…`` each. The last step's are in the run's summary."""

    def state(self) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class CurriculumSpec:
    """A curriculum by name: ``factory(tasks, seed)`` makes one for so many tasks; with ``options``,
    ``factory(tasks, seed, options)``.
    """

    name: str
    factory: Callable[..., Curriculum]
    about: str = ""
    options: Callable[[], type[BaseModel]] | None = None
    """Imports and returns the pydantic model of its options; ``None``: it has none."""
