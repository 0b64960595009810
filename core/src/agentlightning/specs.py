"""Specs that plugins register, one small dataclass for each kind, and the protocols of their products.

A spec holds a name, a sentence and a factory that imports lazily, so that listing plugins costs nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from agentlightning.types import (
    LLM,
    Batch,
    Evaluation,
    Progress,
    Recipe,
    Record,
    Rollout,
    Row,
    StepReport,
    aliases,
)
from agentlightning.types.policy import PolicyFolder

if TYPE_CHECKING:  # pydantic is not imported for it
    from pydantic import BaseModel

    from agentlightning.store.base import Store
    from agentlightning.train.run_config import RunConfig
    from agentlightning.types.sections import TrainingSection

CreditRule = Callable[[Record, Recipe], dict[str, float | None]]


def lazy_type(place: str) -> Callable[[], Any]:
    """Return a function that imports and returns the object at ``"package.module:name"``."""
    module, _, name = place.partition(":")
    return lambda: getattr(import_module(module), name)


def lazily(place: str) -> Callable[..., Any]:
    """Return a function that imports the one at ``"package.module:name"`` on its first call, and calls it."""
    module, _, name = place.partition(":")

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(import_module(module), name)(*args, **kwargs)

    return call


class Job(Protocol):
    """An RL algorithm gives it to a driver: the recipe, and callbacks into the run."""

    run_id: str
    recipe: Recipe
    policy: str
    first_step: int
    seed: int
    folder: Path

    @property
    def steps(self) -> int:
        """Steps in all. It may fall during :meth:`evaluate`: the driver then ends after the present step."""

    async def collect(self, step: int) -> Batch:
        """The step's credited rows. Its tasks are rolled out with the present policy, or, within the recipe's
        ``max_staleness``, with an earlier one. Call it once for each step, in order.
        """

    def progress(self, progress: Progress) -> None:
        """Tell trackers how far a long piece of work is, such as an update. Call it on the event loop, as
        often as a person would look, or never.
        """

    async def report(self, report: StepReport) -> None:
        """Report the step to trackers, hooks and the store."""

    async def evaluate(self, step: int) -> Evaluation | None:
        """Evaluate the present policy if an evaluation is due after this step."""

    def state(self) -> dict[str, Any]:
        """The algorithm's state for a checkpoint, as JSON."""

    async def saved(self, folder: Path, step: int) -> None:
        """Tell hooks that ``folder`` holds a complete checkpoint of ``step`` finished steps."""

    async def hold(self) -> None:
        """Stop new calls of the policy before its engine. Calls that the engine aborts meanwhile are sent
        again, whole, after :meth:`release`.
        """

    async def release(self) -> None:
        """Let calls pass again: the engine serves :attr:`Driver.version`."""


class Driver(Protocol):
    """Runs a recipe: owns the loop, the engine and the gradient."""

    async def start(self) -> LLM:
        """Serve the policy; the returned endpoint is the engine the gateway calls."""

    async def resume(self, folder: Path) -> tuple[int, dict[str, Any]]:
        """After ``start``: load the last complete checkpoint in the run's ``folder``.

        Returns its number of finished steps and the job's ``state``; ``(0, {})`` without a checkpoint.
        """

    @property
    def version(self) -> int:
        """Version of the policy that the engine serves."""

    async def run(self, job: Job) -> None:
        """Run the loop: ``collect``, update, publish version n+1, ``report``, until ``job.steps``. Calls of
        later steps may arrive at any time; the engine serves them, or pauses and answers them later.
        """

    async def export(self, folder: Path) -> Path:
        """Write the present policy in Hugging Face layout."""

    async def close(self) -> None:
        """Stop the engine and free its resources."""


class PeerDriver(Driver, Protocol):
    """A driver that can train beside others in one run, each a policy of its own
    (``DriverSpec.multi_policy``).

    Each calls its job once for each step, at the same steps: ``collect``, ``report``, ``saved`` where it
    saves, ``evaluate``. Older checkpoints are removed after ``saved`` returned, not before.
    """

    async def checkpoints(self, folder: Path) -> list[int]:
        """Numbers of finished steps that have a complete checkpoint in the run's ``folder``."""

    async def resume(self, folder: Path, step: int | None = None) -> tuple[int, dict[str, Any]]:
        """As :meth:`Driver.resume`. ``step``: load the checkpoint of that many finished steps (0: none) and
        remove later ones.
        """


class ScoringDriver(Driver, Protocol):
    """A driver that tells how likely answers are under its present weights."""

    async def logprobs(self, rows: Sequence[Row]) -> list[float]:
        """The sum of the log-probabilities of each row's trained tokens. Nothing is trained."""


class DriverFactory(Protocol):
    """Makes a driver that trains one policy."""

    def __call__(self, policy: PolicyFolder, recipe: Recipe, training: TrainingSection) -> Driver:
        """``policy``: the folder, the name under which it is served, and all options of the driver.
        ``training``: the section of the run's description, e.g. its seed.
        """


