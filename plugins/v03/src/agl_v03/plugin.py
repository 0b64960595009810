"""Registers what programs for Agent Lightning 0.1 to 0.3 name, give a trainer, and expect of a runner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import StoreOperationSpec, TrainerPart, lazy_type
from agentlightning.types import Span


@hookimpl
def agl_names() -> dict[str, str]:
    from agl_v03.former_names import table

    return {name: place for name, place in table()["names"].items() if "." not in name}


@hookimpl
def agl_missing(module: str, name: str) -> Any:
    from agl_v03.former_names import find_module, find_name

    return find_name(module, name) if name else find_module(module)


@hookimpl
def agl_trainer_arguments(given: dict[str, Any]) -> TrainerPart:
    from agl_v03.trainer_arguments import FormerTrainer

    return FormerTrainer(given)


@hookimpl
def agl_reward_formats() -> list[Callable[[Span], Span]]:
    from agl_v03.reward_formats import as_reward_span

    return [as_reward_span]


@hookimpl
def agl_agents(agent: Any, trainer: Any) -> Any:
    from agl_v03.hooks import HookedAgent
    from agl_v03.trainer_arguments import agent_of

    return HookedAgent(agent) if trainer is None else agent_of(trainer, agent)


_ATTEMPT = "/rollouts/{rollout_id}/attempts/{attempt_id}"
_OPERATIONS = (
    ("get_next_span_sequence_id", f"{_ATTEMPT}/number"),
    ("get_many_span_sequence_ids", "/spans/numbers"),
    ("add_numbered_spans", "/spans/numbered"),
)
"""Name, and the path by which a server offers it."""


@hookimpl
def agl_store_operations() -> list[StoreOperationSpec]:
    return [
        StoreOperationSpec(name, lazy_type(f"agl_v03.stores.numbers:{name}"), "POST", path, "runner")
        for name, path in _OPERATIONS
    ]
