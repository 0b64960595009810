"""The fields of the section ``training`` that say which groups a step trains, and when it is enough."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, WithJsonSchema, model_validator

from agentlightning.types import Recipe
from agentlightning.types.base import ConfigError
from agentlightning.types.sections import Section, TrainingSection

Choice: TypeAlias = Annotated[
    str | dict[str, dict[str, Any] | None],
    Field(min_length=1),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "object",
                    "additionalProperties": {"type": ["object", "null"]},
                    "minProperties": 1,
                    "maxProperties": 1,
                },
            ]
        }
    ),
]
"""One name, with options if it has any: ``{solve_rate: {low: 0.2}}``."""


class Quorum(Section):
    """When a group of ``n`` rollouts is done before all of them have ended."""

    k: int | None = Field(default=None, ge=1, strict=True)
    """This many of ``n`` suffice; none: all ``n`` are needed."""
    deadline: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Seconds from the start of the wait after which ``k`` suffice; none: at once. Rollouts that started
    earlier (``async_steps``) have more time: the deadline bounds a step's wait, not a rollout's time."""
    hedge: int = Field(default=0, ge=0, strict=True)
    """Rollouts queued beyond ``n`` in each group; the first ``n`` that succeed count."""

    @model_validator(mode="after")
    def _fields_agree(self) -> Quorum:
        if self.k is None and self.deadline is not None:
            raise ValueError("quorum.deadline without quorum.k: give k, how many suffice after the deadline")
        if self.k is None and not self.hedge:
            raise ValueError("quorum: give k (how many of a group suffice), hedge (how many extra), or both")
        return self


class EarlyStopping(Section):
    """When training ends before its last step: the reward no longer rises."""

    patience: int = Field(ge=1, strict=True)
    """Evaluations in a row without a better reward after which training ends."""
    min_delta: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """How much better a reward must be to count as better."""
    on: str | None = None
    """The evaluation set whose reward counts; none: the held-out tasks."""


class ScheduledTraining(TrainingSection):
    """The section ``training`` with the fields of this plugin. Those of others may join it too."""

    keep_best: bool | str = False
    """Whether the policy with the best held-out reward is kept in ``<run>/best`` (``docs/callbacks.md``);
    the name of an evaluation set: by the reward on that set."""
    early_stopping: EarlyStopping | None = None
    """When training ends before its last step: ``{patience: 3, min_delta: 0.01}``; none: never."""
    quorum: Quorum | None = None
    """When a step continues without its slowest rollouts: ``{k: 6, deadline: 30, hedge: 0}``; none: never."""
    order: Literal["dataset", "finished"] = "dataset"
    """Which groups a step trains: ``dataset``: those of its own batch of tasks; ``finished``: the first
    ``batch_size`` that have ended, of ``batch_size * (1 + async_steps)`` in flight (``docs/async.md``)."""
    dynamic_sampling: int = Field(default=0, ge=0)
    """Extra batches that a step may roll out until ``batch_size`` groups have a spread."""
    curriculum: Choice | None = None
    """What chooses the tasks of each step, with its options: ``{solve_rate: {low: 0.2, high: 0.8}}``
    (``docs/evaluation.md``); none: every task in turn, in an order of its own each epoch."""

    @model_validator(mode="after")
    def _one_curriculum(self) -> ScheduledTraining:
        if isinstance(self.curriculum, dict) and len(self.curriculum) != 1:
            raise ValueError(f"curriculum: give one name, not {', '.join(self.curriculum) or 'none'}")
        return self

    @property
    def ends_early(self) -> list[str]:
        """Return the fields that are set by which a run ends early, or keeps a policy."""
        return [name for name in ("early_stopping", "keep_best") if getattr(self, name)]

    @property
    def chooses_by(self) -> list[str]:
        """Return the fields that are set and decide which groups a step trains."""
        order = ["order"] if self.order == "finished" else []
        return [name for name in ("quorum", "curriculum", "dynamic_sampling") if getattr(self, name)] + order


class ScheduledRun(Section):
    """What a whole run's description must agree on."""

    @model_validator(mode="after")
    def _schedule_agrees(self) -> ScheduledRun:
        run: Any = self
        training, policies = run.training, run.served.trained.values()
        options = [run.backend.options, *(folder.options for folder in policies)]
        if training.quorum and any(one.get("deterministic") for one in options):
            raise ValueError(
                "quorum: which rollouts end first depends on timing, which deterministic mode excludes"
            )
        early = training.early_stopping
        for key, name in (("keep_best", training.keep_best), ("early_stopping.on", early and early.on)):
            if isinstance(name, str) and name not in run.evaluation.sets:
                known = ", ".join(run.evaluation.sets) or "there are none"
                raise ValueError(f"training.{key}: no evaluation set is called {name!r}; known: {known}")
        return self


def group_size_needed(quorum: Quorum, queued: int) -> int:
    """Return ``n``, the rollouts that a group of ``queued`` needs. Raise :class:`ConfigError` if the group is
    too small for ``quorum``.
    """
    n = queued - quorum.hedge
    if n < 1:
        raise ConfigError(
            f"training.quorum.hedge = {quorum.hedge}: all of a group of {queued} would be extra"
        )
    if quorum.k is not None and quorum.k > n:
        raise ConfigError(f"training.quorum.k = {quorum.k}: more than the {n} rollouts of a group")
    return n


def check_schedule(recipe: Recipe, training: ScheduledTraining) -> None:
    """Raise :class:`.ConfigError` for fields that do not work together, or not with ``recipe``."""
    quorum, dynamic_sampling = training.quorum, training.dynamic_sampling
    if training.early_stopping is not None and not training.evaluate_every:
        raise ConfigError(
            "training.early_stopping without training.evaluate_every: nothing is evaluated while it trains; "
            "set training.evaluate_every, e.g. to 5"
        )
    if quorum is not None:
        group_size_needed(quorum, recipe.group_size + quorum.hedge)
    if training.order == "finished" and not training.async_steps:
        raise ConfigError(
            "training.order = 'finished' without training.async_steps: then as many groups are in flight as "
            "a step trains, and it waits for all of them; set training.async_steps to 1 or more"
        )
    if training.order == "finished" and quorum is not None:
        raise ConfigError(
            "training.order = 'finished' with training.quorum: a step already goes on without slow groups; "
            "drop quorum"
        )
    if dynamic_sampling and not recipe.filter_zero_std_groups:
        raise ConfigError(
            f"training.dynamic_sampling = {dynamic_sampling} without recipe.filter_zero_std_groups: groups "
            "without a spread are then part of the step, and nothing replaces them; set "
            "recipe.filter_zero_std_groups to true"
        )
    if dynamic_sampling and recipe.baseline == "none" and recipe.scale == "none":
        raise ConfigError(
            f"training.dynamic_sampling = {dynamic_sampling} with recipe.baseline = 'none': nothing is "
            "compared, so no group is without a spread and none is replaced; drop dynamic_sampling, or use "
            "a baseline"
        )
