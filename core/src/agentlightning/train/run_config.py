"""The YAML file of a run, typed. An error names the file, the key and what is allowed.

Paths are relative to the file. ``target`` values are ``module:object``; ``pythonpath`` folders are put in
front of ``sys.path``, so that an example runs from a checkout.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from agentlightning.algorithms.rollouts.batching import DatasetError, check_tasks
from agentlightning.algorithms.rollouts.datasets import tasks_of
from agentlightning.train.serving import PolicyFolder, PolicySource, read_policies
from agentlightning.types import LLM, UsageError
from agentlightning.types.failure import MAX_ATTEMPTS
from agentlightning.types.policy import missing_policy_message
from agentlightning.types.select import selector
from agentlightning.types.work import UNRESPONSIVE_SECONDS


class ConfigError(UsageError, ValueError):
    """A configuration that cannot be used, with file and key."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid")


class AgentSection(_Section):
    """Which agent, and how it is run."""

    target: str
    """``module:object``: a function, a class or an object (see ``as_agent``)."""
    name: str = "agent"
    type: str | None = None
    """Framework adapter to activate by name; adapters of imported frameworks are active anyway."""
    concurrency: int = Field(default=16, ge=0)
    """Rollouts at a time; 0: none here, runners of their own (`agl runner`) lease them."""
    isolation: Literal["inline", "process"] = "inline"
    """Where the agent runs: in this process, or each attempt in a process that can be killed."""
    timeout_seconds: float | None = Field(default=60.0, gt=0)
    """Wall time of one attempt."""
    unresponsive_seconds: float | None = Field(default=UNRESPONSIVE_SECONDS, gt=0)
    """Silence of its runner after which an attempt is given to another."""
    max_attempts: int = Field(default=MAX_ATTEMPTS, ge=1)
    """Attempts of a rollout whose failures are all of kinds that `training.failure` tries again."""
    emitted_overrides_returned: bool = False
    """Whether a reward that the agent emits while it runs counts although it returns another one."""
    select: str | list[str] | None = None
    """Agents whose calls are trained: a name, names, or ``re:pattern``; none: all."""
    policies: dict[str, str] = {}
    """Who talks to which of `backend.policies`: agent, role, node or ``re:…`` → name; the first counts."""

    @field_validator("select")
    @classmethod
    def _compiles(cls, select: str | list[str] | None) -> str | list[str] | None:
        selector(select)
        return select


class TrainingSection(_Section):
    """What is learned and how."""

    algorithm: str = "grpo"
    """A recipe (``grpo``, ``rloo``, …) or an algorithm."""
    steps: int = Field(default=40, ge=0)
    batch_size: int = Field(default=8, ge=1)
    """Tasks per step; each is rolled out ``group_size`` times."""
    seed: int = Field(default=1, ge=0, lt=2**63)
    recipe: dict[str, Any] = {}
    """Overrides of the recipe's fields."""
    evaluate_every: int = Field(default=0, ge=0)
    failure: dict[str, Any] = {}
    """The failure table, e.g. ``{timeout: 0.0, agent-raised: retry}`` (``docs/failures.md``)."""
    quorum: dict[str, Any] | None = None
    """When a step goes on without its slowest rollouts: ``{k: 6, deadline: 30, hedge: 0}``; none: never."""
    async_steps: int = Field(default=0, ge=0)
    """How many later steps' rollouts are under way while a step is trained (``docs/async.md``)."""
    dynamic_sampling: int = Field(default=0, ge=0)
    """Further batches that a step may roll out until ``batch_size`` groups have a spread."""


class DataSection(_Section):
    """A dataset: ``file`` (.jsonl, .json, .csv, .parquet) or ``target`` with ``args``."""

    file: str | None = None
    target: str | None = None
    args: dict[str, Any] = {}
    limit: int | None = Field(default=None, ge=1)


class EnvironmentSection(_Section):
    """Where tasks come from."""

    train: DataSection | None = None
    val: DataSection | None = None
    headroom: dict[str, str] = {}
    """Scripted policies, e.g. ``oracle: calc_x.oracle:reply``."""
    headroom_tasks: int = Field(default=100, ge=1)


class PolicySection(_Section):
    """A policy by name: a folder (``path``), or an ``endpoint`` that is asked and never trained (several that
    serve the same model: ``endpoints``).
    """

    path: str | None = Field(default=None, min_length=1)
    train: bool = True
    """Whether a folder is trained, or served as it is."""
    options: dict[str, Any] = {}
    """The driver's settings for it, over those of the run."""
    endpoint: str | None = None
    endpoints: list[str] | None = Field(default=None, min_length=1)
    model: str | None = None
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
        """Where an endpoint is; empty for a folder."""
        return self.endpoints or ([] if self.endpoint is None else [self.endpoint])


