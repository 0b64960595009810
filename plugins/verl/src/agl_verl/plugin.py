"""The plugin ``verl``: registers the driver. Nothing heavy is imported until a driver is made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import Driver, DriverSpec
from agentlightning.types import Recipe

from .honours import HONOURS, REFUSES


def make_driver(
    *,
    policy: str | Path,
    name: str,
    recipe: Recipe,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Driver:
    """A ``VerlDriver``; see there."""
    from .driver import VerlDriver

    return VerlDriver(policy, name, recipe, seed=seed, options=options)


def facts(options: Mapping[str, Any]) -> dict[str, str]:
    """See ``machine.facts``."""
    from . import machine

    return machine.facts(options)


@hookimpl
def agl_drivers() -> list[DriverSpec]:
    """verl's own trainer: one machine's CPU, or GPUs by Ray."""
    about = "verl's trainer, unforked: Ray, FSDP, CPU and GPUs"
    return [DriverSpec("verl", make_driver, HONOURS, about, facts=facts, refuses=REFUSES)]
