"""Registers the driver ``verl``, ``agl.VERL``, PPO with its credit rule, and an estimator of verl's that core
has not. Nothing heavy is imported until a driver is made.
"""

from __future__ import annotations

from typing import Any

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import BaselineSpec, CreditRuleSpec, DriverSpec, RecipeSpec, lazily
from agl_verl.supported_fields import SUPPORTED_FIELDS, UNSUPPORTED_FIELDS


@hookimpl
def agl_drivers() -> list[DriverSpec]:
    """verl's own trainer: one machine's CPU, or GPUs by Ray."""
    about = "verl's trainer, unforked: Ray, FSDP, CPU and GPUs"
    return [
        DriverSpec(
            "verl",
            lazily("agl_verl.driver:VerlDriver"),
            SUPPORTED_FIELDS,
            about,
            environment_info=lazily("agl_verl.process.machine:environment_info"),
            unsupported_fields=UNSUPPORTED_FIELDS,
        )
    ]


@hookimpl
def agl_recipes() -> list[RecipeSpec]:
    return [
        RecipeSpec("grpo_passk", lazily("agl_verl.pass_at_k:GRPOPassK"), "arXiv 2503.19595"),
        RecipeSpec("ppo", lazily("agl_verl.ppo:PPO"), "arXiv 1707.06347"),
    ]


@hookimpl
def agl_credit_rules() -> list[CreditRuleSpec]:
    return [CreditRuleSpec("returns", lazily("agl_verl.ppo:returns"))]


@hookimpl
def agl_baselines() -> list[BaselineSpec]:
    return [BaselineSpec("passk", lazily("agl_verl.pass_at_k:passk"))]


@hookimpl
def agl_names() -> dict[str, str]:
    return {"PPO": "agl_verl.ppo:PPO", "VERL": "agl_verl.tree:VERL"}


@hookimpl
def agl_trainer_arguments(given: dict[str, Any]) -> None:
    from agl_verl.tree import VERL

    if isinstance(algorithm := given["algorithm"], VERL):
        given.update(algorithm.fields(given))
