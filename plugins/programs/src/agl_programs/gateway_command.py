"""``agl gateway``: a gateway alone, which records the calls of programs that somebody else starts."""

from __future__ import annotations

import asyncio
import shlex
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentlightning.redaction import say
from agentlightning.terminal import print_json
from agl_cluster.commands import add_command
from agl_programs.options import POLICY, EngineOptions, ProgramOptions

if TYPE_CHECKING:
    from agentlightning.capture.context import AttemptContext
    from agl_programs.session import ProgramSession


@dataclass(frozen=True, kw_only=True)
class GatewayOptions(EngineOptions):
    """The options of the command."""

    listen: Annotated[str, typer.Option(help="host:port; port 0: any free one.")] = "127.0.0.1:8001"
    store: Annotated[
        str | None, typer.Option(help="The store to record in; default: one in the run's folder.")
    ] = None
    output: Annotated[Path, typer.Option(help="Where run folders are made.")] = Path("runs")
    run_id: Annotated[str | None, typer.Option(help="The run's id; default: time and `gateway`.")] = None

    def read(self) -> ProgramOptions:
        """Return them as those of a program that somebody else runs."""
        options = ProgramOptions(command=["gateway"], **vars(self))
        options.check_engine()
        return options


def register(app: typer.Typer) -> None:
    add_command(app, "gateway", GatewayOptions, gateway)


def gateway(options: GatewayOptions) -> None:
    """Serve a gateway until Ctrl-C, and record the calls of every program that uses its address and key.

    agl gateway --upstream http://127.0.0.1:8000/v1 --model qwen

    The first line of stdout is JSON: address, key and model for OPENAI_BASE_URL, OPENAI_API_KEY and the
    request, and the run. All calls under that key are one rollout. Runners in other processes get keys of
    their own where both have the same AGL_SECRET.
    """
    asyncio.run(_serve(options.read()))


async def _serve(options: ProgramOptions) -> None:
    from agl_programs.session import open_session

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(NotImplementedError, RuntimeError, ValueError):  # not the main thread
            loop.add_signal_handler(number, stop.set)
    async with open_session(options) as session:
        about = {"agent": "gateway", "recipe": "", "policy": str(options.policy or options.model)}
        await session.store.add_run(session.run_id, {"about": about})

        async def record(context: AttemptContext) -> None:
            _announce(session, context)
            await stop.wait()

        await session.run_rollout(None, record, metadata={"program": "gateway"}, task_id="0")
        await session.store.update_run(session.run_id, {"summary": {"ended": "stopped"}})
        say(f"\nagl: recorded: agl rollouts {_where(session)}", file=sys.stderr)


def _announce(session: ProgramSession, context: AttemptContext) -> None:
    """Print how programs reach the gateway, as JSON and as lines for a shell."""
    address = session.gateway.url
    print_json(
        {
            "address": address,
            "api_key": context.key,
            "model": POLICY,
            "run": session.run_id,
            "rollout": context.rollout_id,
            "store": session.store_location,
        }
    )
    lines = (f"export OPENAI_BASE_URL={address}", f"export OPENAI_API_KEY={context.key}", "Ctrl-C ends it")
    say("\n".join(lines), file=sys.stderr)


def _where(session: ProgramSession) -> str:
    if session.folder is not None:
        return session.run_id
    return f"{shlex.quote(session.store_location)} --run {session.run_id}"
