"""Opens the parts of an ``agl run``: store, gateway, engine and collector; and runs its rollouts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agentlightning.capture.context import AttemptContext, current_attempt
from agentlightning.gateway import Gateway, Upstream
from agentlightning.gateway.settings import CallSection, GatewaySection
from agentlightning.keys import Keys
from agentlightning.plugins.manager import Plugins, load, pick
from agentlightning.plugins.stores import open_store
from agentlightning.runner.runner import Runner, notify_rewards
from agentlightning.specs import Server
from agentlightning.store import Store
from agentlightning.store.pages import pages
from agentlightning.train.policies import route
from agentlightning.train.run_folder import RunFolder, new_run_folder, open_run_folder
from agentlightning.types import ProxyLLM, Rollout, RolloutConfig, new_id
from agentlightning.types.sections import TrainingSection
from agentlightning.types.work import PolicyFolder
from agl_cluster.gateways.watched import WatchedGateway
from agl_programs.collector import Collector
from agl_programs.options import POLICY, ProgramOptions
from agl_programs.process import Processes

Work = Callable[[AttemptContext], Awaitable[float | None]]
"""Does the work of an attempt and returns its reward."""


@dataclass(slots=True, eq=False)
class ProgramSession:
    """The open parts of one ``agl run``."""

    options: ProgramOptions
    run_id: str
    folder: Path | None
    store_location: str
    """The store as a user names it."""
    store: Store
    gateway: Gateway
    plugins: Plugins
    collector: Collector
    spans_url: str
    """Server to which programs send their spans."""
    scratch: Path
    """Folder for reward files: the run's folder, else a temporary one."""
    resources_id: str
    worker_id: str = field(default_factory=partial(new_id, "worker"))
    processes: Processes = field(default_factory=Processes)
    entries: list[str] = field(default_factory=list)
    """Rollouts of entries."""

    async def run_rollout(self, task: Any, work: Work, **fields: Any) -> Rollout:
        """Start a rollout, do its work, and return the rollout at its end."""

        async def agent(task: Any) -> float | None:
            context = current_attempt()
            assert context is not None
            return await work(context)

        runner = Runner(
            agent,
            self.store,
            attempt_keys=self.gateway,
            plugins=self.plugins,
            worker_id=self.worker_id,
            own_loop=False,
        )
        queued = await self.store.enqueue_rollout(
            task,
            resources_id=self.resources_id,
            run_id=self.run_id,
            config=RolloutConfig(
                timeout_seconds=self.options.timeout, max_attempts=1, trusted=self.options.trusted
            ),
            **{**fields, "metadata": {**fields["metadata"], "tags": dict(self.options.tags)}},
        )
        lease = await self.store.start_attempt(queued.rollout_id, worker_id=self.worker_id)
        return await runner.run_lease(lease)

    async def notify_rewards(self, context: AttemptContext) -> None:
        """Notify plugins of the rewards that the program emitted. The runner does so for returned rewards."""
        if not self.plugins.has_listeners("agl_reward_emitted"):
            return
        async for page in pages(self.store.spans, context.rollout_id):
            notify_rewards(self.plugins, page)


@asynccontextmanager
async def open_session(
    options: ProgramOptions, plugins: Plugins | None = None
) -> AsyncIterator[ProgramSession]:
    """Open a session. On exit everything is closed in reverse order."""
    plugins = plugins or load()
    async with AsyncExitStack() as stack:
        run, run_id, folder, place = _open_run_folder(options, stack)
        store = open_store(place, plugins=plugins)
        store.act_as("trainer")
        stack.push_async_callback(store.close)
        keys = Keys.from_env()
        listen = GatewaySection(listen=options.listen)
        gateway = WatchedGateway(store, keys, listen, CallSection(select=options.select))
        stack.push_async_callback(gateway.stop)
        await gateway.start()
        gateway.add_route(await _upstream(options, plugins, stack))
        collector = Collector(store, keys)
        stack.push_async_callback(collector.stop)
        spans_url = await collector.start()
        published = await store.add_resources({POLICY: ProxyLLM(endpoint=gateway.url, model=POLICY)})
        if run is not None:
            run.started = True
        yield ProgramSession(
            options=options,
            run_id=run_id,
            folder=folder,
            store_location=place,
            store=store,
            gateway=gateway,
            plugins=plugins,
            collector=collector,
            spans_url=spans_url,
            scratch=folder or Path(stack.enter_context(TemporaryDirectory(prefix="agl-run-"))),
            resources_id=published.resources_id,
        )


def _open_run_folder(
    options: ProgramOptions, stack: AsyncExitStack
) -> tuple[RunFolder | None, str, Path | None, str]:
    """Open the run's folder, and return the run, its id, folder and store. A run that records in another
    store has no folder.
    """
    if options.store is not None:
        return None, options.run_id or new_id("run"), None, options.store
    run = (
        new_run_folder(options.output, options.name)
        if options.run_id is None
        else open_run_folder(options.output, options.name, 0, run=options.run_id)
    )
    stack.callback(run.close)
    return run, run.run_id, run.folder, str(run.folder / "store.sqlite")


async def _upstream(options: ProgramOptions, plugins: Plugins, stack: AsyncExitStack) -> Upstream:
    """Return the route to the engine that the options name, or to one started here on the policy's folder."""
    if (named := options.engine()) is not None:
        return named
    spec = pick(plugins.drivers, "driver", options.driver)
    folder = PolicyFolder(options.policy_folder(), train=False, name=POLICY)
    if spec.serve is not None:
        engine: Server = spec.serve(folder)
    else:
        engine = spec.factory(folder, plugins.recipes["grpo"].factory(), TrainingSection(seed=0))
    stack.push_async_callback(engine.close)
    return route(POLICY, await engine.start(), trainable=not options.frozen, version=lambda: 0)
