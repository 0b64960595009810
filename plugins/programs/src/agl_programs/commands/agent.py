"""An agent that runs a command on each task: a program in any language, unchanged.

Each attempt is a process in a working folder of its own. Its model calls go through a relay to the gateway,
and Python programs are instrumented as by ``agl run``. The runner keeps the time: when it is up, or the
runner stops, the process group is terminated.

Invariants: a program's failure ends its attempt, never the run; no process of an attempt outlives it, except
one that has left its process group while the program ended by itself.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agentlightning.capture.context import AttemptContext, attempt_context, current_attempt
from agentlightning.capture.delivery import COUNTS, deliver, new_span
from agentlightning.capture.emit import returned_reward_span
from agentlightning.capture.identity import parent_ids
from agentlightning.child_environment import child_environment, matches
from agentlightning.decorator.agents import RunnableAgent
from agentlightning.decorator.reward_function import AgentError
from agentlightning.plugins.manager import load
from agentlightning.runner.outcome import Outcome, read_return
from agentlightning.runner.threads import in_thread
from agentlightning.semconv import COMMAND_SPAN, REWARD_SPAN
from agentlightning.train.config import RunConfig
from agentlightning.train.configured import import_target
from agentlightning.types import LLM, AttemptStatus, Resource, Rollout, Span, UsageError
from agentlightning.types.base import ConfigError
from agl_programs.attempts import REWARD_FILE, size_hint
from agl_programs.collector import Collector, adapter_errors
from agl_programs.commands.boxed import COLLECTOR, RELAY, REWARD, run_boxed
from agl_programs.commands.child import ChildEnd, run_child
from agl_programs.commands.command import Command, UnknownField, fill, placeholders, value_text
from agl_programs.commands.container import (
    contained,
    container_engine,
    container_variables,
    kill_container,
)
from agl_programs.commands.folder import WorkFolder, located
from agl_programs.commands.relay import Relay
from agl_programs.commands.result import CommandResult
from agl_programs.commands.reward import RewardReader, last_line
from agl_programs.commands.settings import EXIT_STATUS, JSON_LINE, ProgramSection, RewardSection
from agl_programs.commands.spans import AttemptKeyRing, AttemptSpans
from agl_programs.inside.settings import ChildSettings
from agl_programs.options import executable, program_name
from agl_programs.process import (
    USUAL,
    ProgramFailed,
    RewardFile,
    environment,
    watched_packages,
    without_values,
)
from agl_programs.sandbox import bubblewrap
from agl_programs.sandbox.run import Door

_LOG = logging.getLogger(__name__)
SHOWN = 4_000
"""Characters of each output stream in the trace: the last ones."""


class CommandAgent(RunnableAgent):
    """Runs ``command`` on each task: a list of words, or a text for the shell. Placeholders are those of
    :mod:`.command`.

    ``reward``: ``"exit-status"`` (0 is 1.0, 1 to 125 is 0.0), ``"json"`` (``{"reward": …}`` as the last JSON
    line of its output), a :class:`.RewardSection`, or a function that takes ``task`` and ``result`` (a
    :class:`.CommandResult`) by name and returns a number; ``None``: the program writes a number into the file
    that ``AGL_REWARD_FILE`` names, or emits a reward. ``folder``: the folder to which relative paths of the
    command and of ``files`` and ``keep`` belong, by default the current one. ``adapters``: framework adapters
    to use in Python programs; none: those of the frameworks that they import. ``private``: fields of the
    tasks that the command must not name. ``program``: the fields of :class:`.ProgramSection`. Raise
    :class:`UsageError` for values that cannot be used.
    """

    trusted = False

    def __init__(
        self,
        command: str | Sequence[str],
        *,
        reward: Any = None,
        name: str | None = None,
        folder: str | Path | None = None,
        adapters: Sequence[str] = (),
        private: Sequence[str] = (),
        **program: Any,
    ) -> None:
        self.command = Command.of(command)
        self.program = ProgramSection(**program)
        self.folder = Path(folder or ".").expanduser().resolve()
        self.adapters, self.private = list(adapters), list(private)
        self.name = name or program_name(_words(command))
        self.reward = RewardReader(reward, self.name)
        self.judged = reward is not None
        self._check()

    def _check(self) -> None:
        for path in self.named_paths() if self.private else ():
            field = path.partition(".")[0]
            if not field or field in self.private:
                what = (
                    f"{{task.{path}}}: {field} is private"
                    if path
                    else (f"{{task}} is the whole task, in which {', '.join(self.private)} is private")
                )
                raise AgentError(f"{what}: name the fields that the program may have, as {{task.field}}")
        for file in self._files():
            if not file.exists():
                raise AgentError(f"files: there is no {file}")
        if (container := self.program.container) is not None:
            container_engine(container)
        elif self.program.sandbox is not None:
            bubblewrap.check()
            bubblewrap.readable(self.program.sandbox.read, self.folder)
        elif not self.command.is_shell and not (self.program.files or placeholders(self.command.given[0])):
            executable(located(self.command.given, self.folder, self.folder, copied=False)[0], os.environ)

    def check_task(self, task: Any) -> None:
        """Raise :class:`.UnknownField` if a placeholder names a field that the task does not have."""
        for path in self.named_paths():
            try:
                value_text(task, path)
            except UnknownField as error:
                raise UnknownField(f"agent.command: {error}") from None

    def named_paths(self) -> list[str]:
        """Return the paths of all placeholders, ``""`` for the whole task. The program gets nothing else of
        its task.
        """
        given = [self.program.stdin or "", *self.program.env.values()]
        return [*self.command.placeholders, *(path for text in given for path in placeholders(text))]

    async def rollout(
        self, task: Any, resources: dict[str, Resource], rollout: Rollout
    ) -> float | Outcome | None:
        """Run the program on one task and return its reward."""
        found = current_attempt()
        if found is None or found.key is None or found.gateway is None:
            raise AgentError(f"the command {self.name!r} needs a gateway for its model calls")
        # Calls of a program that names no agents are those of the command.
        context = dataclasses.replace(found, tags={"agent": self.name, **found.tags})
        self.check_task(task)
        keep = None if self.program.keep is None else self.folder / Path(self.program.keep).expanduser()
        folder = await in_thread(WorkFolder, context.attempt_id, self._files(), keep)
        try:
            boxed = self.program.sandbox is not None
            written = RewardFile(folder.path / REWARD if boxed else folder.scratch / "reward")
            result = await self._run(task, context, folder, written)
            value = await self._judge(context, result, written)
            said = "" if any(call.status == 200 for call in result.calls) else last_line(result.stderr)
            if not said:
                return value
            with attempt_context(context):
                outcome = read_return(value)
            asked = "no call of the program was answered; the end of its standard error"
            return dataclasses.replace(outcome, reason=outcome.reason or f"{asked}{said}")
        finally:
            folder.close()

    async def _judge(
        self, context: AttemptContext, result: CommandResult, written: RewardFile
    ) -> float | Outcome | None:
        """Return the reward. Rewards that the reward function emits are a judge's too, not the program's."""
        emitted: list[Span] = []

        def take(span: Span) -> None:
            if span.name == REWARD_SPAN:
                emitted.append(span)
            else:
                deliver(context, span)

        with attempt_context(dataclasses.replace(context, sink=take)):
            value = await self.reward.read(result, written, self)
            if not emitted:
                return value
            returned = [*emitted, *([] if value is None else [returned_reward_span(value)])]
            return Outcome(AttemptStatus.SUCCEEDED, returned=returned)

    async def _run(
        self, task: Any, context: AttemptContext, folder: WorkFolder, written: RewardFile
    ) -> CommandResult:
        """Run the program to its end, and record how it ended."""
        stdin = None if self.program.stdin is None else fill(self.program.stdin, task)
        async with _servers(context, inside=self._has_doors) as servers:
            relay = servers.relay
            settings = self._settings(context, servers.gateway, servers.spans)
            variables = self._variables(task, settings, context, written)
            began, end, ended = time.time(), None, ""
            try:
                if self.program.sandbox is None:
                    end = await self._child(task, context, folder, variables, stdin)
                else:
                    end, ended = await self._boxed(task, folder, variables, stdin, servers)
            except (OSError, ValueError) as error:
                raise ProgramFailed(f"the program cannot be executed: {error}{size_hint(error)}") from None
            finally:
                self._record(context, variables, began, end, ended)
        return CommandResult(
            exit_code=end.code,
            stdout=end.stdout.text,
            stderr=without_values(end.stderr.text, variables),
            stdout_dropped=end.stdout.dropped,
            stderr_dropped=end.stderr.dropped,
            folder=folder.path,
            calls=tuple(relay.calls),
            seconds=time.time() - began,
            ended=ended,
        )

    @property
    def _has_doors(self) -> bool:
        """Whether its relay and collector listen inside a sandbox."""
        return self.program.sandbox is not None and not self.program.sandbox.network

    async def _boxed(
        self,
        task: Any,
        folder: WorkFolder,
        variables: dict[str, str],
        stdin: str | None,
        servers: _Servers,
    ) -> tuple[ChildEnd, str]:
        """Run the program in its sandbox; return how it ended, and the limit that ended it."""
        program = self.program
        assert program.sandbox is not None
        end = await run_boxed(
            program.sandbox,
            self.command.words(task),
            variables,
            folder.path,
            stdin,
            here=self.folder,
            copied=bool(program.files) or self.command.is_shell,
            own=[*program.env, *program.pass_env],
            output_bytes=program.output_bytes,
            doors=servers.doors if self._has_doors else {},
        )
        return end.child, end.why

    async def _child(
        self,
        task: Any,
        context: AttemptContext,
        folder: WorkFolder,
        variables: dict[str, str],
        stdin: str | None,
    ) -> ChildEnd:
        words, limit = self.command.words(task), self.program.output_bytes
        container = self.program.container
        if container is None:
            copied = bool(self.program.files) or self.command.is_shell
            words = located(words, self.folder, folder.path, copied=copied)
            words[0] = executable(words[0], variables)
            return await run_child(words, variables, folder.path, stdin, limit)
        engine, name = container_engine(container), f"agl-{context.attempt_id}"
        words = contained(
            container,
            engine,
            words,
            name=name,
            folder=folder.path,
            scratch=folder.scratch,
            variables=container_variables(variables, [*self.program.env, *self.program.pass_env]),
        )
        try:
            return await run_child(words, variables, folder.path, stdin, limit)
        except asyncio.CancelledError:
            await kill_container(engine, name)
            raise

    def _settings(self, context: AttemptContext, gateway: str, spans: str) -> ChildSettings:
        return ChildSettings.of(
            context, gateway=gateway, store=spans, model=_model(context), adapters=self.adapters
        )

    def _variables(
        self, task: Any, settings: ChildSettings, context: AttemptContext, written: RewardFile
    ) -> dict[str, str]:
        passed = self.program.pass_env
        found = child_environment(os.environ, named=passed)
        base = {name: value for name, value in found.items() if matches(name, (*USUAL, *passed))}
        own = {name: fill(value, task) for name, value in self.program.env.items()}
        return {
            **environment({**base, **own}, settings, watched_packages(load())),
            **self.command.variables(task),
            "OPENAI_MODEL": _model(context),
            "AGL_HERE": str(self.folder),
            REWARD_FILE: str(written.path),
        }

    def _files(self) -> list[Path]:
        return [self.folder / Path(file).expanduser() for file in self.program.files]

    def _record(
        self,
        context: AttemptContext,
        variables: dict[str, str],
        began: float,
        end: ChildEnd | None,
        ended: str,
    ) -> None:
        """Deliver the span of the process, and count output that was not kept."""
        about: dict[str, Any] = {"process.executable.name": self.name}
        if end is not None:
            about |= {
                "process.exit.code": end.code,
                "agl.command.stdout": without_values(end.stdout.text, variables)[-SHOWN:],
                "agl.command.stderr": without_values(end.stderr.text, variables)[-SHOWN:],
                "agl.command.bytes_dropped": end.stdout.dropped + end.stderr.dropped,
            }
            if ended:
                about["agl.command.ended"] = ended
                COUNTS.add(f"sandbox-{ended}")
            if end.stdout.dropped or end.stderr.dropped:
                COUNTS.add("command-output-cut")
        failed = "the program was ended before it had ended by itself" if end is None else None
        parent = parent_ids(context.attempt_id)
        deliver(context, new_span(context, COMMAND_SPAN, parent, about, start=began, error=failed))


@dataclasses.dataclass(frozen=True, slots=True)
class _Servers:
    """What a program of one attempt reaches: ``gateway`` is the relay's URL, ``spans`` the collector's."""

    relay: Relay
    gateway: str
    spans: str
    doors: dict[int, Door]
    """Port inside its sandbox → who serves it."""


@asynccontextmanager
async def _servers(context: AttemptContext, *, inside: bool) -> AsyncIterator[_Servers]:
    """Open the relay and the collector of an attempt. ``inside``: in the program's sandbox."""
    relay, collector = Relay(context), Collector(AttemptSpans(context), AttemptKeyRing(context))
    program = collector.admit(context.attempt_id)
    try:
        gateway, spans = await relay.start(RELAY if inside else None), await collector.start()
        spans = f"http://127.0.0.1:{COLLECTOR}" if inside else spans
        yield _Servers(relay, gateway, spans, {RELAY: relay.serve, COLLECTOR: collector.serve})
        await collector.drain(program)
    finally:
        collector.dismiss(context.attempt_id)
        await asyncio.gather(relay.stop(), collector.stop())
        for reason, times in (program.counts + collector.refused).items():
            COUNTS.add(reason, times)
        for name, error in adapter_errors(program.reports.values()).items():
            if error is not None:
                COUNTS.add("adapter-failed")
                _LOG.warning("in a program, adapter %s is not on: %s", name, error)


def _model(context: AttemptContext) -> str:
    """Return the model's name at the gateway: that of the first endpoint among the resources."""
    return next((r.model for r in context.resources.values() if isinstance(r, LLM)), ChildSettings.model)


def _words(command: str | Sequence[str]) -> list[str]:
    return command.split() if isinstance(command, str) else list(command)


def configured_agent(config: RunConfig) -> CommandAgent | None:
    """Return the agent that runs ``agent.command`` from the folder of the run's file, or ``None``."""
    given, reward = config.agent, config.agent.reward  # type: ignore[attr-defined]
    if given.command is None:  # type: ignore[attr-defined]
        return None
    function = reward.function if isinstance(reward, RewardSection) else None
    if isinstance(reward, str) and reward not in (EXIT_STATUS, JSON_LINE):
        function = reward
    try:
        return CommandAgent(
            given.command,  # type: ignore[attr-defined]
            reward=reward if function is None else import_target(function, "agent.reward"),
            name=None if given.name == "agent" else given.name,
            folder=config.path("."),
            adapters=given.adapters,
            private=config.environment.private,
            **dict(given.program),  # type: ignore[attr-defined]
        )
    except ConfigError:
        raise
    except UsageError as error:
        raise ConfigError(f"agent.command: {error}") from None
