"""The configuration of a run, typed and checked once.

A YAML file with ``--set`` (:mod:`.run_file`) and the keywords of ``Trainer`` (:func:`from_fields`) are
sections of fields, which :func:`build` checks and makes a :class:`RunConfig` of; nobody else makes one. So
the error of a bad value names its place, what is wrong and what is allowed. Plugins add fields (hook
``agl_sections``). Invariant: a field is declared once and has one name. Its key in the file, its keyword of
``Trainer`` and the keyword of the part that uses it are the same word, and no word stands in two sections.

From Python, a field that names an object (a folder, ``module:object``, a recipe) also takes the object.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias, get_args

from pydantic import (
    BaseModel,
    Discriminator,
    Field,
    PrivateAttr,
    Tag,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic.json_schema import SkipJsonSchema

from agentlightning.gateway.settings import GatewaySection
from agentlightning.plugins.manager import Plugins, load as load_plugins
from agentlightning.plugins.suite import instead
from agentlightning.runner.settings import RunnerSection
from agentlightning.train.policies import POLICY, Policies, read_policies
from agentlightning.types import LLM
from agentlightning.types.base import ConfigError
from agentlightning.types.sections import (
    FILE,
    Choices,
    EnvironmentSection,
    EvaluationSection,
    Objects,
    RunnerField,
    Section,
    Text,
    TrainingSection,
)
from agentlightning.types.work import PolicyFolder


class AgentSection(RunnerSection):
    """The agent, how it runs, and which of its calls are trained."""

    target: str | None = None
    """``module:object``: a function, a class or an object."""
    name: str = "agent"
    """The agent's name; a run's id holds it."""


class PolicySection(Section):
    """A named policy: a folder (``path``), or an ``endpoint`` that is never trained (``endpoints``: several
    addresses of the same model).
    """

    path: str | None = Field(default=None, min_length=1)
    """Folder in Hugging Face layout."""
    train: bool = True
    """Whether the folder is trained; false: served as it is."""
    options: dict[str, Any] = {}
    """The driver's settings for this policy, which win over those of the run."""
    endpoint: str | None = None
    """Base URL of an OpenAI-compatible API."""
    endpoints: list[str] | None = Field(default=None, min_length=1)
    """Base URLs of several servers of the same model."""
    model: str | None = None
    """Name under which the endpoint knows the model."""
    api_key_env: str | None = None
    """Environment variable that holds the endpoint's key."""

    @model_validator(mode="after")
    def _one_kind(self) -> PolicySection:
        if self.endpoint is not None and self.endpoints is not None:
            raise ValueError("give either endpoint (one address), or endpoints (several)")
        if (self.path is None) == (not self.addresses):
            raise ValueError("give either path (a folder), or endpoint and model")
        if not self.addresses and (self.model or self.api_key_env):
            raise ValueError("model and api_key_env belong to an endpoint, not to a path")
        if self.addresses and not self.model:
            raise ValueError("give the model that the endpoint is to be asked for")
        if self.addresses and self.model_fields_set & {"train", "options"}:
            raise ValueError("an endpoint is never trained: train and options belong to a path")
        return self

    @property
    def addresses(self) -> list[str]:
        """Return the base URLs of an endpoint; an empty list for a folder."""
        return self.endpoints or ([] if self.endpoint is None else [self.endpoint])

    def source(self) -> PolicyFolder | LLM:
        """Return the value for ``Trainer(policy=…)``: the folder as written, the endpoint without its key."""
        if not self.addresses:
            return PolicyFolder(self.path or "", self.train, self.options)
        first, *others = self.addresses
        return LLM(endpoint=first, replicas=others, model=self.model or "")


_Object = SkipJsonSchema[Annotated[Any, Tag("<object>")]]
Source: TypeAlias = Annotated[
    Annotated[str, Tag("<folder>")] | Annotated[PolicySection, Tag("<section>")] | _Object,
    Discriminator(lambda value: _kind(value, "<section>")),
]
PolicyField: TypeAlias = Annotated[
    Annotated[str, Tag("<folder>")]
    | Annotated[dict[str, Source], Tag("<named>"), Field(min_length=1)]
    | _Object,
    Discriminator(lambda value: _kind(value, "<named>")),
]
"""In an error's place, parts in angle brackets are no keys."""


def _kind(value: Any, mapping: str) -> str:
    if isinstance(value, Mapping | PolicySection):
        return mapping
    return "<folder>" if isinstance(value, str) else "<object>"


