"""Registers the driver ``tinker`` and the command ``agl tinker``. Nothing heavy is imported until one is
used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import CommandSpec, Driver, DriverSpec, Server, lazily
from agentlightning.types import Recipe
from agentlightning.types.work import PolicyFolder
from agl_tinker.supported_fields import SUPPORTED_FIELDS, UNSUPPORTED_FIELDS

if TYPE_CHECKING:
    from agentlightning.types.sections import TrainingSection


def make_driver(policy: PolicyFolder, recipe: Recipe, training: TrainingSection) -> Driver:
    """A ``TinkerDriver``; see there."""
    from agl_tinker.driver import TinkerDriver

    return TinkerDriver(policy, recipe, training)


def make_server(policy: PolicyFolder) -> Server:
    """A policy of the server that is not trained."""
    from agl_tinker.driver import Remote

    return Remote(policy)


def environment_info(options: Mapping[str, Any]) -> dict[str, str]:
    """See ``machine.environment_info``."""
    from agl_tinker import machine

    return machine.environment_info(options)


@hookimpl
def agl_drivers() -> list[DriverSpec]:
    """The driver whose weights are on a server of the Tinker API."""
    return [
        DriverSpec(
            "tinker",
            make_driver,
            SUPPORTED_FIELDS,
            "adapters trained on a server of the Tinker API, hosted or your own",
            environment_info=environment_info,
            unsupported_fields=UNSUPPORTED_FIELDS,
            ends_early=True,
            multi_policy=True,
            serve=make_server,
        )
    ]


@hookimpl
def agl_commands() -> list[CommandSpec]:
    return [
        CommandSpec("tinker", lazily("agl_tinker.command:register"), "serve the Tinker API on this machine")
    ]
