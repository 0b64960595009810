"""Specs that plugins register, one small dataclass for each kind, and the protocols of their products.

A spec holds a name, a sentence and a factory that imports lazily, so that listing plugins costs nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from agentlightning.types import LLM, Batch, Call, Evaluation, Progress, Recipe, Record, Row, StepReport
from agentlightning.types.work import PolicyFolder

if TYPE_CHECKING:
    import asyncio

    from pydantic import BaseModel

    from agentlightning.store.base import Store
    from agentlightning.types.sections import TrainingSection


def lazy_type(place: str) -> Callable[[], Any]:
    """Return a function that imports and returns the object at ``"package.module:name"``."""
    module, _, name = place.partition(":")
    return lambda: getattr(import_module(module), name)


def lazily(place: str) -> Callable[..., Any]:
    """Return a function that imports the one at ``"package.module:name"`` on its first call, and calls it."""
    found = lazy_type(place)
    return lambda *args, **kwargs: found()(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class AdapterSpec:
    """A framework adapter: instruments a framework natively so that its calls carry identity."""

    name: str
    framework: str
    """Import name of the framework; the adapter becomes active when it is imported."""
    instrumentor: Callable[[], Any]
    """Returns the OpenTelemetry ``BaseInstrumentor``, best a
    ``capture.adapter.AdapterInstrumentor``.
    """
    entry_methods: Callable[[type], Sequence[str]] | None = None
    """Methods of an agent class that ``@agl.agent`` wraps; ``()`` for classes of other frameworks."""
    requires: str = ""
    """Tested range, e.g. ``autogen-agentchat >= 0.7.5, < 0.8``."""


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
    ``factory(recipe=…, training=…)``.
    """

    name: str
    factory: Callable[..., Any]
    about: str = ""
    recipe: Callable[..., Recipe] | None = None


@dataclass(frozen=True, slots=True)
class ScheduleSpec:
    """Which groups the steps of one run train, and what looks at its evaluations."""

    open: Callable[[Any], Any] | None = None
    """``open(context)`` makes the run's ``algorithms.schedule.Schedule``; ``None``: tasks in the order of the
    dataset.
    """
    watch: Callable[[Any], Any] | None = None
    """``watch(context)`` makes the ``algorithms.schedule.Watch`` of its evaluations, if there is one."""
    chooses_by: Sequence[str] = ()
    """Fields of ``training`` by which it chooses, for messages."""
    ends_early: Sequence[str] = ()
    """Fields of ``training`` by which a run ends before its last step, by the hook ``agl_end_training``, or
    exports the present policy. They need a driver that does (``DriverSpec.ends_early``).
    """


CreditRule = Callable[[Record, Recipe], dict[str, float | None]]


@dataclass(frozen=True, slots=True)
class CreditRuleSpec:
    """A credit rule by name. One that reads no reward has the attribute ``credits_unrewarded = True``: then
    rollouts without a reward are credited, too.
    """

    name: str
    rule: CreditRule


@dataclass(frozen=True, slots=True)
class BaselineSpec:
    """A baseline by name; signature as in ``credit.baselines``."""

    name: str
    baseline: Callable[..., Any]


class TrainerPart(Protocol):
    """What a plugin keeps of the arguments of ``Trainer(…)``."""

    def begin(self, trainer: Any) -> None:
        """Called once, when the trainer has its ``config``: it may be given further attributes."""

    def fit(self, trainer: Any, agent: Any, given: dict[str, Any]) -> dict[str, Any] | None:
        """Do what ``trainer.fit(agent, …)`` is asked for, and return the summary; ``None``: train on the
        datasets that ``given`` holds. ``given``: the other arguments of ``fit`` by name.
        """


class Job(Protocol):
    """An RL algorithm gives it to a driver: the recipe, and callbacks into the run."""

    run_id: str
    recipe: Recipe
    policy: str
    first_step: int
    seed: int
    folder: Path
    alone: bool
    """Whether the run trains this policy alone: then a driver that is cancelled between two updates may save
    the finished steps."""

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


class StartedDriver(Protocol):
    """A driver whose engine serves: what a run trains with."""

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


class Driver(StartedDriver, Protocol):
    """Runs a recipe: owns the loop, the engine and the gradient."""

    async def start(self) -> LLM:
        """Serve the policy; the returned endpoint is the engine the gateway calls."""

    async def close(self) -> None:
        """Stop the engine and free its resources."""


@runtime_checkable
class DriverGroup(StartedDriver, Protocol):
    """Several drivers as one: each trains a policy of the run (``DriverSpec.together``)."""

    drivers: Mapping[str, Driver]
    """Policy → its driver."""


@runtime_checkable
class WatchedDriver(Protocol):
    """A driver that knows when its engine has died. The run then ends with this reason, not with what the
    agents' calls say about it.
    """

    def engine_died(self) -> str | None:
        """Return how its engine ended by itself, e.g. ``signal 9 (SIGKILL)``; ``None``: it has not. It is
        asked twice a second.
        """


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


