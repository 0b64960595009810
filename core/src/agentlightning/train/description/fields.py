"""Fields of a run by name: keywords of ``Trainer``, and error messages.

Invariant: :func:`build` makes every :class:`RunConfig`, so that the error of a bad value names its place,
what is wrong and what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from agentlightning.budget.sections import BudgetSection, LimitsSection
from agentlightning.run_program.commands.settings import ContainerSection, ProgramSection, RewardSection
from agentlightning.train.description.run_config import PolicySection, RunConfig
from agentlightning.train.policies import PolicySource
from agentlightning.train.services.metrics_port import MetricsSection
from agentlightning.types import Recipe
from agentlightning.types.base import ConfigError
from agentlightning.types.near import elsewhere, nearest
from agentlightning.types.sections import FILE, DataSection, EarlyStopping, Quorum, Section


class RunFields(TypedDict, total=False):
    """Keywords of ``Trainer``, for type checkers; a test compares them with :class:`RunConfig`."""

    name: str
    adapters: str | Sequence[str]
    concurrency: int
    isolation: Literal["inline", "process"]
    timeout_seconds: float | None
    unresponsive_seconds: float | None
    max_attempts: int
    trusted: bool | None
    select: Any
    policies: Mapping[str, str] | None
    steps: int
    batch_size: int
    seed: int
    recipe: Mapping[str, Any]
    settings: Mapping[str, Any]
    evaluate_every: int
    evaluate_sampled: bool
    keep_best: bool | str
    early_stopping: Any
    failure: Mapping[str, Any] | None
    quorum: Any
    async_steps: int
    order: Literal["dataset", "finished"]
    dynamic_sampling: int
    no_signal_steps: int
    curriculum: str | Mapping[str, Any] | None
    headroom: Mapping[str, Callable[..., Any]] | None
    sets: Mapping[str, Any] | None
    private: Sequence[str]
    cluster: str | None
    headroom_tasks: int
    driver: str
    policy: PolicySource | Mapping[str, PolicySource] | None
    options: Mapping[str, Any] | None
    listen: str | None
    advertise: str | None
    max_requests: int
    attempt_bytes: int
    gateways: int
    over_length: Literal["error", "drop", "truncate"]
    reserve: int
    max_len: int | None
    reasoning: Literal["keep", "split", "split-opened"]
    budget: Any
    metrics: Any
    runner: str | Mapping[str, Any] | None
    output: str | Path
    run: str | None
    resume: bool
    store: Any
    trackers: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] | None
    log: str | Path | None
    callbacks: Any
    note: str | None


WORKERS = ("n_runners", "n_workers")
"""What Agent Lightning 0.x calls ``concurrency``."""
FILE_ONLY = ("target", "command", "reward", "program", "train", "val", "pythonpath")
"""Fields that are no keywords of ``Trainer``: the agent and the tasks are arguments of ``fit``."""


SECTIONS: dict[str, type[Section]] = {
    name: field.annotation
    for name, field in RunConfig.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
}
NESTED: dict[str, type[Section]] = {
    "train": DataSection,
    "val": DataSection,
    "early_stopping": EarlyStopping,
    "quorum": Quorum,
    "<section>": PolicySection,
    "<reward>": RewardSection,
    "program": ProgramSection,
    "budget": BudgetSection,
    "metrics": MetricsSection,
    "per_rollout": LimitsSection,
    "container": ContainerSection,
}
"""Key in an error's place → the section at this key, below one of :data:`SECTIONS`."""
SECTION_OF: dict[str, str | None] = {
    **{name: None for name in RunConfig.model_fields if name not in SECTIONS},
    **{field: name for name, section in SECTIONS.items() for field in section.model_fields},
}
"""Field → its section; ``None`` for fields outside the sections."""


def build(data: Mapping[str, Any], place: str, *, context: str | None = None) -> RunConfig:
    """Parse ``data`` (sections of fields) into a :class:`RunConfig`. Errors begin with ``place``."""
    try:
        return RunConfig.model_validate(data, context=context)
    except ValidationError as error:
        short = context != FILE
        raise ConfigError("\n".join(f"{place}: {_line(e, short)}" for e in error.errors())) from None


