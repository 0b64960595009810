"""Registers the driver ``tinker`` and the command ``agl tinker``. Nothing heavy is imported until one is
used.
"""

from __future__ import annotations

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import CommandSpec, DriverSpec, lazily
from agl_tinker.supported_fields import SUPPORTED_FIELDS, UNSUPPORTED_FIELDS


@hookimpl
def agl_drivers() -> list[DriverSpec]:
    """The driver whose weights are on a server of the Tinker API."""
    return [
        DriverSpec(
            "tinker",
            lazily("agl_tinker.driver:TinkerDriver"),
            SUPPORTED_FIELDS,
            "adapters trained on a server of the Tinker API, hosted or your own",
            environment_info=lazily("agl_tinker.machine:environment_info"),
            unsupported_fields=UNSUPPORTED_FIELDS,
            paid=True,
            ends_early=True,
            together=lazily("agl_local.peers:train_together"),
            serve=lazily("agl_tinker.driver:Remote"),
        )
    ]


@hookimpl
def agl_commands() -> list[CommandSpec]:
    return [
        CommandSpec("tinker", lazily("agl_tinker.command:register"), "serve the Tinker API on this machine")
    ]