class Inspector(Protocol):
    """Opens a policy folder for ``agl explain`` and ``agl verify``."""

    def decode(self, ids: Sequence[int]) -> list[str]:
        """The text of each single token; part of a character becomes the replacement character."""

    def logprobs(self, rows: Sequence[Row]) -> list[list[float]]:
        """Of each row, the logprob of every token under the folder's weights, at the row's temperature and
        guided choices; 0 outside the mask.
        """

    def digest(self) -> str:
        """sha256 of the parameters, as in ``StepReport.params_digest``."""


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
    paid: bool = False
    """Whether a service that may ask money for tokens samples and trains. Its driver's reports then have the
    metrics ``service/forward_tokens`` and ``service/trained_tokens``, sums since the process began.
    """
    ends_early: bool = False
    """Whether its drivers end when ``Job.steps`` falls to the finished steps, and export the present policy
    at any step (``training.early_stopping``, ``training.keep_best``).
    """
    together: Callable[[Sequence[PolicyFolder], Mapping[str, Driver], Any], DriverGroup] | None = None
    """``together(policies, drivers, gateway)`` makes one of several drivers that are not started yet, each
    for a policy of the run; ``None``: it trains one policy a run. ``gateway``: a ``gateway.base.RunGateway``.
    """
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


@dataclass(frozen=True, slots=True)
class RunnerJob:
    """What a runner outside the trainer's process is given."""

    config: Any
    """The run's description, a ``RunConfig``, which this layer does not import."""
    store: Store
    """The run's store, as the trainer reaches it."""
    agent: Any = None
    """The agent, a ``RunnableAgent``; ``None``: whoever starts the runner does not import it."""
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
    trusted: bool = True
    """Whether its agents are trusted where ``agent.trusted`` is not set."""


@dataclass(frozen=True, slots=True)
class GatewayJob:
    """What a run's gateway is made with. Types are those of the gateway, which this layer does not import."""

    config: Any
    """The run's description, a ``RunConfig``."""
    calls: Any
    """Which calls are trained, a ``CallSection``."""
    store: Store
    keys: Any
    """The run's ``Keys``."""
    on_call: Callable[[Any], None] | None
    """Called with each ``Call`` that is on record; ``None``: nobody listens."""
    plugins: Any = None
    """The run's ``Plugins``, whose APIs a gateway in its process serves; ``None``: those of the process."""
    guards: Sequence[CallGuard] = ()
    """What admits and counts the run's calls. Gateways that are processes of their own get copies, by pickle,
    after :meth:`CallGuard.share`.
    """


@dataclass(frozen=True, slots=True)
class RunServiceSpec:
    """What lives as long as a run, by name. ``open(config)``, with its ``RunConfig``, returns an async
    context manager, or ``None`` where the run has no such thing. It is entered before the run's folder is
    opened, and left after all that writes to the folder. What it yields listens to the run's hooks.
    """

    name: str
    open: Callable[[Any], AbstractAsyncContextManager[object] | None] | None = None
    about: str = ""
    open_in: Callable[[Any, Path], AbstractAsyncContextManager[object] | None] | None = None
    """``open_in(config, folder)``: as ``open``, for what writes into the run's folder. It is entered when the
    folder is open, and left before what ``open`` returned.
    """


@dataclass(frozen=True, slots=True)
class ApiFormatSpec:
    """An API that agents speak: the path of its model calls (``/v1/responses``), and what makes its format, a
    :class:`~agentlightning.gateway.apis.ApiFormat`.
    """

    path: str
    format: Callable[[], Any]
    about: str = ""


class CallGuard:
    """Admits the calls of one run, and counts them. It lives as long as the run, and listens to its hooks.

    A guard overrides what it needs.
    """

    name: str
    """Key of its :meth:`summary`, and what is said of a run that it ends."""
    refused: int = 0
    """Calls that it refused."""

    async def begin(self, store: Store, run_id: str, recorded: Mapping[str, Any]) -> None:
        """The run begins, or goes on. ``recorded``: the last :meth:`summary` of its earlier lives."""

    def share(self) -> None:
        """Gateways in processes of their own are about to get copies, and forward the run's calls: what one
        admits and counts, this one and the others see in the store alone.
        """

    def join(self, store: Store) -> None:
        """This is the copy of a gateway process, which has a connection of its own to the store."""

    def admit(self, rollout_id: str) -> AbstractAsyncContextManager[None]:
        """Entered before a call is sent to its engine, and left once it is on record. Raise
        :class:`CallFailure` to refuse it: the refusal is recorded as a call.
        """
        return nullcontext()

    def count(self, calls: Sequence[Call]) -> None:
        """Calls that this gateway has put on record, of one request."""

    async def exhausted(self, *, last: bool = False) -> str | None:
        """Why no call of the run is admitted any more, if so: training then ends. ``last``: the evaluation
        after it is about to begin, and nothing is kept back any longer.
        """
        return None

    def keep_back(self) -> None:
        """The evaluations before training are made: as much may be kept back for those after it."""

    def metrics(self) -> dict[str, float]:
        """Metrics of the present step."""
        return {}

    def summary(self) -> dict[str, Any]:
        """What the run's record and its summary say."""
        return {}


