"""The description of a run, typed and checked once.

A YAML file, ``--set`` and ``Trainer(**fields)`` all build a :class:`RunConfig`, which alone describes a run.
Invariant: a field has one name. Its key in the file, its keyword of ``Trainer`` and the keyword of the part
that uses it are the same word, and no word stands in two sections.

From Python, a field that names an object (a folder, ``module:object``, a recipe) also takes the object.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import Discriminator, Field, PrivateAttr, Tag, model_validator
from pydantic.json_schema import SkipJsonSchema

from agentlightning.budget.sections import BudgetSection
from agentlightning.gateway.settings import GatewaySection
from agentlightning.runner.settings import RunnerSection
from agentlightning.train.policies import Policies, read_policies
from agentlightning.train.services.metrics_port import MetricsSection
from agentlightning.types import LLM
from agentlightning.types.policy import PolicyFolder
from agentlightning.types.sections import (
    Choices,
    EnvironmentSection,
    EvaluationSection,
    Objects,
    RunnerField,
    Section,
    Text,
    TrainingSection,
)


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
    budget: BudgetSection | None = None
    """What the run and each rollout may spend: ``{calls: …, tokens: …, money: …, seconds: …, per_rollout:
    {…}}`` (``docs/budgets.md``); none: no limit."""
    metrics: MetricsSection | None = None
    """A port of 127.0.0.1 at which the trainer answers ``GET /metrics``: ``{port: 9100}``
    (``docs/monitoring.md``); none: no such port."""
    runner: RunnerField = None
    """Where the agent runs, if not in this process: ``{kind: ray, …}`` (``docs/ray.md``) or ``{kind:
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
    """Names of the trackers, each with its options if it has any (``docs/trackers.md``); none: files, the
    terminal and a plot, which ``default`` stands for in a list."""
    log: str | Path | None = None
    """Log file of all runs; none: that of ``AGL_LOG``, else ``~/.agent-lightning/logs/training.log``; an
    empty text: no such file. Every run has a ``training.log`` in its folder."""
    callbacks: Objects = []
    """Objects with hooks that this run calls, ``module:object`` each; a class is made into an object for each
    run (``docs/callbacks.md``)."""
    note: str | None = None
    """A sentence that is printed at the start, e.g. about the policy and the data."""
    _folder: Path = PrivateAttr(default=Path("."))
    """Folder of the file; paths are relative to it."""

    @model_validator(mode="after")
    def _fields_agree(self) -> RunConfig:
        options = [self.backend.options, *(folder.options for folder in self.served.trained.values())]
        if (ahead := self.training.async_steps) and any(one.get("deterministic") for one in options):
            raise ValueError(
                f"async_steps = {ahead}: which version answers a call depends on timing, which deterministic "
                "mode excludes"
            )
        return self

    @property
    def served(self) -> Policies:
        """Return the policies that the run serves, and which agent talks to which."""
        policy: Any = self.backend.policy
        if isinstance(policy, Mapping):
            policy = {name: p.source() if isinstance(p, PolicySection) else p for name, p in policy.items()}
        return read_policies(policy, self.agent.policies)

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
