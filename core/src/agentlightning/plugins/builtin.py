"""The built-in plugin registers our own features through the public hooks.

Factories are named by module and imported when they are called: loading this module imports no feature.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from agentlightning import specs
from agentlightning.hookspecs import hookimpl
from agentlightning.specs import lazily


@hookimpl
def agl_adapters() -> list[specs.AdapterSpec]:
    room = "agentlightning.capture.instrument"
    anthropic, litellm = (
        lazily(f"{room}.anthropic:AnthropicInstrumentor"),
        lazily(f"{room}.litellm:LiteLLMInstrumentor"),
    )
    return [
        specs.AdapterSpec("anthropic", "anthropic", anthropic, requires="anthropic >= 0.70, < 3"),
        specs.AdapterSpec("litellm", "litellm", litellm, requires="litellm >= 1.83.14, < 2"),
    ]


@hookimpl
def agl_recipes() -> list[specs.RecipeSpec]:
    from agentlightning.recipes import PAPERS

    get = lazily("agentlightning.recipes:get")
    return [specs.RecipeSpec(name, partial(get, name), paper) for name, paper in PAPERS.items()]


@hookimpl
def agl_algorithms() -> list[specs.AlgorithmSpec]:
    rl = lazily("agentlightning.algorithms.rl:RL")
    baseline = lazily("agentlightning.algorithms.custom:Baseline")
    stored = {
        "sft": "fine-tunes on stored rollouts whose reward is at least `minimum`",
        "rejection": "fine-tunes on the `best` stored rollouts of each group (best of n, arXiv 2304.06767)",
        "dpo": "learns preferences from pairs of one group of stored rollouts (DPO, arXiv 2305.18290)",
    }
    learning = lazily("agentlightning.algorithms.stored.learning:StoredLearning")
    recipe = lazily("agentlightning.algorithms.stored.learning:stored_recipe")
    return [
        *(
            specs.AlgorithmSpec(name, partial(learning, method=name), about, partial(recipe, name))
            for name, about in stored.items()
        ),
        specs.AlgorithmSpec("rl", rl, "policy-gradient RL: a recipe run by a driver"),
        specs.AlgorithmSpec("baseline", baseline, "the agent as it is, run once on each task"),
    ]


@hookimpl
def agl_stores() -> list[specs.StoreSpec]:
    embedded = lazily("agentlightning.store.sqlite.store:SQLiteStore")

    def remote(url: str) -> Any:
        from agentlightning.store.http.client import StoreClient
        from agentlightning.webserver.loopback import token_from_env

        return StoreClient(url, token_from_env("AGL_TOKEN"))

    schemes = {"sqlite": embedded, "http": remote, "https": remote}
    return [specs.StoreSpec(scheme, factory) for scheme, factory in schemes.items()]


@hookimpl
def agl_credit_rules() -> list[specs.CreditRuleSpec]:
    from agentlightning.credit.scoring.rules import RULES

    return [specs.CreditRuleSpec(name, rule) for name, rule in RULES.items()]


@hookimpl
def agl_baselines() -> list[specs.BaselineSpec]:
    from agentlightning.credit.advantage.baselines import BASELINES

    return [specs.BaselineSpec(name, baseline) for name, baseline in BASELINES.items()]


@hookimpl
def agl_curricula() -> list[specs.CurriculumSpec]:
    room = "agentlightning.algorithms.curriculum.solve_rate"
    options = specs.lazy_type(f"{room}:SolveRateOptions")
    about = "prefers tasks that the policy solves sometimes, by a window of measured solve rates"
    return [specs.CurriculumSpec("solve_rate", lazily(f"{room}:solve_rate"), about, options)]


@hookimpl
def agl_trackers() -> list[specs.TrackerSpec]:
    trackers = "agentlightning.trackers"
    return [
        specs.TrackerSpec("events", lazily(f"{trackers}.events:EventsTracker")),
        specs.TrackerSpec("files", lazily(f"{trackers}.files:FilesTracker"), default=True),
        specs.TrackerSpec("console", lazily(f"{trackers}.console:ConsoleTracker"), default=True),
        specs.TrackerSpec("plot", lazily(f"{trackers}.plot:PlotTracker"), default=True),
    ]


@hookimpl
def agl_task_sets() -> list[specs.TaskSetSpec]:
    sets = {
        "math": ("math:math", "word problems, with a calculator"),
        "reasoning": ("reasoning:reasoning", "orders of people from comparisons"),
        "sql-generation": ("sql_generation:sql_generation", "questions about a small database"),
        "coding": ("coding:coding", "small Python functions, run in a process with limits"),
    }
    return [
        specs.TaskSetSpec(name, lazily(f"agentlightning.bundled.{place}"), about)
        for name, (place, about) in sets.items()
    ]


@hookimpl
def agl_import_formats() -> list[specs.ImportFormatSpec]:
    formats = {
        "otlp": "OpenTelemetry's OTLP JSON: GenAI conventions, OpenLLMetry, OpenInference",
        "v03": "spans of Agent Lightning v0.3",
        "agentops": "traces of AgentOps' API",
        "langsmith": "runs of LangSmith",
        "langfuse": "traces of Langfuse with observations and scores",
        "phoenix": "spans of Arize Phoenix",
    }
    room = "agentlightning.history.importing.formats"
    return [
        specs.ImportFormatSpec(name, about, lazily(f"{room}.{name}:is_mine"), lazily(f"{room}.{name}:read"))
        for name, about in formats.items()
    ]


@hookimpl
def agl_commands() -> list[specs.CommandSpec]:
    commands = {
        "init": ("init", "write a project that trains as it is"),
        "train": ("train", "train an agent"),
        "run": ("run_program", "run a program as it is, and record its model calls"),
        "eval": ("evaluate", "score an agent on tasks"),
        "store": ("servers.store", "serve a store"),
        "token": ("servers.token", "make a token of a role for a store's server, or revoke one"),
        "gateway": ("servers.gateway", "record the calls of programs that somebody else starts"),
        "runner": ("servers.runner", "run an agent on a store's rollouts"),
        "doctor": ("doctor", "look a run over before it costs anything"),
        "runs": ("inspect.runs", "list runs"),
        "top": ("inspect.top", "watch runs while they train"),
        "rollouts": ("inspect.rollouts", "list the rollouts of a run"),
        "logs": ("inspect.logs", "print or follow the log of runs"),
        "compare": ("inspect.compare", "compare two runs"),
        "trace": ("inspect.trace", "show what an attempt did"),
        "explain": ("inspect.explain", "explain a rollout, a call or a token"),
        "verify": ("inspect.verify", "compare a store with what was trained from it"),
        "rescore": ("history.rescore", "score stored rollouts with another reward function"),
        "lineage": ("history.lineage", "trace a policy, a run or a prompt back to what it was made of"),
        "import": ("history.importing", "bring in traces that other tools recorded"),
        "chats": ("history.chats", "write stored rollouts as chats for fine-tuning"),
        "export": ("export", "export a trained policy as a model folder"),
        "serve": ("servers.serve", "serve a policy over the OpenAI API"),
        "plugins": ("plugins", "list plugins and their hooks"),
    }
    return [
        specs.CommandSpec(name, lazily(f"agentlightning.cli.{module}:register"), about)
        for name, (module, about) in commands.items()
    ]
