"""The hooks of plugins. Each is an empty function with its contract as docstring.

Registration hooks return lists of specs and run once, when plugins are loaded. Notification hooks are called
after the event and off the hot path; an error in one is counted and logged, never fatal. Plugins are found
through the entry-point group ``agentlightning``; our own features register through the same hooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from agentlightning import specs
    from agentlightning.types import (
        Attempt,
        Batch,
        Call,
        Evaluation,
        Progress,
        Recipe,
        Reward,
        Rollout,
        Span,
        StepReport,
    )
    from agentlightning.types.sections import TrainingSection

hookspec = pluggy.HookspecMarker("agentlightning")
hookimpl = pluggy.HookimplMarker("agentlightning")


# ---------------------------------------------------------------------------------------- registration
@hookspec
def agl_adapters() -> list[specs.AdapterSpec]:  # type: ignore[empty-body]
    """Framework adapters."""


@hookspec
def agl_recipes() -> list[specs.RecipeSpec]:  # type: ignore[empty-body]
    """RL algorithms as data."""


@hookspec
def agl_algorithms() -> list[specs.AlgorithmSpec]:  # type: ignore[empty-body]
    """Training loops: RL, evaluation only, prompt tuning, …"""


@hookspec
def agl_drivers() -> list[specs.DriverSpec]:  # type: ignore[empty-body]
    """Drivers, which run recipes: ``local``, ``verl``, …"""


@hookspec
def agl_runners() -> list[specs.RunnerSpec]:  # type: ignore[empty-body]
    """Runners outside the trainer's process, which ``runner`` names: ``ray``, ``kubernetes``, …"""


@hookspec
def agl_stores() -> list[specs.StoreSpec]:  # type: ignore[empty-body]
    """Stores by URL scheme: ``sqlite``, ``http``, …"""


@hookspec
def agl_store_operations() -> list[specs.StoreOperationSpec]:  # type: ignore[empty-body]
    """Operations that every store gets beside its own: reports, and what is done with stored rows. A store in
    tables runs them in its process, and its server offers them where the plugin is installed.
    """


@hookspec
def agl_credit_rules() -> list[specs.CreditRuleSpec]:  # type: ignore[empty-body]
    """Rules that turn rewards into one number per call."""


@hookspec
def agl_baselines() -> list[specs.BaselineSpec]:  # type: ignore[empty-body]
    """Baselines that turn credit into advantages."""


@hookspec
def agl_trackers() -> list[specs.TrackerSpec]:  # type: ignore[empty-body]
    """Receivers of metrics: terminal, files, services."""


@hookspec
def agl_policies() -> list[specs.PolicySpec]:  # type: ignore[empty-body]
    """Pretrained policies that ``backend.policy`` may name in place of a folder."""


@hookspec
def agl_commands() -> list[specs.CommandSpec]:  # type: ignore[empty-body]
    """Subcommands of ``agl``."""


@hookspec
def agl_sections() -> list[specs.SectionSpec]:  # type: ignore[empty-body]
    """Fields of a run's description, and the agents that they name."""


@hookspec
def agl_api_formats() -> list[specs.ApiFormatSpec]:  # type: ignore[empty-body]
    """APIs that the gateway serves beside chat completions and completions, by path."""


@hookspec
def agl_run_services() -> list[specs.RunServiceSpec]:  # type: ignore[empty-body]
    """What lives as long as a run: a page of metrics, a place that keeps its files, …"""


@hookspec
def agl_names() -> dict[str, str]:  # type: ignore[empty-body]
    """Public names: name in the package ``agentlightning`` → ``module:object``, imported when it is used."""


@hookspec
def agl_hookspecs() -> list[Any]:  # type: ignore[empty-body]
    """Hooks of a plugin's own: modules whose functions are marked ``hookspecs.hookspec``. The plugin reads
    what others register by ``Plugins.table``. Who implements such a hook marks it
    ``hookimpl(optionalhook=True)``: without the plugin nobody asks for it.
    """


# ---------------------------------------------------------------------------------------------- adaptations
@hookspec
def agl_reward_formats() -> list[Callable[[Span], Span]]:  # type: ignore[empty-body]
    """Functions that make the reward in a span of another emitter a reward of ours, and return any other span
    as it is. Spans pass them where they come in, before they are checked.
    """


@hookspec
def agl_missing(module: str, name: str) -> Any:
    """Asked for ``name`` of ``module`` (its path in the package ``agentlightning``; empty: the package) where
    the package lacks it, and with an empty name for the module itself, as its ``ModuleSpec``. ``None``: it is
    not the plugin's. An error is raised to whoever imports it.
    """


@hookspec
def agl_trainer_arguments(given: dict[str, Any]) -> specs.TrainerPart | None:
    """Asked with the arguments of ``Trainer(…)`` by name, ``algorithm`` included: takes those that are no
    fields of a run out of ``given``, and may put fields in. Every plugin is asked; the first part that is
    answered counts. An error is raised.
    """


@hookspec
def agl_agents(agent: Any, trainer: Any) -> Any:
    """Asked once for each agent that a runner gets: a ``runner.agent.HostedAgent``, which calls it in
    a way of its own. ``trainer``: whose run it is; ``None`` for a runner alone. The first answer counts. An
    error is raised.
    """


