"""``agl run``: runs a program as it is and records every model call that it makes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentlightning.redaction import say
from agentlightning.terminal import print_json
from agentlightning.types import UsageError
from agl_cluster.commands import add_command
from agl_programs.options import (
    CannotStart,
    ProgramOptions,
    read_input,
    read_tags,
    read_tasks,
)

if TYPE_CHECKING:
    from agl_programs.attempts import ProgramAttempt
    from agl_programs.session import ProgramSession

TIMED_OUT = 124
"""Exit status when the program's time is up, as of ``timeout``."""
_FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


@dataclass(frozen=True, kw_only=True)
class RunOptions(ProgramOptions):
    """The options of the command: the program's, its tasks and tags, and the form of the summary."""

    task: Annotated[
        str | None,
        typer.Option("--input", help="The task, JSON or text; the program finds it in AGL_TASK."),
    ] = None
    tasks_file: Annotated[
        Path | None,
        typer.Option("--tasks", help="JSON lines, one process for each; {task} in ARGS is replaced."),
    ] = None
    times: Annotated[int, typer.Option(min=1, help="Runs of each task.")] = 1
    tag: Annotated[list[str] | None, typer.Option(help="key=value, a tag of every call.")] = None
    as_json: Annotated[
        bool, typer.Option("--json", help="The summary as one JSON object, the last line of stderr.")
    ] = False

    def read(self) -> RunOptions:
        """Return the options with the tasks and tags read."""
        if self.task is not None and self.tasks_file is not None:
            raise UsageError("--input and --tasks exclude each other: give one of them")
        given = [None if self.task is None else read_input(self.task)]
        if self.tasks_file:
            given = read_tasks(self.tasks_file)
        tasks = [one for one in given for _ in range(self.times)]
        return replace(self, tasks=tasks, tags=read_tags(self.tag or []))


def register(app: typer.Typer) -> None:
    add_command(app, "run", RunOptions, run_program, context_settings={"allow_interspersed_args": False})


def run_program(options: RunOptions) -> None:
    """Run a program as it is, and record every model call that it makes.

    agl run --upstream http://127.0.0.1:8000/v1 --model qwen -- python app.py --its-own option

    Standard streams, signals and exit status are the program's; agl writes nothing to stdout.
    """
    try:
        code = asyncio.run(_run(options.read().check()))
    except CannotStart as error:
        say(f"agl: {error}", file=sys.stderr)
        raise typer.Exit(error.code) from None
    if code:
        raise typer.Exit(code)


async def _run(options: RunOptions) -> int:
    from agl_programs.attempts import run_all
    from agl_programs.run_view import show
    from agl_programs.session import open_session
    from agl_programs.summary import as_record, summarise

    began = time.perf_counter()
    async with open_session(options) as session:
        await session.store.add_run(session.run_id, _info(options))
        with _restored_sigint(), _forward_signals(session):
            results = await run_all(session)
        code = _exit_code(results, len(options.tasks), session.processes.ending_signal)
        try:
            summary = await summarise(session, results, time.perf_counter() - began)
            record = as_record(summary)
            await session.store.update_run(session.run_id, {"summary": record})
            if session.folder:  # whatever else is written to stderr, there it is
                text = json.dumps(record, indent=2) + "\n"
                (session.folder / "summary.json").write_text(text, encoding="utf-8")
        except Exception as error:  # the programs have ended: their exit status stands whatever fails here
            say(f"agl: the run cannot be summarised: {error}", file=sys.stderr)
            return code
    if options.as_json:
        print_json(summary, sys.stderr)
    else:
        show(summary)
    return code


def _info(options: ProgramOptions) -> dict[str, Any]:
    """Return what the run's record says of the program: its name, because its arguments may hold secrets."""
    return {
        "about": {
            "agent": f"program · {options.name}",
            "recipe": "",
            "policy": str(options.policy or options.model),
        },
        "program": options.name,
        "tags": dict(options.tags),
        "per_entry": options.per_entry,
    }


def _exit_code(results: list[ProgramAttempt], planned: int, signalled: int | None) -> int:
    """Return the exit status of the program; of several processes, 0 if all succeeded, else 1. ``signalled``:
    the signal after which no further process was started.
    """
    from agl_programs.process import exit_status

    if len(results) < planned and signalled is not None:
        return exit_status(-signalled)
    codes = [TIMED_OUT if one.code is None else exit_status(one.code) for one in results]
    return codes[0] if len(codes) == 1 else int(any(codes))


@contextmanager
def _forward_signals(session: ProgramSession) -> Iterator[None]:
    """Forward signals to the program, except those typed at the terminal, which it got itself."""
    loop = asyncio.get_running_loop()
    # A signal that this process ignores (nohup, a shell's background) the program ignores too.
    before = {number: signal.getsignal(number) for number in _FORWARDED}
    before = {number: handler for number, handler in before.items() if handler != signal.SIG_IGN}

    def on_signal(number: int) -> None:
        typed = number in (signal.SIGINT, signal.SIGQUIT) and _in_foreground()
        session.processes.on_signal(number, forward=not typed)

    try:
        for number in before:
            loop.add_signal_handler(number, on_signal, number)
    except (NotImplementedError, RuntimeError, ValueError):  # no main thread, or a system without
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            if handler is not None:  # Python cannot restore a handler that it did not set
                signal.signal(number, handler)


def _in_foreground() -> bool:
    """Return whether this process is in a terminal's foreground, which sends typed signals to the program."""
    try:
        with open("/dev/tty", encoding="utf-8") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


@contextmanager
def _restored_sigint() -> Iterator[None]:
    """Within the block a blocked SIGINT is ignored instead: programs started here inherit that, and may set
    a handler of their own. The caller handles SIGTERM itself.
    """
    if not hasattr(signal, "pthread_sigmask") or signal.SIGINT not in signal.pthread_sigmask(
        signal.SIG_BLOCK, ()
    ):
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        signal.signal(signal.SIGINT, before)
