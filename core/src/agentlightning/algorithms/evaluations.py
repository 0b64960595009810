"""What a run evaluates: the held-out tasks, sets of tasks by name, and an agent as it is (:class:`Baseline`).

Sets (``evaluation.sets``) are held-out tasks beside ``environment.val``, each with its own figures at every
evaluation of the run's schedule. The evaluation of the set ``hard`` before training is called
``before/hard``, one between ``step-10/hard``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentlightning.algorithms.context import Context
from agentlightning.algorithms.tasks import read_dataset
from agentlightning.plugins.manager import Plugins
from agentlightning.plugins.suite import not_installed
from agentlightning.types import Evaluation, Mode, UsageError


def read_sets(given: Mapping[str, Any], plugins: Plugins) -> dict[str, Sequence[Any]]:
    """Return the tasks of each set. A text names a task set, of which the held-out tasks are taken, or a
    file; anything else is a dataset.
    """
    found: dict[str, Sequence[Any]] = {}
    for name, source in given.items():
        spec = plugins.table("agl_task_sets").get(source) if isinstance(source, str) else None
        if spec is None and isinstance(source, str) and (said := not_installed("task set", source)):
            raise UsageError(f"evaluation set {name!r}: the task set {source}: {said}")
        found[name] = read_dataset(source if spec is None else spec.factory().val, f"evaluation set {name!r}")
        if not found[name]:
            raise UsageError(f"evaluation set {name!r}: there are no tasks")
    return found


class Baseline:
    """Runs every task once, training tasks in mode ``train`` and held-out tasks in mode ``val``, and returns
    the mean rewards. ``tasks``: run at most this many of each dataset (``None``: all).
    """

    needs_policy = False

    def __init__(self, *, tasks: int | None = None) -> None:
        if tasks is not None and tasks < 1:
            raise UsageError(f"Baseline(tasks={tasks}): at least one task must run")
        self.tasks = tasks

    async def run(self, context: Context) -> dict[str, Any]:
        """Evaluate both datasets; one of them may be empty."""
        if not context.train and not context.val:
            raise UsageError("Baseline: there are no tasks; give train_dataset or val_dataset")
        found: dict[str, Any] = {}
        given: dict[Mode, Sequence[Any]] = {"train": context.train, "val": context.val}
        for name, tasks in given.items():
            if chosen := tasks[: self.tasks]:
                evaluation = await context.evaluate(chosen, name=name, mode=name)
                context.say(_line(evaluation))
                found[name] = evaluation.model_dump()
        return {"baseline": found}


def _line(e: Evaluation) -> str:
    rewards = " ".join("–" if reward is None else f"{reward:g}" for reward in e.rewards[:20])
    more = f" … and {e.n - 20} more" if e.n > 20 else ""
    failures = f", {said}" if (said := e.failures_text()) else ""
    mean = f"mean reward {e.reward:.3f} of {e.n}{failures}, 95 % {e.interval_text()}"
    return f"baseline, {e.name}: {mean}: {rewards}{more}"


def scores(when: str, evaluation: Evaluation | None) -> dict[str, Any]:
    """Return the reward and interval, with its kind, of an evaluation, under the summary's names."""
    return {
        f"reward_{when}": evaluation.reward if evaluation else None,
        f"ci_{when}": list(evaluation.ci) if evaluation and evaluation.ci else None,
        f"interval_{when}": evaluation.interval if evaluation else None,
    }


def sets_summary(made: Mapping[str, Mapping[str, Evaluation]]) -> dict[str, Any]:
    """Return set → its rewards before and after, with intervals and counts, as a run's summary has them.
    ``made``: ``before`` and ``after`` → set → evaluation.
    """
    before, after = made.get("before", {}), made.get("after", {})
    return {
        name: {
            **scores("before", before.get(name)),
            **scores("after", after.get(name)),
            "tasks": (before.get(name) or after[name]).n,
            "failed": [evaluation.failed for of in (before, after) if (evaluation := of.get(name))],
            "left_out": [evaluation.left_out for of in (before, after) if (evaluation := of.get(name))],
        }
        for name in sorted({*before, *after})
    }


class NamedSets:
    """The named sets of a run, and their evaluations so far."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._made: dict[str, dict[str, Evaluation]] = {}
        """When → set → evaluation."""

    async def measure(self, when: str) -> dict[str, Evaluation]:
        """Evaluate greedily on each set; ``when``: ``before``, ``step-10``, ``after``."""
        self._made[when] = {
            name: await self._context.evaluate(tasks, name=f"{when}/{name}")
            for name, tasks in self._context.sets.items()
        }
        return self._made[when]

    def summary(self) -> dict[str, Any]:
        """Return the entry ``sets`` of the run's summary, if there are any."""
        return {"sets": sets_summary(self._made)} if self._context.sets else {}