class BackendSection(Section):
    """The driver that runs the recipe, and its policies."""

    driver: str = "local"
    """Name of the driver."""
    policy: PolicyField = None
    """Folder of the policy to start from, in Hugging Face layout, or the name of a pretrained one
    (``agl policy list``); or several policies by name."""
    options: dict[str, Any] = {}
    """The driver's own settings (learning rate, threads, device, …)."""


class RunConfig(Section):
    """A whole run."""

    agent: AgentSection = AgentSection()
    training: TrainingSection = Field(default_factory=TrainingSection)
    environment: EnvironmentSection = EnvironmentSection()
    evaluation: EvaluationSection = EvaluationSection()
    backend: BackendSection = BackendSection()
    gateway: GatewaySection = GatewaySection()
    runner: RunnerField = None
    """Where the agent runs, if not in this process: ``{kind: ray, …}`` (``docs/deploy.md``) or ``{kind:
    kubernetes, …}`` (``docs/kubernetes.md``), with the options of the kind."""
    output: str | Path = "runs"
    """Folder of the runs: ``<output>/<run id>`` has a run's store, metrics, checkpoints and summary."""
    run: str | None = None
    """Id of the run; none: made of time, name and seed."""
    resume: bool = False
    """Whether to go on with ``run``, or with the latest run of this name and seed."""
    store: Text = None
    """File, folder or URL of the store; none: a SQLite file in the run's folder."""
    pythonpath: list[str] = []
    """Folders put in front of ``sys.path``."""
    trackers: Choices = None
    """Names of the trackers, each with its options if it has any (``docs/dashboard.md``); none: those that
    are on by default, for which ``default`` stands in a list."""
    callbacks: Objects = []
    """Objects with hooks that this run calls, ``module:object`` each; a class is made into an object for each
    run (``docs/callbacks.md``)."""
    note: str | None = None
    """A sentence that is printed at the start, e.g. about the policy and the data."""
    _folder: Path = PrivateAttr(default=Path("."))
    """Folder of the file; paths are relative to it."""
    _served: Policies = PrivateAttr(default=Policies())
    _plugins: Plugins | None = PrivateAttr(default=None)
    """Those of the run, if it has its own."""

    @model_validator(mode="after")
    def _fields_agree(self) -> RunConfig:
        policy: Any = self.backend.policy
        if isinstance(policy, Mapping):
            policy = {name: p.source() if isinstance(p, PolicySection) else p for name, p in policy.items()}
        self._served = read_policies(policy, self.agent.policies)
        options = [self.backend.options, *(folder.options for folder in self._served.trained.values())]
        if (ahead := self.training.async_steps) and any(one.get("deterministic") for one in options):
            raise ValueError(
                f"async_steps = {ahead}: which version answers a call depends on timing, which deterministic "
                "mode excludes"
            )
        return self

    @property
    def served(self) -> Policies:
        """Return the policies that the run serves, and which agent talks to which."""
        return self._served

    def serving(self, policies: Policies, **fields: Any) -> RunConfig:
        """Return this configuration with other folders and keys of its policies, and other ``fields``, which
        are not checked again: the objects that names stand for.
        """
        given = {**policies.trained, **policies.frozen}
        policy = given if policies.named else given.get(POLICY)
        backend = self.backend.model_copy(update={"policy": policy})
        made = self.model_copy(update={"backend": backend, **fields})
        made._served = policies
        return made

    @property
    def routed_agent(self) -> AgentSection:
        """Return the section ``agent`` with an entry of ``policies`` for every agent that has a policy."""
        return self.agent.model_copy(update={"policies": self.served.routing})

    def path(self, value: str | Path) -> Path:
        """Return the absolute path of ``value``, which is relative to the file's folder."""
        return (self._folder / Path(value).expanduser()).resolve()

    def store_location(self) -> Any:
        """Return the argument of ``open_store``: a path is made absolute, a URL and ``:memory:`` stay."""
        if not isinstance(self.store, str) or "://" in self.store or self.store == ":memory:":
            return self.store
        return str(self.path(self.store))


class Fields(NamedTuple):
    """The fields of a run, those of plugins included."""

    model: type[RunConfig]
    sections: dict[str, type[Section]]
    """Name → section at the top."""
    section_of: dict[str, str | None]
    """Field → its section; ``None`` for fields outside the sections."""
    nested: dict[str, type[Section]]
    """Key in an error's place → the section at this key, at any depth."""
    of_agent: frozenset[str]
    """Fields that name an agent beside ``target``."""


