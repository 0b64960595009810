"""Fields of a run by name: keywords of ``Trainer``, and error messages.

Invariant: :func:`build` makes every :class:`RunConfig`, so that the error of a bad value names its place,
what is wrong and what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, get_args

from pydantic import BaseModel, Field, Tag, ValidationError, create_model
from pydantic.fields import FieldInfo

from agentlightning.plugins.manager import Plugins, load as load_plugins
from agentlightning.plugins.suite import not_installed
from agentlightning.train.description.run_config import RunConfig
from agentlightning.train.policies import PolicySource
from agentlightning.types import Recipe
from agentlightning.types.base import ConfigError
from agentlightning.types.near import elsewhere, nearest
from agentlightning.types.sections import FILE, Section


class RunFields(TypedDict, total=False):
    """Keywords of ``Trainer``, for type checkers, with those of the suite's plugins; a test compares them
    with :class:`RunConfig`.
    """

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


FILE_ONLY = ("target", "train", "val", "pythonpath")
"""Fields that are no keywords of ``Trainer``: the agent and the tasks are arguments of ``fit``."""


class Fields(NamedTuple):
    """The fields of a run, those of plugins included."""

    model: type[RunConfig]
    sections: dict[str, type[Section]]
    """Name → section at the top."""
    section_of: dict[str, str | None]
    """Field → its section; ``None`` for fields outside the sections."""
    nested: dict[str, type[Section]]
    """Key in an error's place → the section at this key, below one of ``sections``."""
    of_agent: frozenset[str]
    """Fields that name an agent beside ``target``."""


def fields() -> Fields:
    """Return the fields of a run with the plugins of this process."""
    return _fields(load_plugins())


@lru_cache(maxsize=1)
def _fields(plugins: Plugins) -> Fields:
    at: dict[str, list[type[BaseModel]]] = {}
    of_agent: set[str] = set()
    for spec in plugins.sections.values():
        added = spec.fields()
        at.setdefault(spec.place, []).append(added)
        of_agent |= {*added.model_fields} if spec.agent else set()
    model = _joined(RunConfig, at.pop("", []))
    for place, more in at.items():
        former = model.model_fields[place]
        section = _joined(former.annotation, more)
        default = Field(default_factory=section) if former.default_factory else section()
        field: dict[str, Any] = {place: (section, default)}
        model = create_model(model.__name__, __base__=model, **field)
        model.__doc__ = RunConfig.__doc__
    sections = {
        name: field.annotation
        for name, field in model.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
    }
    section_of: dict[str, str | None] = {name: None for name in model.model_fields if name not in sections}
    section_of |= {field: name for name, section in sections.items() for field in section.model_fields}
    nested = dict(pair for section in (model, *sections.values()) for pair in _nested(section))
    return Fields(model, sections, section_of, nested, frozenset(of_agent))


def _joined(section: Any, added: Sequence[type[BaseModel]]) -> Any:
    """Return ``section`` with the fields and validators of other models."""
    return type(section.__name__, (*added, section), {"__doc__": section.__doc__}) if added else section


def _nested(section: type[BaseModel]) -> Iterator[tuple[str, type[Section]]]:
    """Yield the sections below one, by their key, or by their tag where a key takes several forms."""
    for name, field in section.model_fields.items():
        yield from _in_annotation(name, Annotated[field.annotation, None, *field.metadata])


def _in_annotation(key: str, annotation: Any) -> Iterator[tuple[str, type[Section]]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield key, annotation
        yield from _nested(annotation)
        return
    tags = [one.tag for one in getattr(annotation, "__metadata__", ()) if isinstance(one, Tag)]
    for inner in get_args(annotation):
        yield from _in_annotation(tags[0] if tags else key, inner)


def build(data: Mapping[str, Any], place: str, *, context: str | None = None) -> RunConfig:
    """Parse ``data`` (sections of fields) into a :class:`RunConfig`. Errors begin with ``place``."""
    try:
        return fields().model.model_validate(data, context=context)
    except ValidationError as error:
        short = context != FILE
        raise ConfigError("\n".join(f"{place}: {_line(e, short)}" for e in error.errors())) from None


def from_fields(given: Mapping[str, Any], base: RunConfig | None = None, place: str = "Trainer") -> RunConfig:
    """Return ``base`` (default: the defaults) with these fields; a whole section may be given as a mapping.

    ``None`` for a field that cannot be ``None`` means its default. Errors begin with ``place``. Raises
    ``TypeError`` for an unknown name.
    """
    data: dict[str, Any] = {} if base is None else dict(base)
    model, sections, section_of, *_ = fields()
    for name, value in given.items():
        if name in sections:
            data[name] = {**dict(data.get(name, {})), **_given(sections[name], value or {})}
        elif name not in section_of:
            said = not_installed("argument", name)
            hint = f": {said}" if said else _near(name, [*section_of, *sections])
            raise TypeError(f"Trainer has no field {name!r}{hint}")
        elif (section := section_of[name]) is None:
            data |= _given(model, {name: value})
        else:
            data[section] = {**dict(data.get(section, {})), **_given(sections[section], {name: value})}
    made = build(data, place)
    made._folder = base._folder if base else made._folder
    return made


def agent_fields() -> frozenset[str]:
    """Return the fields that name an agent beside ``target``; only a run's file has them."""
    return fields().of_agent


def is_field(name: str) -> bool:
    """Whether ``name`` is a field of a run."""
    return name in fields().section_of


def field_of(config: RunConfig, name: str) -> Any:
    """Return the value of a field, or a section. Raise ``AttributeError`` for an unknown name."""
    _, sections, section_of, *_ = fields()
    if name in sections:
        return getattr(config, name)
    if name not in section_of:
        raise AttributeError(f"a run has no field {name!r}{_near(name, list(section_of))}")
    section = section_of[name]
    return getattr(getattr(config, section) if section else config, name)


def fields_of(config: RunConfig) -> dict[str, Any]:
    """Return field → value for all fields that ``Trainer`` takes."""
    known = fields()
    keywords = known.section_of.keys() - {*FILE_ONLY} - known.of_agent
    return {name: field_of(config, name) for name in known.section_of if name in keywords}


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
    shown = keys[1:] if short and len(keys) > 1 and keys[0] in fields().sections else keys
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
    known = fields()
    inner = {**known.sections, **known.nested}
    section = next((inner[part] for part in reversed(error["loc"][:-1]) if part in inner), known.model)
    if (said := not_installed("argument", keys[-1])) is not None and section in known.sections.values():
        return f": {said}"
    return _near(keys[-1], list(section.model_fields))


def _near(name: str, known: Sequence[str]) -> str:
    if (place := elsewhere(name, Recipe.__struct_fields__)) is not None:
        return f". It is {place}"
    near = nearest(name, known)
    return f". Did you mean {near!r}?" if near else f"; known here: {', '.join(known)}"
