"""All that ``agl run`` needs, open: store, gateway, engine, collector; and the rollouts that are run with it.

A process of the program is an attempt like any other: :class:`~agentlightning.runner.Runner` leases it, keeps
its lease and its time, and settles it; its "agent" starts the process and waits. An entry's attempt waits for
the word of the process that called it.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agentlightning.capture.context import AttemptContext, current_attempt
from agentlightning.capture.emit.rewards import find_reward_spans, reward_of
from agentlightning.decorator.agents import LitAgent
from agentlightning.gateway import Gateway, Upstream
from agentlightning.keys import Keys
from agentlightning.plugins.manager import Plugins, load, pick
from agentlightning.run_program.collector import Collector, ConnectedProgram, EntryRefused
from agentlightning.run_program.environment import environment
from agentlightning.run_program.inside.messages import BeginEntry, EndEntry, EntryBegun
from agentlightning.run_program.inside.settings import ChildSettings
from agentlightning.run_program.inside.start import SDKS
from agentlightning.run_program.options import POLICY, ProgramOptions, executable
from agentlightning.run_program.process import (
    NOT_EXECUTED,
    Processes,
    ProgramFailed,
    RewardFile,
    describe_program_exit,
    run_process,
)
from agentlightning.runner import Runner
from agentlightning.specs import Server
from agentlightning.store import Store, StoreError, open_store
from agentlightning.store.pages import pages
from agentlightning.train.run_folder import RunFolder, new_run_folder, open_run_folder
from agentlightning.types import ProxyLLM, Resource, Rollout, RolloutConfig, new_id

REWARD_FILE = "AGL_REWARD_FILE"
"""Variable that names the file a program may write its reward into."""
Work = Callable[[AttemptContext], Awaitable[float | None]]


@dataclass(slots=True)
class ProcessResult:
    """A process of the program, to its end. ``code``: negative for a signal; ``None``: its time was up.
    ``rollout`` is ``None`` where its end could not be stored; ``store_error`` then says why.
    """

    rollout: Rollout | None
    code: int | None
    program: ConnectedProgram | None
    store_error: str | None = None


class EntryFailed(Exception):
    """An entry raised; the message is its error's."""


_ENDED_IN_ENTRY = "the program ended before its entry returned"


class _ScheduledWork(LitAgent[Any]):
    """What the runner runs: the work that was registered for a rollout."""

    def __init__(self) -> None:
        self.by_rollout: dict[str, Work] = {}

    async def rollout_async(self, task: Any, resources: dict[str, Resource], rollout: Rollout) -> Any:
        context = current_attempt()
        assert context is not None
        return await self.by_rollout[rollout.rollout_id](context)


@dataclass(slots=True, eq=False)
class Session:
    """Runs processes of the program. ``store_location``: of the store, as a person would name it."""

    options: ProgramOptions
    run_id: str
    folder: Path | None
    store_location: str
    store: Store
    plugins: Plugins
    runner: Runner
    collector: Collector
    spans_url: str
    """Where programs send their spans."""
    scratch: Path
    """Where programs may write their reward; gone with the session where there is no run folder."""
    watched: list[str]
    resources_id: str
    scheduled: _ScheduledWork
    processes: Processes = field(default_factory=Processes)
    entries: list[str] = field(default_factory=list)
    """Rollouts of entries."""

    async def run_process(self, index: int, started: Callable[[], None] = lambda: None) -> ProcessResult:
        """Run one process on the task of that index."""
        task = self.options.tasks[index]
        one = _Process(self, task, started)
        host = {"program": self.options.name, "entries": self.options.per_entry}
        mode = "val" if self.options.per_entry else "train"  # what is trained is then in the entries
        try:
            rollout = await self.run_rollout(task, one.work, metadata=host, task_id=str(index), mode=mode)
        except StoreError as error:
            if one.code is None:  # it never ran, or was stopped by us: there is no status to keep
                raise
            return ProcessResult(None, one.code, one.program, str(error))
        return ProcessResult(rollout, one.code, one.program)

    async def run_rollout(self, task: Any, work: Work, **fields: Any) -> Rollout:
        """Make a rollout, lease it, and do its work; the rollout as it then stands."""
        queued = await self.store.enqueue_rollout(
            task,
            resources_id=self.resources_id,
            run_id=self.run_id,
            config=RolloutConfig(timeout_seconds=self.options.timeout, max_attempts=1),
            **{**fields, "metadata": {**fields["metadata"], "tags": dict(self.options.tags)}},
        )
        self.scheduled.by_rollout[queued.rollout_id] = work
        try:
            lease = await self.store.start_attempt(queued.rollout_id, worker_id=self.runner.worker_id)
            return await self.runner.run_lease(lease)
        finally:
            del self.scheduled.by_rollout[queued.rollout_id]

    async def notify_rewards(self, context: AttemptContext) -> None:
        """Tell plugins the rewards that the program emitted for an attempt, which it sent to the store."""
        if not self.plugins.has_listeners("agl_reward_emitted"):
            return
        ids = {"rollout_id": context.rollout_id, "attempt_id": context.attempt_id}
        async for page in pages(self.store.query_spans, context.rollout_id):
            for reward in filter(None, map(reward_of, find_reward_spans(page))):
                self.plugins.notify("agl_reward_emitted", reward=reward, **ids)


