"""Drivers: what runs a recipe, what it is given, and how a plugin names it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from agentlightning.types import LLM, Batch, Evaluation, Progress, Recipe, Row, StepReport
from agentlightning.types.work import PolicyFolder

if TYPE_CHECKING:
    from agentlightning.types.sections import TrainingSection


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


@runtime_checkable
class WatchedDriver(Protocol):
    """A driver that knows when its engine has died. The run then ends with this reason, not with what the
    agents' calls say about it.
    """

    def engine_died(self) -> str | None:
        """Return how its engine ended by itself, e.g. ``signal 9 (SIGKILL)``; ``None``: it has not. It is
        asked twice a second.
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
