"""Types of a run's fields that are more than plain values: names of objects, selections, tables.

Each says what it accepts, and how the JSON Schema of a run's file describes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationInfo, WithJsonSchema

from agentlightning.algorithms.rollouts.quorum import Quorum, read_quorum
from agentlightning.types.failure import FAILURE_KINDS, FailureAction, read_failure_table
from agentlightning.types.select import selector

FILE = "file"
"""Validation context of a YAML file, in which a field holds names and no objects."""


def _text(value: Any, info: ValidationInfo) -> Any:
    if info.context == FILE and not isinstance(value, str | None):
        raise ValueError(f"give a text, not {value!r}")
    return value


def _select(value: Any) -> Any:
    selector(value)
    return value


def _names(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _failure(value: Any) -> Any:
    return read_failure_table(value) if isinstance(value, Mapping | None) else value


def _quorum(value: Any) -> Any:
    return read_quorum(value) if isinstance(value, Mapping | None) else value


_TEXT = {"type": "string"}
_NAMES = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}, {"type": "null"}]}
_SECONDS = {"type": "number", "exclusiveMinimum": 0}
Text: TypeAlias = Annotated[Any, AfterValidator(_text), WithJsonSchema(_TEXT)]
"""A name, or the object itself."""
Names: TypeAlias = Annotated[list[str], BeforeValidator(_names), WithJsonSchema(_NAMES)]
"""Names; a single one may be given bare."""
NamesOrDefault: TypeAlias = Annotated[list[str] | None, BeforeValidator(_names), WithJsonSchema(_NAMES)]
"""Names, or none for what is usual."""
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
QuorumField: TypeAlias = Annotated[
    Quorum | None,
    BeforeValidator(_quorum),
    WithJsonSchema({
        "type": ["object", "null"],
        "additionalProperties": False,
        "properties": {
            "k": {"type": "integer", "minimum": 1},
            "deadline": _SECONDS,
            "hedge": {"type": "integer", "minimum": 0},
        },
    }),
]  # fmt: skip


class Section(BaseModel):
    """A part of the description. Unknown keys are errors; values do not change."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, arbitrary_types_allowed=True, use_attribute_docstrings=True
    )