class _Process:
    """One process: its attempt's work, and the entries that it opens attempts for."""

    def __init__(self, session: Session, task: Any, started: Callable[[], None]) -> None:
        self._session, self._task, self._started = session, task, started
        self._entries: dict[str, tuple[asyncio.Future[EndEntry], asyncio.Task[Rollout]]] = {}
        self._entry_tasks: set[asyncio.Task[Rollout]] = set()
        self._ended = False
        self.code: int | None = None
        self.program: ConnectedProgram | None = None

    async def work(self, context: AttemptContext) -> float | None:
        """Run the process; its reward, if it wrote one. :class:`ProgramFailed` if it failed."""
        session, options = self._session, self._session.options
        reward = RewardFile(self._reward_file(context))
        variables = environment(
            os.environ, _child_settings(session, context, self._task), session.watched, options.api_key_env
        )
        variables[REWARD_FILE] = str(reward.path)
        program = self.program = session.collector.admit(context.attempt_id)
        if options.per_entry:
            program.begin, program.end = self._begin_entry, self._end_entry
        command = options.arguments(self._task)
        command[0] = executable(command[0], variables)
        try:
            self.code = await run_process(command, variables, session.processes, self._started)
        except (OSError, ValueError) as error:
            self.code = NOT_EXECUTED
            raise ProgramFailed(f"the program cannot be executed: {error}{_size_hint(error)}") from None
        finally:
            await session.collector.drain(program)
            session.collector.dismiss(context.attempt_id)
            await self._fail_open_entries()
            await session.notify_rewards(context)
        if self.code:
            raise ProgramFailed(describe_program_exit(self.code))
        return reward.read()

    def _reward_file(self, context: AttemptContext) -> Path:
        given = self._session.options.reward_file
        if given is not None:
            return Path(given.replace("{rollout}", context.rollout_id))
        return self._session.scratch / f"{context.rollout_id}.reward"

    # -------------------------------------------------------------------------------------------- entries
    async def _begin_entry(self, begin: BeginEntry) -> EntryBegun:
        collector = self._session.collector
        entered: asyncio.Future[EntryBegun] = asyncio.get_running_loop().create_future()
        left: asyncio.Future[EndEntry] = asyncio.get_running_loop().create_future()

        async def work(context: AttemptContext) -> float | None:
            assert self.program is not None and context.key is not None
            if self._ended:
                raise EntryFailed(_ENDED_IN_ENTRY)
            collector.admit(context.attempt_id, self.program)
            self._entries[context.attempt_id] = left, task
            entered.set_result(EntryBegun(context.rollout_id, context.attempt_id, context.key))
            try:
                end = await left
            finally:
                collector.dismiss(context.attempt_id)
                await self._session.notify_rewards(context)
            if end.error is not None:
                raise EntryFailed(end.error)
            return end.reward

        about = {"entry": begin.entry, "program": self._session.options.name}
        task = asyncio.create_task(self._session.run_rollout(begin.task, work, metadata=about))
        self._entry_tasks.add(task)
        task.add_done_callback(self._entry_tasks.discard)
        waiting: set[asyncio.Future[Any]] = {entered, task}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not entered.done():
            raise EntryRefused(str(task.exception() or "its attempt ended before it began"))
        self._session.entries.append(entered.result().rollout_id)
        return entered.result()

    async def _end_entry(self, attempt_id: str, end: EndEntry) -> None:
        found = self._entries.pop(attempt_id, None)
        if found is None:
            raise EntryRefused(f"attempt {attempt_id} is not that of an entry under way in this process")
        left, task = found
        if not left.done():
            left.set_result(end)
        await asyncio.shield(task)

    async def _fail_open_entries(self) -> None:
        """The process has ended inside of entries."""
        self._ended = True
        for attempt_id in list(self._entries):
            await self._end_entry(attempt_id, EndEntry(error=_ENDED_IN_ENTRY))
        if self._entry_tasks:  # opened or closed for a connection that was cut off
            await asyncio.wait(self._entry_tasks)