class RunPart(Protocol):
    """Lives as long as a run."""

    def open(self, context: Any) -> AbstractAsyncContextManager[None]:
        """Entered when the run's other parts are open, before its record is written and its first rollout is
        made; left before they close. Raise here for what a person can mend.
        """


class Comparison(RunPart, Protocol):
    """Policies that nobody trains, and whose rewards bound what training may gain. ``open`` serves them, by
    ``context.gateway.add_route``, and names them in ``context.resources.compared``.
    """

    name: str
    """Key of what :meth:`measure` returns, in the run's summary."""

    async def measure(self, context: Any, before: Evaluation | None) -> dict[str, float]:
        """The run has evaluated its policy (``before``) and has not yet trained it: evaluate the others, and
        return their rewards by name.
        """


class GroupReward(RunPart, Protocol):
    """Gives rewards to finished rollouts, whose groups it sees whole."""

    async def grade(self, records: Sequence[Record]) -> Sequence[Record]:
        """Return the records of whole groups, in their order, with the rewards that they have now, which are
        in the store on return. A group that has its rewards is not graded again.
        """


class BatchEdit(RunPart, Protocol):
    """Changes the batch of each step before the driver gets it."""

    async def edit(self, step: int, batch: Batch) -> Batch:
        """Return the batch that is trained. What it reads beside the store it keeps in the run's chain, by
        ``context.journal.entry``, from which ``agl verify`` makes the edit again (``agl_recorded_edits``).
        """


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """A store by URL scheme: ``factory(url) -> Store``."""

    scheme: str
    factory: Callable[[str], Any]
    reader: Callable[[str], Any] | None = None
    """Opens a store that is only read; ``None``: as any other."""


@dataclass(frozen=True, slots=True)
class StoreOperationSpec:
    """An operation that every store gets: ``await store.<name>(…)``. ``operation()`` imports the function
    (:func:`agentlightning.store.sql.core.everywhere`); ``verb``, ``path`` and ``least`` are how a server
    offers it, and to which role: ``GET``, ``/statistics``, ``runner``; without a path it offers it not, or in
    a way of its own.
    """

    name: str
    operation: Callable[[], Any]
    verb: str = ""
    path: str = ""
    least: str = ""


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A pretrained policy by name: ``fetch()`` returns its folder, downloaded on first use. With ``prefix``,
    ``name`` is how further names begin, and ``fetch(rest)`` gets what follows it.
    """

    name: str
    fetch: Callable[..., Path]
    about: str = ""
    prefix: bool = False


@dataclass(frozen=True, slots=True)
class SectionSpec:
    """Fields: those of the model that ``fields()`` returns join the section ``place`` (empty: the top). Its
    validators see the whole section.
    """

    name: str
    place: str = ""
    fields: Callable[[], type[BaseModel]] | None = None
    agent: Callable[[Any], Any] | None = None
    """``agent(config)`` makes the agent that these fields of a ``RunConfig`` name, or returns ``None``."""
    rewrite: Callable[[dict[str, Any], str], None] | None = None
    """``rewrite(data, place)`` writes fields in place of other keys of a run's file, before they are checked;
    an error begins with ``place``. It is called again where ``--set`` changed the file.
    """
    fixed: tuple[str, ...] = ()
    """Fields of the section ``training`` that cannot change when a run resumes."""


class Tracker(Protocol):
    """Receives the reports of a run. Errors are counted, never fatal.

    One that implements the hooks of notifications may leave any of these out. A tracker may have more:
    ``resumed(run, reports, evaluations)`` gets the reports and evaluations up to the checkpoint of a run that
    resumes (others get ``start`` again); ``failed(error)`` learns that the run ended with an error;
    ``close()`` is called last, however the run ended. ``report_to(failed)`` is called first: ``failed(error,
    calls)`` may be told from any thread of calls that fail later.
    """

    def start(self, run: Mapping[str, Any]) -> None: ...
    def step(self, report: StepReport) -> None: ...
    def evaluated(self, evaluation: Evaluation) -> None: ...
    def finish(self, summary: Mapping[str, Any]) -> None: ...


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
    instead_of: str = ""
    """A default tracker that is off where this one is installed, unless the run names it."""
    options: Callable[[], type[BaseModel]] | None = None
    """Imports and returns the pydantic model of its options; ``None``: it has none."""
    about: str = ""


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """A subcommand of ``agl``: ``register(app)`` adds it."""

    name: str
    register: Callable[[Any], None]
    about: str = field(default="")
