"""Starts the engines of a run's policies and opens the gateway's routes to them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec

from agentlightning.gateway import SamplingPolicy
from agentlightning.gateway.base import RunGateway
from agentlightning.plugins.manager import Plugins, pick
from agentlightning.specs import DriverSpec, StartedDriver
from agentlightning.train.config import RunConfig
from agentlightning.train.policies import POLICY, Policies, route
from agentlightning.types import LLM, Recipe
from agentlightning.types.base import ConfigError
from agentlightning.types.work import PolicyFolder


async def serve(
    config: RunConfig, recipe: Recipe, plugins: Plugins, gateway: RunGateway, stack: AsyncExitStack
) -> StartedDriver | None:
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
    drivers = {folder.name: spec.factory(folder, recipe, config.training) for folder in trained}
    group = spec.together(trained, drivers, gateway) if spec.together and policies.named and drivers else None
    for folder in trained:
        name, driver = folder.name, drivers[folder.name]
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
    return group or drivers.get(POLICY)


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
    if policies.named and policies.trained and spec.together is None:
        able = ", ".join(sorted(name for name, other in plugins.drivers.items() if other.together)) or "local"
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