class BackendSection(_Section):
    """Who runs the recipe, on which policy."""

    driver: str = "local"
    policy: str | None = None
    """Folder of the policy to start from, in Hugging Face layout; the only one there is."""
    policies: dict[str, PolicySection] = {}
    """Instead of `policy`: several, by name."""
    options: dict[str, Any] = {}
    """The driver's own settings (learning rate, threads, device, …)."""
    over_length: Literal["error", "drop", "truncate"] = "error"
    """Prompts that the policy cannot take (`docs/gateway.md`)."""
    reserve: int = Field(default=0, ge=0)
    """Tokens of the context that are kept free for the answer."""
    max_len: int | None = Field(default=None, ge=1)
    """Tokens of prompt and answer together; none: what the engine says."""
    reasoning: Literal["keep", "split", "split-opened"] = "keep"
    """Whether agents see ``<think>…</think>`` in the text, or apart from it."""

    @model_validator(mode="after")
    def _one_way(self) -> BackendSection:
        if (self.policy is None) == (not self.policies):
            raise ValueError("give either policy (a folder), or policies by name")
        return self


class GatewaySection(_Section):
    """Where the gateway listens; see :mod:`agentlightning.gateway.listen`."""

    listen: str | None = None
    """``host``, ``host:port`` or ``[host]:port``; none: a free port of 127.0.0.1."""
    advertise: str | None = None
    """URL that agents are told instead, e.g. ``http://10.0.0.5``; without a port, the one that was bound."""


class RunConfig(_Section):
    """A whole run."""

    agent: AgentSection
    training: TrainingSection = TrainingSection()
    environment: EnvironmentSection = EnvironmentSection()
    backend: BackendSection
    gateway: GatewaySection = GatewaySection()
    output: str = "runs"
    store: str | None = None
    """File, folder or URL of the store; none: a SQLite file in the run's folder."""
    pythonpath: list[str] = []
    trackers: list[str] | None = None
    note: str | None = None
    """A sentence for the person who runs it, printed at the start: what the policy is, what the data are."""
    _folder: Path = PrivateAttr(default=Path("."))
    """Where the file lies: paths are relative to it."""

    def path(self, value: str) -> Path:
        """``value`` relative to the file's folder."""
        return (self._folder / Path(value).expanduser()).resolve()

    def store_location(self) -> str | None:
        """What ``open_store`` is given: a path made absolute, a URL and ``:memory:`` as they are."""
        if self.store is None or "://" in self.store or self.store == ":memory:":
            return self.store
        return str(self.path(self.store))


