"""``agl export``: a run's policy as a model folder with a card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentlightning.cli.view import print_json


def register(app: typer.Typer) -> None:
    @app.command("export")
    def export(
        what: Annotated[str, typer.Argument(metavar="RUN", help="A run's id or folder, or a model folder.")],
        folder: Annotated[Path, typer.Argument(help="The new folder.")],
        step: Annotated[int | None, typer.Option(help="Take the checkpoint of this step.")] = None,
        best: Annotated[
            bool, typer.Option("--best", help="Take the policy with the best held-out reward.")
        ] = False,
        policy: Annotated[str | None, typer.Option(help="Which policy, in a run with several.")] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    ) -> None:
        """Export a trained policy in Hugging Face layout, with a card that names its run.

        The last line of stdout is the folder. transformers, vLLM and `agl serve` load it.
        """
        from agentlightning.train.trained_policy import export as copy_policy, find_policy

        found = find_policy(what, step=step, name=policy, best=best)
        written = copy_policy(found, folder)
        if as_json:
            run = found.run and found.run.name
            print_json({"folder": str(written), "run": run, "step": found.step, "policy": found.name})
        else:
            print(written)
