"""``agl tinker serve``: a policy behind the Tinker API, on this machine."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

Policy = Annotated[str, typer.Option(help="Policy folder, or a name of `agl policy list`.")]
State = Annotated[
    Path, typer.Option(help="Folder that holds what clients make; the server reads it again after a restart.")
]
Name = Annotated[
    str | None, typer.Option(help="What clients call the base model; default: the folder's name.")
]
Host = Annotated[str, typer.Option(help="Interface; one that others reach needs AGL_TINKER_TOKEN.")]
Port = Annotated[int, typer.Option(help="0: any free port.")]
Samplers = Annotated[int, typer.Option(help="Saved weights in memory at a time, each a copy of the base.")]
Slots = Annotated[int, typer.Option(help="Answers that each of the saved weights samples at a time.")]
MaxLen = Annotated[int | None, typer.Option(help="Tokens of prompt and answer; default: at most 2048.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads; default: the cores of this process.")]


def register(app: typer.Typer) -> None:
    tinker = typer.Typer(help="The Tinker API on this machine.", no_args_is_help=True)
    app.add_typer(tinker, name="tinker")

    @tinker.callback()
    def group() -> None:
        """The Tinker API on this machine."""

    @tinker.command("serve")
    def serve(
        policy: Policy,
        state: State = Path("tinker-state"),
        name: Name = None,
        host: Host = "127.0.0.1",
        port: Port = 8765,
        samplers: Samplers = 4,
        slots: Slots = 16,
        max_len: MaxLen = None,
        threads: Threads = None,
    ) -> None:
        """Serve a policy to clients of the Tinker API until a signal. The first line of stdout is the
        address.
        """
        import torch

        from agentlightning.webserver.loopback import token_from_env
        from agl_local.cores import auto_threads
        from agl_local.serving import load
        from agl_tinker.server.app import TOKEN_VARIABLE, TinkerServer

        torch.set_num_threads(threads or auto_threads())
        folder = Path(policy).resolve()
        base = load(folder, "cpu", "float32")

        async def run() -> None:
            server = TinkerServer(
                base, name or folder.name, state, token=token_from_env(TOKEN_VARIABLE), samplers=samplers,
                slots=slots, max_len=max_len,
            )  # fmt: skip
            stop = asyncio.Event()
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, stop.set)
            address = await server.start(host, port)
            print(json.dumps({"base_url": address, "base_model": server.name}), flush=True)
            print(
                f"export TINKER_BASE_URL={address} TINKER_API_KEY=tml-local TINKER_TELEMETRY=0",
                file=sys.stderr,
            )
            await stop.wait()
            await server.close()

        asyncio.run(run())
