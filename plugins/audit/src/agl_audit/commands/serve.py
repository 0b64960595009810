"""``agl serve``: a policy behind the OpenAI API, for programs that use it without training."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from agentlightning.plugins.manager import load as load_plugins, pick
from agentlightning.redaction import say
from agentlightning.types import UsageError
from agl_audit.policies import find_policy, pretrained_or_same

INSTALL_VLLM = "vllm is not on PATH: install it (pip install vllm), or serve with --engine local"


def register(app: typer.Typer) -> None:
    @app.command("serve", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
    def serve(
        context: typer.Context,
        what: Annotated[
            str,
            typer.Argument(
                metavar="POLICY", help="A run's id or folder, a model folder, or a name of `agl policy list`."
            ),
        ],
        name: Annotated[str, typer.Option(help="The model's name in requests.")] = "policy",
        step: Annotated[int | None, typer.Option(help="Take a run's checkpoint of this step.")] = None,
        policy: Annotated[str | None, typer.Option(help="Which policy, of a run with several.")] = None,
        host: Annotated[
            str, typer.Option(help="Interface; another than loopback needs a token in AGL_LOCAL_TOKEN.")
        ] = "127.0.0.1",
        port: Annotated[int, typer.Option(help="0: any free port.")] = 8000,
        engine: Annotated[str, typer.Option(help="A driver with an engine (local), or vllm.")] = "local",
    ) -> None:
        """Serve a policy over the OpenAI API until Ctrl-C. The first line of stdout is the address as JSON.

        Further options go to the engine: to local --device, --threads, --slots and --max-len, to vllm those
        of `vllm serve`.
        """
        folder = model_folder(what, step=step, name=policy)
        say(f"agl: serving {folder} as {name!r}; Ctrl-C ends it", file=sys.stderr)
        options = ["--host", host, "--port", str(port), *context.args]
        if engine == "vllm":
            program = shutil.which("vllm")
            if program is None:
                raise UsageError(INSTALL_VLLM)
            os.execv(program, [program, "serve", str(folder), "--served-model-name", name, *options])
        serve_forever = pick(load_plugins().drivers, "driver", engine).serve_forever
        if serve_forever is None:
            raise UsageError(f"driver {engine!r} has no engine of its own to serve with; use local or vllm")
        if code := serve_forever(folder, name, options):
            raise typer.Exit(code)


def model_folder(what: str, *, step: int | None = None, name: str | None = None) -> Path:
    """Return the model folder of a run, a model folder itself, or that of a pretrained policy."""
    return find_policy(pretrained_or_same(what), step=step, name=name).folder.resolve()