def fields(plugins: Plugins | None = None) -> Fields:
    """Return the fields of a run with these plugins; default: those of this process."""
    return _fields(plugins or load_plugins())


@lru_cache(maxsize=4)
def _fields(plugins: Plugins) -> Fields:
    at: dict[str, list[type[BaseModel]]] = {}
    of_agent: set[str] = set()
    for spec in plugins.sections.values():
        if spec.fields is None:
            continue
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


def build(
    data: Mapping[str, Any], place: str, *, context: str | None = None, plugins: Plugins | None = None
) -> RunConfig:
    """Parse ``data`` (sections of fields) into a :class:`RunConfig`. Errors begin with ``place``.
    ``plugins``: those whose fields it may have; default: those of this process.
    """
    known = fields(plugins)
    try:
        made = known.model.model_validate(data, context=context)
    except ValidationError as error:
        short = context != FILE
        raise ConfigError("\n".join(f"{place}: {_line(e, short, known)}" for e in error.errors())) from None
    made._plugins = plugins
    return made


def from_fields(
    given: Mapping[str, Any],
    base: RunConfig | None = None,
    place: str = "Trainer",
    plugins: Plugins | None = None,
) -> RunConfig:
    """Return ``base`` (default: the defaults) with these fields; a whole section may be given as a mapping.

    ``None`` for a field that cannot be ``None`` means its default. Errors begin with ``place``. ``plugins``:
    those of the run; default: those of ``base``, else those of this process. Raises ``TypeError`` for an
    unknown name.
    """
    data: dict[str, Any] = {} if base is None else dict(base)
    plugins = base._plugins if plugins is None and base is not None else plugins
    model, sections, section_of, *_ = fields(plugins)
    for name, value in given.items():
        if name in sections and isinstance(value, Mapping | None):
            data[name] = {**dict(data.get(name, {})), **_given(sections[name], value or {})}
        elif name not in section_of:
            hint = instead(name, [*section_of, *sections], "argument", "field")
            raise TypeError(f"Trainer has no field {name!r}{hint}")
        elif (section := section_of[name]) is None:
            data |= _given(model, {name: value})
        else:
            data[section] = {**dict(data.get(section, {})), **_given(sections[section], {name: value})}
    made = build(data, place, plugins=plugins)
    made._folder = base._folder if base else made._folder
    return made


def _given(section: type[Section], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values`` without ``None`` for fields that cannot be ``None``: they keep their defaults."""
    return {k: v for k, v in values.items() if v is not None or _nullable(section.model_fields.get(k))}


def _nullable(field: FieldInfo | None) -> bool:
    return field is None or field.annotation is Any or type(None) in get_args(field.annotation)


def _line(error: Mapping[str, Any], short: bool, known: Fields) -> str:
    """Return an error as text: the key, what is wrong, and the key that was meant."""
    keys = [str(part) for part in error["loc"] if not str(part).startswith("<")]
    cause = error.get("ctx", {}).get("error")
    text: str = error["msg"]
    if isinstance(cause, Exception):
        text = str(cause)
    elif error["type"] == "extra_forbidden":
        text = f"there is no such key{_meant(error, keys, known)}"
    elif isinstance(error["input"], str | int | float):
        text += f", not {error['input']!r}"
    if not keys:  # an error about several fields
        return text if short else _placed(text)
    shown = keys[1:] if short and len(keys) > 1 and keys[0] in known.sections else keys
    place = ".".join(shown)
    if text.startswith((f"{keys[-1]}.", f"{keys[-1]}:", f"{keys[-1]}[")):  # the text names its key already
        return ".".join([*shown[:-1], text])
    return f"{place}: {text}"


def _placed(text: str) -> str:
    """Return an error about several policies with the key of the file in front."""
    if text.startswith("policies"):
        return f"agent.{text}"
    return text.replace("policy ", "backend.policy: ", 1)


def _meant(error: Mapping[str, Any], keys: Sequence[str], known: Fields) -> str:
    """For an unknown key: what it is called here, or the most similar key of its section."""
    at = known.nested
    section = next((at[part] for part in reversed(error["loc"][:-1]) if part in at), known.model)
    return instead(keys[-1], section.model_fields, "field")
