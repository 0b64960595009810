"""Registers commands that look at runs, their log and behaviour, formats of traces, and learning from stored
rollouts.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

from agentlightning import specs
from agentlightning.hookspecs import hookimpl
from agentlightning.specs import lazily, lazy_type
from agl_audit import hookspecs
from agl_audit.hookspecs import ImportFormatSpec

_COMMANDS = {
    "eval": ("commands.evaluate", "score an agent on tasks"),
    "runs": ("commands.runs", "list runs"),
    "top": ("commands.top", "watch runs while they train"),
    "rollouts": ("commands.rollouts", "list the rollouts of a run"),
    "logs": ("commands.logs", "print or follow the log of runs"),
    "compare": ("commands.compare", "compare two runs"),
    "trace": ("commands.trace", "show what an attempt did"),
    "explain": ("commands.explain", "explain a rollout, a call or a token"),
    "verify": ("commands.verify", "compare a store with what was trained from it"),
    "export": ("commands.export", "export a trained policy as a model folder"),
    "serve": ("commands.serve", "serve a policy over the OpenAI API"),
    "rescore": ("history.commands.rescore", "score stored rollouts with another reward function"),
    "lineage": ("history.commands.lineage", "trace a policy, a run or a prompt back to what it was made of"),
    "import": ("history.commands.importing", "bring in traces that other tools recorded"),
    "chats": ("history.commands.chats", "write stored rollouts as chats for fine-tuning"),
}
_FORMATS = {
    "otlp": "OpenTelemetry's OTLP JSON: GenAI conventions, OpenLLMetry, OpenInference",
    "v03": "spans of Agent Lightning v0.3",
    "agentops": "traces of AgentOps' API",
    "langsmith": "runs of LangSmith",
    "langfuse": "traces of Langfuse with observations and scores",
    "phoenix": "spans of Arize Phoenix",
}
_OPERATIONS = (
    ("statistics", "statistics", "GET", "/statistics", "runner"),
    ("delete_run", "retention", "DELETE", "/runs/{run_id}", "admin"),
    ("prune", "retention", "POST", "/runs/prune", "admin"),
    ("add_reward_version", "reward_versions", "POST", "/rewards/versions", "trainer"),
    ("query_reward_versions", "reward_versions", "GET", "/runs/{run_id}/rewards/versions", "trainer"),
    ("add_rescored", "reward_versions", "POST", "/rewards/rescored", "trainer"),
    ("rescored", "reward_versions", "POST", "/rewards/rescored/search", "trainer"),
    ("query_spans", "trace", "GET", "/rollouts/{rollout_id}/spans", "attempt"),
    ("query_fingerprints", "fingerprints", "GET", "/runs/{run_id}/fingerprints", "trainer"),
    ("query_workers", "workers", "GET", "/workers", "trainer"),
    ("tool_runs", "tools", "POST", "/rollouts/tools", "trainer"),
    ("get_worker_by_id", "workers", "GET", "/workers/{worker_id}", "runner"),
    ("update_worker", "workers", "PATCH", "/workers/{worker_id}", "runner"),
)
"""Name, module, and the route by which a server offers it: method, path, least role."""
_STORED = {
    "sft": "fine-tunes on stored rollouts whose reward is at least `minimum`",
    "rejection": "fine-tunes on the `best` stored rollouts of each group (best of n, arXiv 2304.06767)",
    "dpo": "learns preferences from pairs of one group of stored rollouts (DPO, arXiv 2305.18290)",
}


@hookimpl
def agl_commands() -> list[specs.CommandSpec]:
    return [
        specs.CommandSpec(name, lazily(f"agl_audit.{module}:register"), about)
        for name, (module, about) in _COMMANDS.items()
    ]


@hookimpl
def agl_hookspecs() -> list[Any]:
    return [hookspecs]


@hookimpl
def agl_import_formats() -> list[ImportFormatSpec]:
    room = "agl_audit.history.importing.formats"
    return [
        ImportFormatSpec(name, about, lazily(f"{room}.{name}:is_mine"), lazily(f"{room}.{name}:read"))
        for name, about in _FORMATS.items()
    ]


@hookimpl
def agl_algorithms() -> list[specs.AlgorithmSpec]:
    learning = lazily("agl_audit.stored.learning:StoredLearning")
    recipe = lazily("agl_audit.stored.learning:stored_recipe")
    return [
        specs.AlgorithmSpec(name, partial(learning, method=name), about, partial(recipe, name))
        for name, about in _STORED.items()
    ]


@hookimpl
def agl_sections() -> list[specs.SectionSpec]:
    return [specs.SectionSpec("log", "", lazy_type("agl_audit.run_log:LoggedRun"))]


@hookimpl
def agl_batch_edits(config: Any) -> specs.BatchEdit | None:
    if not config.training.steps or config.trackers == []:  # nobody is told of the run
        return None
    from agl_audit.behaviour.watch import BehaviourWatch

    return BehaviourWatch(config.training.failure)


@hookimpl
def agl_run_services() -> list[specs.RunServiceSpec]:
    about = "writes the log of a run, and that of all runs"
    return [specs.RunServiceSpec("log", about=about, open_in=_log)]


def _log(config: Any, folder: Path) -> AbstractAsyncContextManager[object] | None:
    if config.trackers == []:  # nobody is told of the run
        return None
    from agl_audit.run_log import log_of_all_runs, logging_run

    # A description that was read without this plugin has no such field.
    return logging_run(folder, log_of_all_runs(getattr(config, "log", None)))


@hookimpl
def agl_store_operations() -> list[specs.StoreOperationSpec]:
    return [
        specs.StoreOperationSpec(name, lazy_type(f"agl_audit.store.{module}:{name}"), *route)
        for name, module, *route in _OPERATIONS
    ]


@hookimpl
def agl_names() -> dict[str, str]:
    return {name: f"agl_audit.store.reward_versions:{name}" for name in ("Rescored", "RewardVersion")}
