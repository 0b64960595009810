"""Sections of a run's description that several rooms read, and the types of fields that all sections share.

A type says what a field accepts, and how the JSON Schema of a run's YAML file describes the field.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from agentlightning.types.failure import FAILURE_KINDS, FailureAction, read_failure_table
from agentlightning.types.select import selector

FILE = "file"
"""Validation context of a YAML file, whose fields hold names and no objects."""


def _text(value: Any, info: ValidationInfo) -> Any:
    if info.context == FILE and not isinstance(value, str | None):
        raise ValueError(f"give a text, not {value!r}")
    return value


def _select(value: Any) -> Any:
    selector(value)
    return value


def _names(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _choices(value: Any) -> Any:
    return [value] if isinstance(value, str | Mapping) else value


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


def _failure(value: Any) -> Any:
    return read_failure_table(value) if isinstance(value, Mapping | None) else value


_TEXT = {"type": "string"}
_NAMES = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}, {"type": "null"}]}
Text: TypeAlias = Annotated[Any, AfterValidator(_text), WithJsonSchema(_TEXT)]
"""A name, or the object itself."""
Names: TypeAlias = Annotated[list[str], BeforeValidator(_names), WithJsonSchema(_NAMES)]
"""A list of names; a single name may stand without brackets."""
_WITH_OPTIONS = {"type": "object", "additionalProperties": {"type": ["object", "null"]}}
_CHOICE = {"anyOf": [_TEXT, _WITH_OPTIONS]}
_CHOICES = {"anyOf": [*_CHOICE["anyOf"], {"type": "array", "items": _CHOICE}, {"type": "null"}]}
Choices: TypeAlias = Annotated[
    list[str | dict[str, dict[str, Any] | None]] | None,
    BeforeValidator(_choices),
    WithJsonSchema(_CHOICES),
]
"""Names, each with options if it has any: ``[files, {tensorboard: {folder: …}}]``; ``None``: the default."""
SelectField: TypeAlias = Annotated[Any, AfterValidator(_select), WithJsonSchema(_NAMES)]
FailureField: TypeAlias = Annotated[
    dict[str, FailureAction],
    BeforeValidator(_failure),
    WithJsonSchema({
        "type": "object",
        "additionalProperties": False,
        "properties": {
            kind: {"description": about, "type": ["number", "string", "null", "object"]}
            for kind, about in FAILURE_KINDS.items()
        },
    }),
]  # fmt: skip


def _runner(value: Any) -> Any:
    value = {"kind": value} if isinstance(value, str) else value
    if isinstance(value, Mapping) and not isinstance(value.get("kind"), str):
        raise ValueError("give kind, the name of a runner (`agl plugins` lists them), and its options")
    return value


RunnerField: TypeAlias = Annotated[
    dict[str, Any] | None,
    BeforeValidator(_runner),
    WithJsonSchema({
        "anyOf": [
            _TEXT,
            {"type": "object", "properties": {"kind": _TEXT}, "required": ["kind"]},
            {"type": "null"},
        ]
    }),
]  # fmt: skip
"""``{kind: …, option: …}``, or the kind alone; ``None``: the agent runs in the trainer's process."""
Objects: TypeAlias = Annotated[list[Text], BeforeValidator(_listed), WithJsonSchema(_NAMES)]
"""``module:object`` names, or the objects themselves; a single one may stand without brackets."""


class Section(BaseModel):
    """A part of the description. Unknown keys are errors; values do not change."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, arbitrary_types_allowed=True, use_attribute_docstrings=True
    )


class TrainingSection(Section):
    """The algorithm, its recipe and its schedule."""

    algorithm: Text = "grpo"
    """A recipe (``grpo``, ``rloo``, …) or an algorithm."""
    steps: int = Field(default=40, ge=0)
    """Updates of the policy."""
    batch_size: int = Field(default=8, ge=1)
    """Tasks per step; each is rolled out ``group_size`` times."""
    seed: int = Field(default=1, ge=0, lt=2**63)
    """Seed of the order of tasks and of every sampled token."""
    recipe: dict[str, Any] = {}
    """Overrides of the recipe's fields."""
    settings: dict[str, Any] = {}
    """Settings of an algorithm that has a loop of its own, e.g. ``apo`` (``docs/prompts.md``)."""
    evaluate_every: int = Field(default=0, ge=0)
    """Steps between two evaluations; 0: only before and after."""
    evaluate_sampled: bool = True
    """Whether the evaluations before and after are made a second time, with sampled answers."""
    failure: FailureField = Field(default_factory=lambda: read_failure_table(None))
    """The failure table, e.g. ``{timeout: 0.0, agent-raised: retry}`` (``docs/failures.md``)."""
    async_steps: int = Field(default=0, ge=0)
    """Number of later steps whose rollouts run while a step is trained (``docs/async.md``)."""
    no_signal_steps: int = Field(default=3, ge=1)
    """Steps in a row without anything to learn after which the run ends; an outage of engines or runners may
    last ten times as long (``docs/failures.md``)."""


class DataSection(Section):
    """A dataset: ``file`` (.jsonl, .json, .csv, .parquet) or ``target`` with ``args``."""

    file: str | None = None
    """Path of a file with a task in each line or row."""
    target: str | None = None
    """``module:function`` that returns the tasks."""
    args: dict[str, Any] = {}
    """Keyword arguments of ``target``."""
    limit: int | None = Field(default=None, ge=1)
    """At most this many tasks, the first ones."""


_SET_NAME = re.compile(r"[A-Za-z][\w.-]*")


def _set(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, Mapping):
        try:
            return DataSection.model_validate(value)
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise ValueError(wrong) from None
    if info.context == FILE and not isinstance(value, str):
        raise ValueError(f"give a task set, a file, or {{file: …}} or {{target: …}}, not {value!r}")
    return value


EvaluationSet: TypeAlias = Annotated[
    Any,
    BeforeValidator(_set),
    WithJsonSchema({"anyOf": [_TEXT, {"type": "object", "additionalProperties": True}]}),
]
"""A task set, whose held-out tasks are taken; a file; a data section; from Python also a dataset."""


class EvaluationSection(Section):
    """Held-out tasks beside ``environment.val``, and how their figures are computed."""

    sets: dict[str, EvaluationSet] = {}
    """Evaluation sets by name, each with its own figures: ``{easy: easy.jsonl, hard: math}``
    (``docs/evaluation.md``)."""
    cluster: str | None = None
    """Field of the held-out tasks: those with the same value (a database, a template, a game) resemble each
    other, and intervals are over these clusters (``docs/evaluation.md``); none: tasks are independent."""

    @model_validator(mode="after")
    def _names(self) -> EvaluationSection:
        for name in self.sets:
            if _SET_NAME.fullmatch(name) is None:
                raise ValueError(
                    f"sets: {name!r} is no name: a letter, then letters, digits, '_', '.' and '-'"
                )
        return self


class EnvironmentSection(Section):
    """The tasks."""

    train: DataSection | None = None
    """Tasks to train on."""
    val: DataSection | None = None
    """Held-out tasks, for evaluations."""
    private: Names = []
    """Fields of the tasks that the agent must not have, such as the answer: a command that names one is
    refused, and ``agl doctor`` warns where one reaches an agent."""
