"""Scripted policies, e.g. an oracle and chance, that bound how much a run may gain: ``environment.headroom``.

They answer through the run's gateway, as its own policies do, and after the evaluation before training.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from pydantic import Field

from agentlightning.algorithms.context import Context
from agentlightning.gateway import Upstream
from agentlightning.train.config import RunConfig
from agentlightning.train.configured import import_target
from agentlightning.types import Evaluation
from agentlightning.types.base import ConfigError
from agentlightning.types.sections import Section, Text
from agl_testing.scripted import Script, ScriptedModelServer

LITTLE = 15
"""Points of headroom under which a task teaches a policy nothing."""


class ScriptedEnvironment(Section):
    """Scripted policies to compare with."""

    headroom: dict[str, Text] = {}
    """Scripted policies that bound the possible gain, e.g. ``oracle: calc_x.oracle:reply``: each maps tasks
    to the script of a ScriptedModelServer."""
    headroom_tasks: int = Field(default=100, ge=1)
    """Held-out tasks that scripted policies answer."""


def headroom_of(config: RunConfig) -> Headroom | None:
    """Return the comparison that a run's description asks for. Raise :class:`ConfigError` for a policy that
    cannot be imported, or has the name of one of the run.
    """
    section: Any = config.environment
    if not isinstance(section, ScriptedEnvironment):
        return None
    if clash := sorted({*section.headroom} & {*config.served.names}):
        raise ConfigError(f"headroom: {clash[0]!r} is the name of a policy; choose another")
    scripts = {
        name: import_target(one, f"environment.headroom.{name}") if isinstance(one, str) else one
        for name, one in section.headroom.items()
    }
    return Headroom(scripts, section.headroom_tasks)


class Headroom:
    """Measures scripted policies (:class:`agentlightning.specs.Comparison`). ``scripts``: name → what makes
    a script of the held-out tasks; ``tasks``: on how many of them each is measured.
    """

    name = "headroom"

    def __init__(self, scripts: Mapping[str, Callable[[Any], Script]], tasks: int) -> None:
        self._scripts, self._tasks = scripts, tasks

    @asynccontextmanager
    async def open(self, context: Context) -> AsyncIterator[None]:
        """Serve the policies while the block runs; none in a run without held-out tasks."""
        async with AsyncExitStack() as stack:
            for name, script_for in self._scripts.items() if context.val else ():
                server = ScriptedModelServer(script_for(context.val), model=name, ids="always")
                await server.start()
                stack.push_async_callback(server.stop)
                context.gateway.add_route(Upstream(policy=name, url=server.url, model=name, trainable=False))
                context.resources.compared.append(name)
            yield

    async def measure(self, context: Context, before: Evaluation | None) -> dict[str, float]:
        """Return and print the rewards of the present policy and of the scripted ones, if there are any."""
        if before is None or not self._scripts:
            return {}
        found, tasks = {"policy": before.reward}, context.val[: self._tasks]
        for name in self._scripts:
            found[name] = (await context.evaluate(tasks, name=name, policy=name)).reward
        room = 100 * (found.get("oracle", 1.0) - before.reward)
        scores = ", ".join(f"{name} {value:.3f}" for name, value in found.items())
        context.say(f"Headroom: {scores} → {room:.0f} points to gain")
        if room < LITTLE:
            context.say(f"Under {LITTLE} points of headroom: this task will teach this policy nothing.")
        return found