def from_fields(given: Mapping[str, Any], base: RunConfig | None = None, place: str = "Trainer") -> RunConfig:
    """Return ``base`` (default: the defaults) with these fields; a whole section may be given as a mapping.

    ``None`` for a field that cannot be ``None`` means its default. Errors begin with ``place``. Raises
    ``TypeError`` for an unknown name.
    """
    data: dict[str, Any] = {} if base is None else dict(base)
    for keyword, value in given.items():
        name = "concurrency" if keyword in WORKERS else keyword
        if name in SECTIONS:
            data[name] = {**dict(data.get(name, {})), **_given(SECTIONS[name], value or {})}
        elif name not in SECTION_OF:
            raise TypeError(f"Trainer has no field {name!r}{_near(name, [*SECTION_OF, *SECTIONS])}")
        elif (section := SECTION_OF[name]) is None:
            data |= _given(RunConfig, {name: value})
        else:
            data[section] = {**dict(data.get(section, {})), **_given(SECTIONS[section], {name: value})}
    made = build(data, place)
    made._folder = base._folder if base else made._folder
    return made


def is_field(name: str) -> bool:
    """Whether ``name`` is a field, or a name of one in Agent Lightning 0.x."""
    return name in SECTION_OF or name in WORKERS


def field_of(config: RunConfig, name: str) -> Any:
    """Return the value of a field, or a section. Raise ``AttributeError`` for an unknown name."""
    name = "concurrency" if name in WORKERS else name
    if name in SECTIONS:
        return getattr(config, name)
    if name not in SECTION_OF:
        raise AttributeError(f"a run has no field {name!r}{_near(name, list(SECTION_OF))}")
    section = SECTION_OF[name]
    return getattr(getattr(config, section) if section else config, name)


def fields_of(config: RunConfig) -> dict[str, Any]:
    """Return field → value for all fields that ``Trainer`` takes."""
    return {name: field_of(config, name) for name in SECTION_OF if name not in FILE_ONLY}


def _given(section: type[Section], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values`` without ``None`` for fields that cannot be ``None``: they keep their defaults."""
    return {k: v for k, v in values.items() if v is not None or _nullable(section.model_fields.get(k))}


def _nullable(field: FieldInfo | None) -> bool:
    return field is None or field.annotation is Any or type(None) in get_args(field.annotation)


def _line(error: Mapping[str, Any], short: bool) -> str:
    """Return an error as text: the key, what is wrong, and the key that was meant."""
    keys = [str(part) for part in error["loc"] if not str(part).startswith("<")]
    cause = error.get("ctx", {}).get("error")
    text: str = error["msg"]
    if isinstance(cause, Exception):
        text = str(cause)
    elif error["type"] != "extra_forbidden" and isinstance(error["input"], str | int | float):
        text += f", not {error['input']!r}"
    if not keys:  # an error about several fields
        return text if short else _placed(text)
    shown = keys[1:] if short and len(keys) > 1 and keys[0] in SECTIONS else keys
    place = ".".join(shown)
    if text.startswith((f"{keys[-1]}.", f"{keys[-1]}:", f"{keys[-1]}[")):  # the text names its key already
        return ".".join([*shown[:-1], text])
    return f"{place}: {text}{_meant(error, keys)}"


def _placed(text: str) -> str:
    """Return an error about several policies with the key of the file in front."""
    if text.startswith("policies"):
        return f"agent.{text}"
    return text.replace("policy ", "backend.policy: ", 1)


def _meant(error: Mapping[str, Any], keys: Sequence[str]) -> str:
    """For an unknown key: the most similar key of its section."""
    if error["type"] != "extra_forbidden":
        return ""
    inner = {**SECTIONS, **NESTED}
    section = next((inner[part] for part in reversed(error["loc"][:-1]) if part in inner), RunConfig)
    return _near(keys[-1], list(section.model_fields))


def _near(name: str, known: Sequence[str]) -> str:
    if (place := elsewhere(name, Recipe.__struct_fields__)) is not None:
        return f". It is {place}"
    near = nearest(name, known)
    return f". Did you mean {near!r}?" if near else f"; known here: {', '.join(known)}"
