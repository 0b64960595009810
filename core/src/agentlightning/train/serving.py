"""Starts the engines of a run's policies and opens the gateway's routes to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec

from agentlightning.algorithms.multi_policy import MultiPolicyDriver
from agentlightning.gateway import SamplingPolicy
from agentlightning.gateway.base import RunGateway
from agentlightning.plugins.manager import Plugins, pick
from agentlightning.specs import Driver, DriverSpec, PeerDriver
from agentlightning.train.config import RunConfig
from agentlightning.train.policies import POLICY, Policies, route
from agentlightning.types import LLM, Recipe
from agentlightning.types.base import ConfigError
from agentlightning.types.work import PolicyFolder

SHARED_OPTIONS = ("save_every", "deterministic")
"""Driver options that must be equal for all policies of a run."""


async def serve(
    config: RunConfig, recipe: Recipe, plugins: Plugins, gateway: RunGateway, stack: AsyncExitStack
) -> Driver | MultiPolicyDriver | None:
    """Start the engines of the run's policies and open the routes to them; ``stack`` closes the engines.

    Returns the driver of the trained policies, ``None`` if no policy is trained.
    """
    policies, options = config.served, config.backend.options
    if not policies.trained and all(isinstance(one, LLM) for one in policies.frozen.values()):
        for name, given in policies.frozen.items():  # endpoints alone need no driver
            gateway.add_route(route(name, cast(LLM, given)))
        return None
    spec = driver_spec(plugins, config.backend.driver, policies)
    trained = [with_options(folder, options) for folder in policies.trained.values()]
    _check_shared_options(trained, spec)
    drivers: dict[str, Driver] = {}
    for folder in trained:
        name = folder.name
        driver = drivers[name] = spec.factory(folder, recipe, config.training)
        stack.push_async_callback(driver.close)
        llm = with_limits(await driver.start(), Path(folder.path))
        more = {"trainable": True, "seeded": policies.named, "version": partial(getattr, driver, "version")}
        gateway.add_route(route(name, llm, settings=config.gateway, **more))
        gateway.policy_sampling(
            name, SamplingPolicy(temperature=recipe.temperature, top_p=recipe.top_p, top_k=recipe.top_k)
        )
    for name, given in policies.frozen.items():
        if isinstance(given, LLM):
            gateway.add_route(route(name, given))
            continue
        assert spec.serve is not None
        server = spec.serve(with_options(given, options))
        stack.push_async_callback(server.close)
        llm = with_limits(await server.start(), Path(given.path))
        gateway.add_route(route(name, llm, settings=config.gateway, seeded=True))
    if not policies.named:
        return drivers.get(POLICY)
    return MultiPolicyDriver(cast(Mapping[str, PeerDriver], drivers), gateway) if drivers else None


def with_options(folder: PolicyFolder, options: Mapping[str, Any]) -> PolicyFolder:
    """Return ``folder`` with all options of its driver: those of the run, and its own, which win."""
    return replace(folder, options={**options, **folder.options})


def with_limits(llm: LLM, folder: Path) -> LLM:
    """Return ``llm`` with the sizes of its vocabulary and context: the driver's, else those of the folder's
    ``config.json``.
    """
    try:
        config = msgspec.json.decode((folder / "config.json").read_bytes())
    except (OSError, ValueError):  # no folder in Hugging Face layout: the sizes stay unknown
        return llm
    return msgspec.structs.replace(
        llm,
        vocabulary=llm.vocabulary or _size(config, "vocab_size"),
        context=llm.context or _size(config, "max_position_embeddings"),
    )


def _size(config: Any, name: str) -> int | None:
    """Return a size of a model's configuration; it may stand in the configuration of the text part."""
    for part in (config, config.get("text_config")) if isinstance(config, dict) else ():
        if isinstance(part, dict) and type(size := part.get(name)) is int and size > 0:
            return int(size)
    return None


def driver_spec(plugins: Plugins, driver: str, policies: Policies) -> DriverSpec:
    """Return the driver's spec. Raise :class:`ConfigError` if the driver cannot serve ``policies``."""
    spec = pick(plugins.drivers, "driver", driver)
    if policies.named and policies.trained and not spec.multi_policy:
        able = ", ".join(sorted(name for name, other in plugins.drivers.items() if other.multi_policy))
        raise ConfigError(
            f"driver {driver!r} trains one policy a run: give policy the folder of one, not a mapping "
            f"(several are for: {able})"
        )
    folders = [name for name, given in policies.frozen.items() if isinstance(given, PolicyFolder)]
    if folders and spec.serve is None:
        raise ConfigError(
            f"policy {folders[0]!r}: driver {driver!r} serves no policy that it does not train; serve it "
            "yourself and give its endpoint"
        )
    return spec


def _check_shared_options(trained: Sequence[PolicyFolder], spec: DriverSpec) -> None:
    for key in SHARED_OPTIONS:
        values = {folder.name: folder.options.get(key) for folder in trained}
        if len({repr(value) for value in values.values()}) > 1:
            listed = ", ".join(f"{name}: {value}" for name, value in values.items())
            raise ConfigError(
                f"options.{key}: driver {spec.name!r} needs one value for all policies of a run ({listed}); "
                "set it in the options of the run"
            )
