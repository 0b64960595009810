"""The plugin ``local``: registers the driver, the commands ``agl policy`` and ``agl sft``, and the pretrained
models.

Nothing heavy is imported until one of them is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import CommandSpec, Driver, DriverSpec, Inspector, PolicySpec, Server, lazily
from agentlightning.types import Recipe
from agentlightning.types.work import PolicyFolder
from agl_local.policy.bundled import TINY, tiny_policy
from agl_local.policy.catalogue import CATALOGUE
from agl_local.supported_fields import SUPPORTED_FIELDS, UNSUPPORTED_FIELDS

if TYPE_CHECKING:
    from agentlightning.types.sections import TrainingSection


def make_driver(policy: PolicyFolder, recipe: Recipe, training: TrainingSection) -> Driver:
    """A ``LocalDriver``; see there."""
    from agl_local.driver import LocalDriver

    return LocalDriver(policy, recipe, training)


def environment_info(options: Mapping[str, Any]) -> dict[str, str]:
    """See ``machine.environment_info``."""
    from agl_local import machine

    return machine.environment_info(options)


def make_server(policy: PolicyFolder) -> Server:
    """A ``LocalServer``; see there."""
    from agl_local.serving import LocalServer

    return LocalServer(policy)


def serve_forever(policy: Path, name: str, options: Sequence[str]) -> int:
    """Run ``agl_local.http.server`` in this process, with its options."""
    from agl_local.http.server import main

    return main(["--policy", str(policy), "--name", name, *options])


def finetune(
    policy: str, chats: str, output: Path, held_out: str | None, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Do what ``agl sft`` does; ``settings``: the fields of ``SftSettings``."""
    from agl_local.cores import auto_threads
    from agl_local.sft.finetune import SftSettings
    from agl_local.sft.job import load_chats, run

    val = load_chats(held_out, "val") if held_out else None
    return run(
        policy, load_chats(chats, "data"), output, SftSettings(**settings), val=val, threads=auto_threads()
    )


def fetch_policy(name: str) -> Path:
    """Return the folder of a model, fetched on first use; see ``policy.fetch.first_use``."""
    from agl_local.policy.fetch import first_use

    return first_use(name).path


def make_inspector(policy: Path) -> Inspector:
    """A ``LocalInspector``; see there."""
    from agl_local.inspect import LocalInspector

    return LocalInspector(policy)


@hookimpl
def agl_drivers() -> list[DriverSpec]:
    """The driver that learns on one machine, a laptop's CPU included."""
    return [
        DriverSpec(
            "local",
            make_driver,
            SUPPORTED_FIELDS,
            "embedded engine and trainer in plain torch: CPU, CUDA, MPS",
            unsupported_fields=UNSUPPORTED_FIELDS,
            inspect=make_inspector,
            environment_info=environment_info,
            ends_early=True,
            together=lazily("agl_local.bases:train_together"),
            serve=make_server,
            serve_forever=serve_forever,
            finetune=finetune,
        )
    ]


@hookimpl
def agl_commands() -> list[CommandSpec]:
    """The commands that fetch and fine-tune pretrained models."""
    return [
        CommandSpec("policy", lazily("agl_local.command:register"), "make, check and fetch policies"),
        CommandSpec("sft", lazily("agl_local.sft.command:register"), "fine-tune a policy on chats"),
    ]


@hookimpl
def agl_policies() -> list[PolicySpec]:
    """The policy that comes with the package, the models of the catalogue, and those of the hub."""
    return [
        PolicySpec(TINY, tiny_policy, "half a million parameters, taught the task set math"),
        PolicySpec("adapter:", fetch_policy, "a folder with an adapter of LoRA", prefix=True),
        *(
            PolicySpec(model.name, partial(fetch_policy, model.name), model.source)
            for model in CATALOGUE.values()
        ),
        PolicySpec("hub:", fetch_policy, "owner/name of the Hugging Face hub", prefix=True),
    ]