class _Loader(yaml.SafeLoader):
    """YAML with the numbers of JSON: ``1e-4`` is one, which YAML 1.1 reads as a text for want of a point."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def read_yaml(text: str) -> Any:
    """What a YAML text says. Raises ``yaml.YAMLError``."""
    return yaml.load(text, Loader=_Loader)  # a SafeLoader


def load_config(file: str | Path, overrides: dict[str, Any] | None = None) -> RunConfig:
    """Read ``file``. ``overrides`` maps dotted keys (``training.seed``) to values and wins."""
    path = Path(file)
    try:
        data = read_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(
            f"{path}: the file must hold sections (agent, training, environment, backend), "
            f"not {type(data).__name__}"
        )
    for key, value in (overrides or {}).items():
        _assign(data, key, value, path)
    try:
        config = RunConfig.model_validate(data)
    except ValidationError as error:
        lines = [
            f"{path}: {'.'.join(map(str, e['loc']))}: {e['msg']}{_suggestion(e)}" for e in error.errors()
        ]
        raise ConfigError("\n".join(lines)) from None
    config._folder = path.resolve().parent
    try:
        read_policies(policy_sources(config, keys=False), config.agent.policies)
    except UsageError as error:  # of either section: a name that cannot be, or that the other does not know
        message = str(error)
        message = (
            f"agent.{message}"
            if message.startswith("policies")
            else message.replace("policy ", "backend.policies: ", 1)
        )
        raise ConfigError(f"{path}: {message}") from None
    for entry in reversed(config.pythonpath):
        folder = str(config.path(entry))
        if folder not in sys.path:
            sys.path.insert(0, folder)
    return config


def _suggestion(error: Mapping[str, Any]) -> str:
    """For a key that is not known: the one of its section that looks most like it."""
    if error["type"] != "extra_forbidden":
        return ""
    section: Any = RunConfig
    named = False
    for part in error["loc"][:-1]:
        if named:  # the name of a policy, which may be that of a field, too
            named = False
            continue
        kind = section.model_fields[part].annotation
        section = next(k for k in (kind, *get_args(kind)) if isinstance(k, type) and issubclass(k, _Section))
        named = get_origin(kind) is dict
    known = [name for name in section.model_fields if name != "folder"]  # that is ours to set
    near = difflib.get_close_matches(str(error["loc"][-1]), known, n=1)
    return f". Did you mean {near[0]!r}?" if near else f"; known here: {', '.join(known)}"


def policy_sources(config: RunConfig, *, keys: bool = True) -> PolicySource | dict[str, PolicySource]:
    """What the configuration gives the trainer as ``policy``. ``keys``: with what is outside the file, the
    folders and the keys of endpoints from the environment; :class:`ConfigError` if one is not there.
    """
    backend = config.backend
    if backend.policy is not None:
        return _folder(config, backend.policy, "backend.policy", keys)
    return {name: _policy_source(config, name, one, keys) for name, one in backend.policies.items()}


def _policy_source(config: RunConfig, name: str, one: PolicySection, keys: bool) -> PolicySource:
    if not one.addresses:
        folder = _folder(config, one.path or "", f"backend.policies.{name}.path", keys)
        return PolicyFolder(folder, one.train, one.options)
    key = os.environ.get(one.api_key_env) if one.api_key_env else None
    if keys and one.api_key_env and not key:
        raise ConfigError(
            f"backend.policies.{name}.api_key_env: the environment variable {one.api_key_env} is not set"
        )
    first, *others = one.addresses
    return LLM(endpoint=first, replicas=others, model=one.model or "", api_key=key)


def _folder(config: RunConfig, given: str, key: str, there: bool) -> Path:
    folder = config.path(given)
    if there and not folder.is_dir():
        where = "" if str(folder) == given else f" (looked for at {folder})"
        raise ConfigError(f"{key}: {missing_policy_message(given)}{where}")
    return folder


def _assign(data: dict[str, Any], dotted: str, value: Any, path: Path) -> None:
    *parents, last = dotted.split(".")
    for part in parents:
        inner = data.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{path}: {dotted}: {part!r} is a value, not a section")
        data = inner
    data[last] = value


def import_target(target: str, key: str) -> Any:
    """The object that ``module:object`` names; ``key`` is the configuration key, for the error."""
    module, _, name = target.partition(":")
    if not name:
        raise ConfigError(f"{key}: {target!r} must be written module:object")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{key}: cannot import {module!r}: {error}; add its folder to pythonpath, or install it"
        ) from error
    except Exception as error:
        raise ConfigError(f"{key}: importing {module!r} raised {_describe_error(error)}") from error
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ConfigError(f"{key}: module {module!r} has no {name!r}") from None
    return found


def load_data(section: DataSection | None, config: RunConfig, key: str) -> list[Any]:
    """The tasks of a data section, each plain JSON; an empty list for none."""
    if section is None:
        return []
    if (section.file is None) == (section.target is None):
        raise ConfigError(f"{key}: give either file or target")
    try:
        if section.target is None:
            tasks = tasks_of(config.path(section.file or ""), f"{key}.file")
        else:
            made = _call(import_target(section.target, f"{key}.target"), section.target, section.args, key)
            tasks = tasks_of(made, key)
    except DatasetError as error:
        raise ConfigError(str(error)) from None
    if not tasks:
        raise ConfigError(f"{key}: the dataset is empty")
    tasks = tasks[: section.limit] if section.limit else tasks
    check_tasks(tasks, key)
    return tasks


def _call(loader: Any, target: str, args: dict[str, Any], key: str) -> Any:
    """The dataset that ``loader(**args)`` returns; its own errors are told with the target that raised
    them.
    """
    if not callable(loader):
        kind = type(loader).__name__
        raise ConfigError(f"{key}.target: {target} is a {kind}, not a function that returns tasks")
    try:
        signature = inspect.signature(loader)
        signature.bind(**args)
    except TypeError as error:
        raise ConfigError(f"{key}.args: {error}; {target} takes {signature}") from None
    except ValueError:  # written in C, without a signature to look at
        pass
    try:
        found = loader(**args)
        found = list(found) if isinstance(found, Iterator) else found  # a generator raises only now
    except Exception as error:
        raise ConfigError(f"{key}.target: {target} raised {_describe_error(error)}") from error
    if found is None or isinstance(found, str | bytes | dict):
        raise ConfigError(f"{key}.target: {target} returned a {type(found).__name__}, not a list of tasks")
    return found


def _describe_error(error: Exception) -> str:
    """An error of the user's code in one line: kind, message, and the place it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if f.filename != __file__ and not f.filename.startswith("<frozen ")]
    where = f" ({ours[-1].filename}:{ours[-1].lineno})" if ours else ""
    return f"{type(error).__name__}: {error}{where}"