class Server(Protocol):
    """Serves a policy that is not trained."""

    async def start(self) -> LLM:
        """The endpoint of its engine."""

    async def close(self) -> None:
        """Stop the engine."""


class Curriculum(Protocol):
    """Chooses the tasks of each step, by their positions in the training data. A choice is a function of
    seed, step, and what was learned before it; :meth:`state`, as JSON, is what a checkpoint keeps.
    """

    def choose(self, step: int, size: int, taken: Sequence[int] = ()) -> list[int]:
        """Return ``size`` positions for a step. ``taken``: positions that the step has already."""

    def learn(self, step: int, groups: Sequence[tuple[int, Sequence[float | None]]]) -> None:
        """Take a credited step: each group's position and rewards, as credited; ``None``: left out."""

    def metrics(self) -> dict[str, float]:
        """Return the step's metrics, ``curriculum/…`` each. The last step's are in the run's summary."""

    def state(self) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any]) -> None: ...


class Tracker(Protocol):
    """Receives the reports of a run. Errors are counted, never fatal.

    A tracker may have more: ``resumed(run, reports, evaluations)`` gets the reports and evaluations up to the
    checkpoint of a run that resumes (others get ``start`` again); ``failed(error)`` learns that the run ended
    with an error; ``close()`` is called last, however the run ended. One with ``own_thread = True`` is called
    on a thread of its own, in order, so that a slow service does not hold the run.
    """

    def start(self, run: Mapping[str, Any]) -> None: ...
    def step(self, report: StepReport) -> None: ...
    def evaluated(self, evaluation: Evaluation) -> None: ...
    def finish(self, summary: Mapping[str, Any]) -> None: ...


class Inspector(Protocol):
    """Opens a policy folder for ``agl explain`` and ``agl verify``."""

    def decode(self, ids: Sequence[int]) -> list[str]:
        """The text of each single token; part of a character becomes the replacement character."""

    def logprobs(self, row: Row) -> list[float]:
        """The logprob of every token of the row under the folder's weights, at the row's temperature and
        guided choices; 0 outside the mask.
        """

    def digest(self) -> str:
        """sha256 of the parameters, as in ``StepReport.params_digest``."""


@dataclass(frozen=True, slots=True)
class AdapterSpec:
    """A framework adapter: instruments a framework natively so that its calls carry identity."""

    name: str
    framework: str
    """Import name of the framework; the adapter becomes active when it is imported."""
    instrumentor: Callable[[], Any]
    """Returns the OpenTelemetry ``BaseInstrumentor``, best a
    ``capture.instrument.adapter.AdapterInstrumentor``.
    """
    entry_methods: Callable[[type], Sequence[str]] | None = None
    """Methods of an agent class that ``@agl.agent`` wraps; ``()`` for classes of other frameworks."""
    requires: str = ""
    """Tested range, e.g. ``autogen-agentchat >= 0.7.5, < 0.8``."""


@aliases.former_names({"paper": "about"}, "RecipeSpec")
@dataclass(frozen=True, slots=True)
class RecipeSpec:
    """A recipe by name: ``factory(**overrides) -> Recipe``."""

    name: str
    factory: Callable[..., Recipe]
    about: str = ""


@dataclass(frozen=True, slots=True)
class AlgorithmSpec:
    """A training loop by name: ``factory(**options)`` returns an algorithm.

    ``recipe(**overrides)``, if the loop is a driver's: what the driver runs. Such an algorithm is made by
    ``factory(recipe=…, training=…, environment=…)``.
    """

    name: str
    factory: Callable[..., Any]
    about: str = ""
    recipe: Callable[..., Recipe] | None = None


@aliases.former_names(aliases.DRIVER_SPEC, "DriverSpec")
@dataclass(frozen=True, slots=True)
class DriverSpec:
    """A driver by name: ``factory(policy, recipe, training)`` makes one."""

    name: str
    factory: DriverFactory
    supported_fields: frozenset[str] = frozenset()
    """Implemented recipe fields; a recipe with another field is refused at load."""
    about: str = ""
    inspect: Callable[[Path], Inspector] | None = None
    """Opens a policy folder that this driver wrote, for ``agl explain`` and ``agl verify``."""
    environment_info: Callable[[Mapping[str, Any]], dict[str, str]] | None = None
    """Device, threads and versions that it would use on this machine with these options, for ``agl doctor``;
    UsageError for a missing one.
    """
    ends_early: bool = False
    """Whether its drivers end when ``Job.steps`` falls to the finished steps, and export the present policy
    at any step (``training.early_stopping``, ``training.keep_best``).
    """
    multi_policy: bool = False
    """Whether its drivers are :class:`PeerDriver`, several of which train in one run."""
    unsupported_fields: Mapping[str, str] = field(default_factory=dict)
    """Recipe fields without an implementation → the reason, if there is one."""
    serve: Callable[[PolicyFolder], Server] | None = None
    """Serves a policy that is not trained."""
    serve_forever: Callable[[Path, str, Sequence[str]], int] | None = None
    """``serve_forever(policy, name, options)`` serves a policy for ``agl serve`` until a signal, and returns
    the exit status. ``options``: ``--host``, ``--port``, and the further words of the command line.
    """
    finetune: Callable[[str, str, Path, str | None, Mapping[str, Any]], dict[str, Any]] | None = None
    """``finetune(policy, chats, output, held_out, settings)`` learns from chats and returns a summary."""

    def __post_init__(self) -> None:
        where = f"driver {self.name!r}"
        supported = aliases.renamed(dict.fromkeys(self.supported_fields), aliases.RECIPE, where)
        object.__setattr__(self, "supported_fields", frozenset(supported))
        unsupported = aliases.renamed(self.unsupported_fields, aliases.RECIPE, where)
        object.__setattr__(self, "unsupported_fields", unsupported)