def _size_hint(error: Exception) -> str:
    if getattr(error, "errno", None) != errno.E2BIG:
        return ""
    return " (its task is in its environment, which holds about 128 kB: give it the path of a file instead)"


def _child_settings(session: Session, context: AttemptContext, task: Any) -> ChildSettings:
    assert context.key is not None and context.gateway is not None
    return ChildSettings(
        rollout_id=context.rollout_id,
        attempt_id=context.attempt_id,
        key=context.key,
        gateway=context.gateway,
        store=session.spans_url,
        run_id=session.run_id,
        model=POLICY,
        task=task,
        tags=dict(session.options.tags),
        policies=context.policies,
        adapters=list(session.options.adapters),
        per_entry=session.options.per_entry,
    )


@asynccontextmanager
async def open_session(options: ProgramOptions, plugins: Plugins | None = None) -> AsyncIterator[Session]:
    """Everything open for ``options``; closed in reverse, whatever happens."""
    plugins = plugins or load()
    async with AsyncExitStack() as stack:
        run, run_id, folder, place = _open_run_folder(options, stack)
        store = open_store(place, plugins=plugins)
        stack.push_async_callback(store.close)
        keys = Keys.from_env()
        gateway = Gateway(store, keys, select=options.select)
        stack.push_async_callback(gateway.stop)
        await gateway.start()
        gateway.add_route(await _upstream(options, plugins, stack))
        collector = Collector(store, keys)
        stack.push_async_callback(collector.stop)
        spans_url = await collector.start()
        published = await store.add_resources({POLICY: ProxyLLM(endpoint=gateway.url, model=POLICY)})
        scheduled = _ScheduledWork()
        runner = Runner(
            scheduled, store, attempt_keys=gateway, plugins=plugins, run_id=run_id, own_loop=False
        )
        if run is not None:
            run.started = True
        yield Session(
            options=options,
            run_id=run_id,
            folder=folder,
            store_location=place,
            store=store,
            plugins=plugins,
            runner=runner,
            collector=collector,
            spans_url=spans_url,
            scratch=folder or Path(stack.enter_context(TemporaryDirectory(prefix="agl-run-"))),
            watched=_watched_packages(plugins),
            resources_id=published.resources_id,
            scheduled=scheduled,
        )


def _open_run_folder(
    options: ProgramOptions, stack: AsyncExitStack
) -> tuple[RunFolder | None, str, Path | None, str]:
    """The run with its id, its folder, and its store. With a store elsewhere there is no folder."""
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
    """The engine: the one that was named, or one that serves the policy's folder from here."""
    if (named := options.engine()) is not None:
        return named
    spec = pick(plugins.drivers, "driver", options.driver)
    if spec.serve is not None:
        engine: Server = spec.serve(policy=options.policy, name=POLICY, options={})
    else:
        recipe = plugins.recipes["grpo"].factory()
        engine = spec.factory(policy=options.policy, name=POLICY, recipe=recipe, seed=0, options={})
    stack.push_async_callback(engine.close)
    llm = await engine.start()
    return Upstream(
        policy=POLICY,
        url=llm.endpoint,
        replicas=llm.replicas,
        model=llm.model,
        api_key=llm.api_key,
        trainable=not options.frozen,
        version=lambda: 0,
    )


def _watched_packages(plugins: Plugins) -> list[str]:
    """Packages whose import may begin capture in a program: ours, SDKs, and the frameworks known here. An
    environment of the program's own may have other adapters; they are found when an SDK is imported.
    """
    roots = {spec.framework.partition(".")[0] for spec in plugins.adapters.values()}
    return sorted({"agentlightning", *SDKS, *roots})


async def run_all(session: Session, ended: Callable[[ProcessResult], None]) -> list[ProcessResult]:
    """Run a process for each task, at most ``concurrency`` at a time; ``ended`` is told of each. After a
    signal that ends programs no other is started.
    """
    places = asyncio.Semaphore(session.options.concurrency)

    async def one(index: int) -> ProcessResult | None:
        async with places:
            if session.processes.ending_signal is not None:
                return None
            ran = await session.run_process(index)
        ended(ran)
        return ran

    tasks: Sequence[asyncio.Task[ProcessResult | None]] = [
        asyncio.create_task(one(index)) for index in range(len(session.options.tasks))
    ]
    try:
        return [ran for ran in await asyncio.gather(*tasks) if ran is not None]
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
