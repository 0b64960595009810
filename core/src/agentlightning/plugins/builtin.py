"""The built-in plugin registers our own features through the public hooks.

Factories are named by module and imported when they are called: loading this module imports no feature.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
    TrackerSpec,
    lazily,
)


@hookimpl
def agl_adapters() -> list[AdapterSpec]:
    instrumentor = lazily("agentlightning.capture.instrument.anthropic:AnthropicInstrumentor")
    return [AdapterSpec("anthropic", "anthropic", instrumentor, requires="anthropic >= 0.70, < 3")]


@hookimpl
def agl_recipes() -> list[RecipeSpec]:
    papers = {"grpo": "arXiv 2402.03300", "ppo": "arXiv 1707.06347", "rloo": "arXiv 2402.14740"}
    get = lazily("agentlightning.recipes:get")
    return [RecipeSpec(name, partial(get, name), paper) for name, paper in papers.items()]


@hookimpl
def agl_algorithms() -> list[AlgorithmSpec]:
    rl = lazily("agentlightning.algorithms.rl:RL")
    baseline = lazily("agentlightning.algorithms.custom:Baseline")
    return [
        AlgorithmSpec("rl", rl, "policy-gradient RL: a recipe run by a driver"),
        AlgorithmSpec("baseline", baseline, "the agent as it is, run once on each task"),
    ]


@hookimpl
def agl_stores() -> list[StoreSpec]:
    embedded = lazily("agentlightning.store.sqlite.store:SQLiteStore")

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
    trackers = "agentlightning.trackers"
    return [
        TrackerSpec("events", lazily(f"{trackers}.events:EventsTracker")),
        TrackerSpec("files", lazily(f"{trackers}.files:FilesTracker"), default=True),
        TrackerSpec("console", lazily(f"{trackers}.console:ConsoleTracker"), default=True),
        TrackerSpec("plot", lazily(f"{trackers}.plot:PlotTracker"), default=True),
    ]


@hookimpl
def agl_commands() -> list[CommandSpec]:
    def command(module: str) -> Callable[[Any], None]:
        return lazily(f"agentlightning.cli.{module}:register")

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