@dataclass(frozen=True, slots=True)
class RunnerJob:
    """What a runner outside the trainer's process is given."""

    config: RunConfig
    """The run's description."""
    store: Store
    """The run's store, as the trainer reaches it."""
    agent: Any = None
    """The agent, a ``LitAgent``; ``None``: whoever starts the runner does not import it."""
    run_id: str | None = None
    """Only the rollouts of this run."""
    gateway: str | None = None
    """The address of the run's gateway as agents are told it, where it is known."""


class RemoteRunner(Protocol):
    """Has the rollouts of a store run elsewhere."""

    counts: Counter[str]
    """What became of its attempts and of its workers."""

    async def serve(self, stop: asyncio.Event) -> None:
        """Run rollouts until ``stop`` is set, then let those that run end or stop them. Raise the error that
        prevents any rollout from being run.
        """


@dataclass(frozen=True, slots=True)
class RunnerSpec:
    """A runner outside the trainer's process by name: ``factory(job, options)`` makes one, and raises
    UsageError for what a person can mend, e.g. a library that is not installed.
    """

    name: str
    factory: Callable[[RunnerJob, Any], RemoteRunner]
    options: Callable[[], type[BaseModel]]
    """Imports and returns the pydantic model of its options: the section ``runner`` without ``kind``."""
    about: str = ""


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """A store by URL scheme: ``factory(url) -> Store``."""

    scheme: str
    factory: Callable[[str], Any]
    reader: Callable[[str], Any] | None = None
    """Opens a store that is only read; ``None``: as any other."""


@dataclass(frozen=True, slots=True)
class CreditRuleSpec:
    """A credit rule by name."""

    name: str
    rule: CreditRule


@dataclass(frozen=True, slots=True)
class BaselineSpec:
    """A baseline by name; signature as in ``credit.advantage.baselines``."""

    name: str
    baseline: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class TrackerSpec:
    """A tracker by name: ``factory(folder) -> Tracker``; with ``options``, ``factory(folder, options)``."""

    name: str
    factory: Callable[..., Tracker]
    """``folder``: the run's own. It raises UsageError for what a person can mend before the run begins, e.g.
    a library that is not installed.
    """
    default: bool = False
    """On unless the run names trackers."""
    options: Callable[[], type[BaseModel]] | None = None
    """Imports and returns the pydantic model of its options; ``None``: it has none."""
    about: str = ""


@dataclass(frozen=True, slots=True)
class CurriculumSpec:
    """A curriculum by name: ``factory(tasks, seed)`` makes one for so many tasks; with ``options``,
    ``factory(tasks, seed, options)``.
    """

    name: str
    factory: Callable[..., Curriculum]
    about: str = ""
    options: Callable[[], type[BaseModel]] | None = None
    """Imports and returns the pydantic model of its options; ``None``: it has none."""


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A pretrained policy by name: ``fetch()`` returns its folder, downloaded on first use."""

    name: str
    fetch: Callable[[], Path]
    about: str = ""


@dataclass(frozen=True, slots=True)
class TaskSetSpec:
    """Tasks by name: ``factory()`` returns an :class:`agentlightning.bundled.task_set.TaskSet`."""

    name: str
    factory: Callable[[], Any]
    about: str = ""


@dataclass(frozen=True, slots=True)
class RolloutViewSpec:
    """A view of rollouts of some kind: ``await render(run, rollout)`` returns a whole HTML page without
    scripts. ``run`` is an ``audit.run.OpenRun``. Raise ``UsageError`` where a rollout has nothing to show.
    """

    name: str
    title: str
    applies: Callable[[Rollout], bool]
    """Whether a rollout is of the kind, by its task; called for each rollout that is opened."""
    render: Callable[[Any, Rollout], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class ImportFormatSpec:
    """A format of traces: ``is_mine(first entry)``, and ``read(entries)``, which returns a list of
    ``history.importing.trace.ImportedTrace`` and raises ``UnreadableTrace``.
    """

    name: str
    about: str
    is_mine: Callable[[Any], bool]
    read: Callable[[Sequence[Any]], list[Any]]


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """A subcommand of ``agl``: ``register(app)`` adds it."""

    name: str
    register: Callable[[Any], None]
    about: str = field(default="")
