"""``agl run``: runs a program as it is and records every model call that it makes."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

if TYPE_CHECKING:
    from agentlightning.run_program.attempts import ProcessResult
    from agentlightning.run_program.options import ProgramOptions
    from agentlightning.run_program.session import ProgramSession

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


def register(app: typer.Typer) -> None:
    @app.command("run", context_settings={"allow_interspersed_args": False})
    def run(
        command: Annotated[list[str], typer.Argument(metavar="PROGRAM [ARGS]…", help="What to run.")],
        upstream: Annotated[
            str | None, typer.Option(help="Base URL (…/v1) of the OpenAI-compatible engine that answers.")
        ] = None,
        model: Annotated[
            str | None, typer.Option(help="Name under which that engine serves the model.")
        ] = None,
        api_key_env: Annotated[
            str | None, typer.Option(help="Environment variable with that engine's key.")
        ] = None,
        frozen: Annotated[
            bool, typer.Option("--frozen", help="That engine returns no token ids: record messages only.")
        ] = False,
        policy: Annotated[
            Path | None, typer.Option(help="Folder of a model to serve here, instead of --upstream.")
        ] = None,
        driver: Annotated[str, typer.Option(help="Driver that serves --policy.")] = "local",
        adapter: Annotated[
            list[str] | None,
            typer.Option(
                help="Framework adapter to use; default: those of the frameworks that the program imports."
            ),
        ] = None,
        select: Annotated[
            list[str] | None, typer.Option(help="Agents whose calls are trained; re:… for a pattern.")
        ] = None,
        tag: Annotated[list[str] | None, typer.Option(help="key=value, a tag of every call.")] = None,
        task: Annotated[
            str | None,
            typer.Option("--input", help="The task, JSON or text; the program finds it in AGL_TASK."),
        ] = None,
        tasks: Annotated[
            Path | None, typer.Option(help="JSON lines, one process for each; {task} in ARGS is replaced.")
        ] = None,
        times: Annotated[int, typer.Option(min=1, help="Runs of each task.")] = 1,
        concurrency: Annotated[int, typer.Option(min=1, help="Processes that run at the same time.")] = 1,
        timeout: Annotated[float | None, typer.Option(help="Seconds after which a process is ended.")] = None,
        reward_file: Annotated[
            str | None,
            typer.Option(
                help="File into which the program writes its reward; default: that of AGL_REWARD_FILE."
            ),
        ] = None,
        per_entry: Annotated[
            bool,
            typer.Option(
                "--per-entry", help="A rollout for each call of an @agl.rollout or @agl.agent entry."
            ),
        ] = False,
        store: Annotated[
            str | None, typer.Option(help="The store to record in; default: one in the run's folder.")
        ] = None,
        output: Annotated[Path, typer.Option(help="Where run folders are made.")] = Path("runs"),
        run_id: Annotated[str | None, typer.Option(help="The run's id; default: time and program.")] = None,
        as_json: Annotated[
            bool, typer.Option("--json", help="The summary as one JSON object, the last line of stderr.")
        ] = False,
    ) -> None:
        """Run a program as it is, and record every model call that it makes.

        agl run --upstream http://127.0.0.1:8000/v1 --model qwen -- python app.py --its-own option

        Standard streams, signals and exit status are the program's; agl writes nothing to stdout.
        """
        from agentlightning.run_program.options import (
            CannotStart,
            ProgramOptions,
            read_input,
            read_tags,
            read_tasks,
        )
        from agentlightning.types import UsageError

        if task is not None and tasks is not None:
            raise UsageError("--input and --tasks exclude each other: give one of them")
        given = read_tasks(tasks) if tasks else [None if task is None else read_input(task)]
        try:
            options = ProgramOptions(
                command=command,
                tasks=[one for one in given for _ in range(times)],
                concurrency=concurrency,
                upstream=upstream,
                model=model,
                api_key_env=api_key_env,
                frozen=frozen,
                policy=policy,
                driver=driver,
                adapters=adapter or [],
                select=(select[0] if len(select) == 1 else select) if select else None,
                tags=read_tags(tag or []),
                timeout=timeout,
                reward_file=reward_file,
                per_entry=per_entry,
                store=store,
                output=output,
                run_id=run_id,
            ).check()
            code = asyncio.run(_run(options, as_json))
        except CannotStart as error:
            print(f"agl: {error}", file=sys.stderr)
            raise typer.Exit(error.code) from None
        if code:
            raise typer.Exit(code)


async def _run(options: ProgramOptions, as_json: bool) -> int:
    from agentlightning.cli.interrupts import restore_ignored_sigint
    from agentlightning.cli.run_view import show
    from agentlightning.run_program.attempts import run_all
    from agentlightning.run_program.session import open_session
    from agentlightning.run_program.summary import as_record, summarise

    began = time.perf_counter()
    async with open_session(options) as session:
        await session.store.add_run(session.run_id, _info(options))
        with restore_ignored_sigint(), _forward_signals(session):
            results = await run_all(session)
        code = _exit_code(results, len(options.tasks), session.processes.ending_signal)
        try:
            summary = await summarise(session, results, time.perf_counter() - began)
            await session.store.update_run(session.run_id, {"summary": as_record(summary)})
        except Exception as error:  # the programs have ended: their exit status stands whatever fails here
            print(f"agl: the run cannot be summarised: {error}", file=sys.stderr, flush=True)
            return code
    if as_json:
        print(msgspec.json.encode(summary).decode(), file=sys.stderr, flush=True)
    else:
        show(summary)
    return code


def _info(options: ProgramOptions) -> dict[str, Any]:
    """What the run's record keeps of the program: its name, for its arguments may hold secrets."""
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


def _exit_code(results: list[ProcessResult], planned: int, signalled: int | None) -> int:
    """The exit status of the program; of several, 0 if all succeeded, else 1. ``signalled``: the signal after
    which no further one was started.
    """
    from agentlightning.run_program.process import exit_status

    if len(results) < planned and signalled is not None:
        return exit_status(-signalled)
    codes = [TIMED_OUT if one.code is None else exit_status(one.code) for one in results]
    return codes[0] if len(codes) == 1 else int(any(codes))


@contextmanager
def _forward_signals(session: ProgramSession) -> Iterator[None]:
    """Forward our signals to the program, but not those typed at the terminal, which it got itself."""
    loop = asyncio.get_running_loop()
    # The program inherits from us to ignore a signal (nohup, a shell's background): it stays ignored.
    before = {number: signal.getsignal(number) for number in _FORWARDED}
    before = {number: handler for number, handler in before.items() if handler != signal.SIG_IGN}

    def on_signal(number: int) -> None:
        session.processes.note_signal(number)
        if number not in (signal.SIGINT, signal.SIGQUIT) or not _in_foreground():
            session.processes.forward_signal(number)

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
    """Whether a terminal has us in the foreground: it sends typed signals to the program too."""
    import os

    try:
        with open("/dev/tty") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False
