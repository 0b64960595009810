"""Attempts of a program: one for each process, and with ``--per-entry`` one for each entry that it calls.

The runner leases them and keeps their time, as it does for any agent. The work of a process's attempt is to
start the process and wait for it. The work of an entry's attempt is to wait until the process reports its
end.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentlightning.capture.context import AttemptContext
from agentlightning.child_environment import child_environment
from agentlightning.store import StoreError
from agentlightning.types import Rollout
from agl_cluster.process_tree import describe_exit
from agl_programs.collector import ConnectedProgram, entry_refused
from agl_programs.inside.messages import BeginEntry, EndEntry, EntryBegun
from agl_programs.inside.settings import ChildSettings
from agl_programs.options import executable
from agl_programs.process import (
    NOT_EXECUTED,
    ProgramFailed,
    RewardFile,
    environment,
    run_process,
    watched_packages,
)
from agl_programs.session import ProgramSession

REWARD_FILE = "AGL_REWARD_FILE"
"""Variable that names the file a program may write its reward into."""
ENDED_IN_ENTRY = "the program ended before its entry returned"


class EntryFailed(Exception):
    """An entry raised; the message is that of its error."""


class ProgramAttempt:
    """One process of the program on ``task``, and how it ended."""

    def __init__(self, session: ProgramSession, task: Any) -> None:
        self._session, self._task = session, task
        self._entries: dict[str, tuple[asyncio.Future[EndEntry], asyncio.Task[Rollout]]] = {}
        """Attempt of an open entry → the future that ends it, and its rollout."""
        self._rollouts: set[asyncio.Task[Rollout]] = set()
        self._ended = False
        self.code: int | None = None
        """Exit status of the process, negative for a signal; ``None`` if its time was up."""
        self.program: ConnectedProgram | None = None
        self.rollout: Rollout | None = None
        """The rollout at its end; ``None`` if the end could not be stored."""
        self.store_error: str | None = None
        """Why the end could not be stored."""

    async def run(self, context: AttemptContext) -> float | None:
        """Run the process and return its reward, if it wrote one; :class:`ProgramFailed` if it failed."""
        session, options = self._session, self._session.options
        reward = RewardFile(self._reward_file(context))
        settings = self._settings(context)
        base = child_environment(os.environ)
        variables = environment(base, settings, watched_packages(session.plugins), options.api_key_env)
        variables[REWARD_FILE] = str(reward.path)
        command = options.arguments(self._task)
        command[0] = executable(command[0], variables)
        program = self.program = session.collector.admit(context.attempt_id)
        if options.per_entry:
            program.begin, program.end = self._begin_entry, self._end_entry
        try:
            self.code = await run_process(command, variables, session.processes)
        except (OSError, ValueError) as error:
            self.code = NOT_EXECUTED
            raise ProgramFailed(f"the program cannot be executed: {error}{size_hint(error)}") from None
        finally:
            await session.collector.drain(program)
            session.collector.dismiss(context.attempt_id)
            await self._fail_open_entries()
            await session.notify_rewards(context)
        if self.code:
            raise ProgramFailed(f"the program {describe_exit(self.code)}")
        return reward.read()

    def _reward_file(self, context: AttemptContext) -> Path:
        given = self._session.options.reward_file
        if given is not None:
            return Path(given.replace("{rollout}", context.rollout_id))
        return self._session.scratch / f"{context.rollout_id}.reward"

    def _settings(self, context: AttemptContext) -> ChildSettings:
        session, options = self._session, self._session.options
        return ChildSettings.of(
            context,
            store=session.spans_url,
            task=self._task,
            tags=dict(options.tags),
            adapters=list(options.adapters or ()),
            per_entry=options.per_entry,
        )

    # -------------------------------------------------------------------------------------------- entries
    async def _begin_entry(self, entry: BeginEntry) -> EntryBegun:
        """Open an attempt for an entry that the process calls."""
        session, program = self._session, self.program
        begun: asyncio.Future[EntryBegun] = asyncio.get_running_loop().create_future()
        ended: asyncio.Future[EndEntry] = asyncio.get_running_loop().create_future()

        async def wait_for_end(context: AttemptContext) -> float | None:
            assert context.key is not None
            if self._ended:
                raise EntryFailed(ENDED_IN_ENTRY)
            session.collector.admit(context.attempt_id, program)
            self._entries[context.attempt_id] = ended, rollout
            begun.set_result(EntryBegun(context.rollout_id, context.attempt_id, context.key))
            try:
                end = await ended
            finally:
                session.collector.dismiss(context.attempt_id)
                await session.notify_rewards(context)
            if end.error is not None:
                raise EntryFailed(end.error)
            return end.reward

        metadata = {"entry": entry.entry, "program": session.options.name}
        rollout = asyncio.create_task(session.run_rollout(entry.task, wait_for_end, metadata=metadata))
        self._rollouts.add(rollout)
        rollout.add_done_callback(self._rollouts.discard)
        waiting: set[asyncio.Future[Any]] = {begun, rollout}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not begun.done():
            raise entry_refused(str(rollout.exception() or "its attempt ended before it began"))
        session.entries.append(begun.result().rollout_id)
        return begun.result()

    async def _end_entry(self, attempt_id: str, end: EndEntry) -> None:
        """End the attempt of an entry, and return when the end is on file."""
        found = self._entries.pop(attempt_id, None)
        if found is None:
            raise entry_refused(f"attempt {attempt_id} belongs to no open entry of this process")
        ended, rollout = found
        if not ended.done():
            ended.set_result(end)
        await asyncio.shield(rollout)

    async def _fail_open_entries(self) -> None:
        """Fail the open entries of a process that has ended."""
        self._ended = True
        for attempt_id in list(self._entries):
            await self._end_entry(attempt_id, EndEntry(error=ENDED_IN_ENTRY))
        if self._rollouts:  # of a request that was cut off
            await asyncio.wait(self._rollouts)


def size_hint(error: Exception) -> str:
    """Return advice for a program whose environment is too long; else an empty text."""
    if getattr(error, "errno", None) != errno.E2BIG:
        return ""
    return " (its task is in its environment, which holds about 128 kB: give it the path of a file instead)"


async def run_one(session: ProgramSession, index: int) -> ProgramAttempt:
    """Run a process on the task of that index."""
    options = session.options
    task = options.tasks[index]
    one = ProgramAttempt(session, task)
    metadata = {"program": options.name, "entries": options.per_entry}
    mode = "val" if options.per_entry else "train"  # with entries, only their rollouts are trained
    try:
        one.rollout = await session.run_rollout(
            task, one.run, metadata=metadata, task_id=str(index), mode=mode
        )
    except StoreError as error:
        if one.code is None:  # it never ran, or it was stopped: there is no status to keep
            raise
        one.store_error = str(error)
    return one


async def run_all(session: ProgramSession) -> list[ProgramAttempt]:
    """Run a process for each task, at most ``concurrency`` at a time. After a signal that ends programs, no
    further process is started.
    """
    places = asyncio.Semaphore(session.options.concurrency)

    async def one(index: int) -> ProgramAttempt | None:
        async with places:
            if session.processes.ending_signal is not None:
                return None
            return await run_one(session, index)

    tasks: Sequence[asyncio.Task[ProgramAttempt | None]] = [
        asyncio.create_task(one(index)) for index in range(len(session.options.tasks))
    ]
    try:
        return [result for result in await asyncio.gather(*tasks) if result is not None]
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
