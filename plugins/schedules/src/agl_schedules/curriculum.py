"""Curricula: what chooses the tasks of a run's steps (``training.curriculum``).

Invariants: what a step asks is a function of the run's seed and of the steps that were credited before it was
queued; with ``async_steps`` these are fewer, so a checkpoint holds the choices of the steps that are under
way, and a run that resumes asks what the interrupted one asked. A task keeps its number in the ids of its
rollouts, so that two choices for one step never share a rollout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentlightning.algorithms.queue import TaskGroups
from agentlightning.plugins.manager import Plugins, pick
from agentlightning.plugins.options import checked_options
from agentlightning.types.base import ConfigError
from agl_schedules.settings import ScheduledTraining
from agl_schedules.specs import Curriculum, CurriculumSpec

STATE = "curriculum"
"""Key of the curriculum in a checkpoint."""
Chosen = tuple[list[Any], list[int]]
"""Tasks, and the number of each in its rollouts' ids."""


def open_curriculum(
    plugins: Plugins, training: ScheduledTraining, tasks: Sequence[Any]
) -> CurriculumSteps | None:
    """Return what chooses the tasks of the steps; ``None`` if the run has no curriculum."""
    if training.curriculum is None or not training.steps:
        return None
    given = training.curriculum
    ((name, options),) = ({given: None} if isinstance(given, str) else given).items()
    spec: CurriculumSpec = pick(plugins.table("agl_curricula"), "curriculum", name)
    place, options = f"training.curriculum.{name}", options or {}
    if options and spec.options is None:
        raise ConfigError(f"{place}: it has no options, and {', '.join(options)} is given")
    if not tasks:
        raise ConfigError("training.curriculum: there are no tasks to choose from")
    read = () if spec.options is None else (checked_options(spec.options(), options, place),)
    made = spec.factory(len(tasks), training.seed, *read)
    return CurriculumSteps(name, made, tasks, training.batch_size)


class CurriculumSteps:
    """Asks a curriculum for ``size`` tasks of each step, and tells it what they earned."""

    def __init__(self, name: str, curriculum: Curriculum, tasks: Sequence[Any], size: int) -> None:
        self.name, self.curriculum, self._tasks, self._size = name, curriculum, tasks, size
        self._drawn: dict[int, list[int]] = {}
        """Step → positions of its tasks, of steps that are not credited yet. With ``order: finished``: those
        of each batch of tasks of which a group is in flight.
        """

    def step(self, step: int) -> Chosen:
        """Return the tasks of a step."""
        if step not in self._drawn:
            self._drawn[step] = self._choose(step, ())
        return self._numbered(self._drawn[step])

    def extra(self, step: int, own: TaskGroups) -> Iterator[Chosen]:
        """Yield extra batches of a step (dynamic sampling), without end. ``own``: the groups that it has."""
        taken = [self._position(group[0].group_id) for group in own]
        while True:
            more = self._choose(step, taken)
            taken += more
            yield self._numbered(more)

    def credited(
        self, step: int, groups: TaskGroups, outcomes: Mapping[str, float | None], needed: int
    ) -> dict[str, float]:
        """Tell what a step's groups earned and return metrics. ``outcomes``: rollout id → reward as it was
        credited; ``needed``: the first step, or batch of tasks, that a run still needs.
        """
        earned = [
            (self._position(group[0].group_id), [outcomes.get(one.rollout_id) for one in group])
            for group in groups
        ]
        self._drawn = {at: positions for at, positions in self._drawn.items() if at >= needed}
        self.curriculum.learn(step, earned)
        return self.curriculum.metrics()

    def state(self) -> dict[str, Any]:
        """Return the curriculum's part of a checkpoint."""
        drawn = {str(step): positions for step, positions in self._drawn.items()}
        return {STATE: {"name": self.name, "drawn": drawn, "state": self.curriculum.state()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state`; a checkpoint without a curriculum leaves it as it is."""
        if (kept := state.get(STATE)) is None:
            return
        if kept["name"] != self.name:
            raise ConfigError(
                f"training.curriculum: the checkpoint has the state of {kept['name']!r}, not of "
                f"{self.name!r}; resume with {kept['name']!r}"
            )
        self.curriculum.restore(kept["state"])
        self._drawn = {int(step): list(positions) for step, positions in kept["drawn"].items()}

    def _choose(self, step: int, taken: Sequence[int]) -> list[int]:
        chosen = self.curriculum.choose(step, self._size, taken)
        bad = [one for one in chosen if not 0 <= one < len(self._tasks)]
        if bad or len(chosen) != self._size:
            raise ConfigError(
                f"curriculum {self.name!r} chose {chosen} for step {step + 1}: it must return {self._size} "
                f"positions from 0 to {len(self._tasks) - 1}"
            )
        return chosen

    def _numbered(self, positions: Sequence[int]) -> Chosen:
        """Number a task by its position; one that is there again gets the next number of its own."""
        seen: Counter[int] = Counter()
        numbers = []
        for position in positions:
            numbers.append(position + seen[position] * len(self._tasks))
            seen[position] += 1
        return [self._tasks[position] for position in positions], numbers

    def _position(self, group_id: str | None) -> int:
        assert group_id is not None
        return int(group_id.rpartition("/")[2]) % len(self._tasks)
