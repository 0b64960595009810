"""The plugin ``verl``: registers the driver. Nothing heavy is imported until a driver is made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import Driver, DriverSpec
from agentlightning.types import Recipe
from agl_verl.supported_fields import SUPPORTED_FIELDS, UNSUPPORTED_FIELDS


def make_driver(
    *,
    policy: str | Path,
    name: str,
    recipe: Recipe,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Driver:
    """A ``VerlDriver``; see there."""
    from agl_verl.driver import VerlDriver

    return VerlDriver(policy, name, recipe, seed=seed, options=options)


def environment_info(options: Mapping[str, Any]) -> dict[str, str]:
    """See ``machine.environment_info``."""
    from agl_verl.process import machine

    return machine.environment_info(options)


@hookimpl
def agl_drivers() -> list[DriverSpec]:
    """verl's own trainer: one machine's CPU, or GPUs by Ray."""
    about = "verl's trainer, unforked: Ray, FSDP, CPU and GPUs"
    return [
        DriverSpec(
            "verl",
            make_driver,
            SUPPORTED_FIELDS,
            about,
            environment_info=environment_info,
            unsupported_fields=UNSUPPORTED_FIELDS,
        )
    ]
