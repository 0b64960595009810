"""Our own features, registered through the same hooks as anybody's.

Every factory imports lazily: loading this module costs nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import (
    AdapterSpec,
    AlgorithmSpec,
    BaselineSpec,
    CommandSpec,
    CreditRuleSpec,
    RecipeSpec,
    StoreSpec,
    Tracker,
    TrackerSpec,
    lazily,
)
from agentlightning.types import Recipe


@hookimpl
def agl_adapters() -> list[AdapterSpec]:
    instrumentor = lazily("agentlightning.capture.sdk.anthropic:AnthropicInstrumentor")
    return [AdapterSpec("anthropic", "anthropic", instrumentor, requires="anthropic >= 0.70, < 3")]


@hookimpl
def agl_recipes() -> list[RecipeSpec]:
    def recipe(name: str) -> Any:
        def factory(**overrides: Any) -> Recipe:
            from agentlightning import recipes

            return recipes.get(name, **overrides)

        return factory

    return [
        RecipeSpec("grpo", recipe("grpo"), "arXiv 2402.03300"),
        RecipeSpec("ppo", recipe("ppo"), "arXiv 1707.06347"),
        RecipeSpec("rloo", recipe("rloo"), "arXiv 2402.14740"),
    ]


@hookimpl
def agl_algorithms() -> list[AlgorithmSpec]:
    def rl(**options: Any) -> Any:
        from agentlightning.algorithms.rl import RL

        return RL(**options)

    def baseline(**options: Any) -> Any:
        from agentlightning.algorithms.baseline import Baseline

        return Baseline(**options)

    return [
        AlgorithmSpec("rl", rl, "policy-gradient RL: a recipe run by a driver"),
        AlgorithmSpec("baseline", baseline, "the agent as it is, run once on each task"),
    ]


@hookimpl
def agl_stores() -> list[StoreSpec]:
    def embedded(url: str) -> Any:
        from agentlightning.store.sqlite.store import SQLiteStore

        return SQLiteStore(url)

    def remote(url: str) -> Any:
        from agentlightning.store.http.client import StoreClient
        from agentlightning.webserver.loopback import token_from_env

        return StoreClient(url, token_from_env("AGL_TOKEN"))

    schemes = {"sqlite": embedded, "http": remote, "https": remote}
    return [StoreSpec(scheme, factory) for scheme, factory in schemes.items()]


@hookimpl
def agl_credit_rules() -> list[CreditRuleSpec]:
    from agentlightning.credit.scoring.rules import RULES

    return [CreditRuleSpec(name, rule) for name, rule in RULES.items()]


@hookimpl
def agl_baselines() -> list[BaselineSpec]:
    from agentlightning.credit.advantage.baselines import BASELINES

    return [BaselineSpec(name, baseline) for name, baseline in BASELINES.items()]


@hookimpl
def agl_trackers() -> list[TrackerSpec]:
    def files(folder: Path) -> Tracker:
        from agentlightning.trackers.files import FilesTracker

        return FilesTracker(folder)

    def console(folder: Path) -> Tracker:
        from agentlightning.trackers.console import ConsoleTracker

        return ConsoleTracker(folder)

    def plot(folder: Path) -> Tracker:
        from agentlightning.trackers.plot import PlotTracker

        return PlotTracker(folder)

    def events(folder: Path) -> Tracker:
        from agentlightning.trackers.events import EventsTracker

        return EventsTracker(folder)

    return [
        TrackerSpec("events", events),
        TrackerSpec("files", files, default=True),
        TrackerSpec("console", console, default=True),
        TrackerSpec("plot", plot, default=True),
    ]


@hookimpl
def agl_commands() -> list[CommandSpec]:
    def command(module: str) -> Any:
        def register(app: Any) -> None:
            from importlib import import_module

            import_module(f"agentlightning.cli.{module}").register(app)

        return register

    return [
        CommandSpec("train", command("train"), "train an agent"),
        CommandSpec("run", command("run_program"), "run a program as it is, and record its model calls"),
        CommandSpec("eval", command("evaluate"), "score an agent on tasks"),
        CommandSpec("store", command("store"), "serve a store"),
        CommandSpec("runner", command("runner"), "run an agent on a store's rollouts"),
        CommandSpec("doctor", command("doctor"), "look a run over before it costs anything"),
        CommandSpec("runs", command("inspect.runs"), "list runs"),
        CommandSpec("rollouts", command("inspect.rollouts"), "list the rollouts of a run"),
        CommandSpec("trace", command("inspect.trace"), "show what an attempt did"),
        CommandSpec("explain", command("inspect.explain"), "explain a rollout, a call or a token"),
        CommandSpec("verify", command("inspect.verify"), "compare a store with what was trained from it"),
        CommandSpec("plugins", command("plugins"), "list plugins and their hooks"),
    ]
