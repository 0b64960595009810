"""The built-in plugin registers our own features through the public hooks.

Factories are named by module and imported when they are called: loading this module imports no feature.
"""

from __future__ import annotations

from agentlightning import specs
from agentlightning.hookspecs import hookimpl
from agentlightning.specs import lazily


@hookimpl
def agl_adapters() -> list[specs.AdapterSpec]:
    room = "agentlightning.capture.adapter"
    anthropic, litellm = lazily(f"{room}:AnthropicInstrumentor"), lazily(f"{room}:LiteLLMInstrumentor")
    return [
        specs.AdapterSpec("anthropic", "anthropic", anthropic, requires="anthropic >= 0.70, < 3"),
        specs.AdapterSpec("litellm", "litellm", litellm, requires="litellm >= 1.83.14, < 2"),
    ]


@hookimpl
def agl_recipes() -> list[specs.RecipeSpec]:
    from agentlightning.recipes import PAPERS, RECIPES

    return [specs.RecipeSpec(name, RECIPES[name], paper) for name, paper in PAPERS.items()]


@hookimpl
def agl_algorithms() -> list[specs.AlgorithmSpec]:
    rl = lazily("agentlightning.algorithms.rl:RL")
    baseline = lazily("agentlightning.algorithms.evaluations:Baseline")
    return [
        specs.AlgorithmSpec("rl", rl, "policy-gradient RL: a recipe run by a driver"),
        specs.AlgorithmSpec("baseline", baseline, "the agent as it is, run once on each task"),
    ]


@hookimpl
def agl_stores() -> list[specs.StoreSpec]:
    return [specs.StoreSpec("sqlite", lazily("agentlightning.store.sqlite.store:SQLiteStore"))]


@hookimpl
def agl_credit_rules() -> list[specs.CreditRuleSpec]:
    from agentlightning.credit.rules import RULES

    return [specs.CreditRuleSpec(name, rule) for name, rule in RULES.items()]


@hookimpl
def agl_baselines() -> list[specs.BaselineSpec]:
    from agentlightning.credit.baselines import BASELINES

    return [specs.BaselineSpec(name, baseline) for name, baseline in BASELINES.items()]


@hookimpl
def agl_trackers() -> list[specs.TrackerSpec]:
    trackers = "agentlightning.trackers"
    return [
        specs.TrackerSpec("files", lazily(f"{trackers}.files:FilesTracker"), default=True),
        specs.TrackerSpec("lines", lazily(f"{trackers}.lines:LinesTracker"), default=True),
    ]


@hookimpl
def agl_commands() -> list[specs.CommandSpec]:
    commands = {
        "train": ("train", "train an agent"),
        "plugins": ("plugins", "list plugins and their hooks"),
    }
    return [
        specs.CommandSpec(name, lazily(f"agentlightning.cli.{module}:register"), about)
        for name, (module, about) in commands.items()
    ]