# ------------------------------------------------------------------------------------------------- services
@hookspec
def agl_call_guards(config: Any, plugins: Any) -> specs.CallGuard | None:
    """Asked when a run is opened, with its description and its plugins: an object that admits each of its
    calls before it is forwarded, counts it afterwards, and may end the training. An error is raised.
    """


@hookspec
def agl_call_edits(route: Any, client: Any, metrics: Any) -> Any:
    """Asked when a gateway gets a ``gateway.route.Upstream``, with the gateway's ``EngineClient`` and its
    ``Metrics``: the ``gateway.route.CallEdits`` of the route's calls, by its ``settings``. The first answer
    counts. An error is raised.
    """


@hookspec
def agl_comparisons(config: Any) -> specs.Comparison | None:
    """Asked when a run is opened, with its description: policies that the run's are compared with. An error
    is raised.
    """


@hookspec
def agl_group_rewards(config: Any, plugins: Any) -> specs.GroupReward | None:
    """Asked when a run is opened, with its description and its plugins: what gives rewards to the finished
    rollouts of whole groups, before credit and evaluations read them. Several are asked one after another. An
    error is raised.
    """


@hookspec
def agl_batch_edits(config: Any, recipe: Recipe, plugins: Any) -> specs.BatchEdit | None:
    """Asked when a run is opened, with its description, its recipe and its plugins: what changes a step's
    batch between credit and driver, such as a teacher's share of the advantages. An error is raised.
    """


@hookspec
def agl_gateways(job: specs.GatewayJob) -> Any:
    """Asked when a run opens, with its store open: an async context manager that opens and closes the run's
    gateway, a ``gateway.base.RunGateway``. The first answer counts; ``None``: it is one in the run's process.
    An error is raised.
    """


@hookspec
def agl_worker_pools(agent: Any, settings: Any, counts: Counter[str]) -> Any:
    """Asked when a runner is made whose agent runs in processes of its own (``isolation: process``): a
    ``runner.execution.WorkerPool``. ``agent``: a ``runner.agent.HostedAgent``; ``settings``: the runner's;
    ``counts``: where the pool counts, ``Runner.counts``. The first answer counts; without one the runner is
    refused. An error is raised.
    """


@hookspec
def agl_agent_loops() -> Any:
    """Asked when a runner is made whose agents run on event loops of their own in its process: a
    ``runner.execution.RunOnLoop``. The first answer counts; ``None``: a loop that nobody watches. An error
    is raised.
    """


# ------------------------------------------------------------------------------------------------ decisions
@hookspec
def agl_schedules(recipe: Recipe | None, training: TrainingSection) -> specs.ScheduleSpec | None:
    """Asked before a run trains with a recipe: which groups its steps train. ``None``:
    ``training`` asks for nothing of the plugin's. Fields that plugins add to the section ``training`` are a
    schedule's: a run in which they are set is refused if nobody answers, and any run if two plugins do. An
    error is raised: ``ConfigError`` for settings that do not work with the recipe. ``recipe``: ``None`` for
    an algorithm with a loop of its own, which is refused if it would leave out what is set.
    """


@hookspec
def agl_end_training(
    step: int, evaluation: Evaluation | None, evaluations: Mapping[str, Evaluation], training: TrainingSection
) -> str | None:
    """Asked after each evaluation of the run's schedule, when ``step`` steps are finished. A reason ends the
    training here; ``None`` goes on. ``evaluation``: of the held-out tasks, if there are any; ``evaluations``:
    all that the run has made, by name (``before``, ``step-10``, ``step-10/hard`` of the set ``hard``).
    """


# --------------------------------------------------------------------------------------------- notifications
@hookspec
def agl_run_started(run: dict[str, Any]) -> None:
    """A run begins. ``run``: its id, configuration and versions."""


@hookspec
def agl_run_resumed(run: dict[str, Any], reports: list[StepReport], evaluations: list[Evaluation]) -> None:
    """A run resumes. ``reports`` and ``evaluations`` end at its checkpoint; later ones are made again."""


@hookspec
def agl_rollout_started(rollout: Rollout, attempt: Attempt) -> None:
    """A runner begins an attempt."""


@hookspec
def agl_call_recorded(call: Call) -> None:
    """The gateway has committed a model call."""


@hookspec
def agl_reward_emitted(rollout_id: str, attempt_id: str, reward: Reward) -> None:
    """An agent emitted or returned a reward."""


@hookspec
def agl_rollout_finished(rollout: Rollout, attempt: Attempt) -> None:
    """An attempt has ended, successful or not."""


@hookspec
def agl_progress(progress: Progress) -> None:
    """Work that takes long has begun or goes on: the rollouts of a step or an evaluation, an update."""


@hookspec
def agl_rows_built(step: int, batch: Batch) -> None:
    """Credit has built the rows of a step; the driver gets exactly these."""


@hookspec
def agl_policy_updated(report: StepReport) -> None:
    """A step is finished and the engine serves the new version."""


@hookspec
def agl_evaluated(evaluation: Evaluation) -> None:
    """A policy was evaluated."""


@hookspec
def agl_checkpoint_saved(folder: Path, step: int) -> None:
    """``folder`` holds a complete checkpoint."""


@hookspec
def agl_run_failed(run_id: str, error: BaseException) -> None:
    """A run ended before it was finished: by an error, or because it was interrupted."""


@hookspec
def agl_run_finished(summary: dict[str, Any]) -> None:
    """A run has ended. ``summary``: the content of ``summary.json``."""
