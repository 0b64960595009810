"""``agl export``: a run's policy as a model folder or GGUF file with a card, or the prompts that it found."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from agentlightning.redaction import say
from agentlightning.terminal import print_json
from agentlightning.types import UsageError


def register(app: typer.Typer) -> None:
    @app.command("export")
    def export(
        what: Annotated[
            str,
            typer.Argument(
                metavar="RUN",
                help="A run's id or folder, a model folder, a name of `agl policy list`, or adapter:FOLDER.",
            ),
        ],
        folder: Annotated[Path, typer.Argument(help="The new folder; of one prompt, also a new .txt file.")],
        step: Annotated[int | None, typer.Option(help="Take the checkpoint of this step.")] = None,
        best: Annotated[
            bool, typer.Option("--best", help="Take the policy with the best held-out reward.")
        ] = False,
        policy: Annotated[str | None, typer.Option(help="Which policy, in a run with several.")] = None,
        gguf: Annotated[
            str | None,
            typer.Option(
                metavar="STORAGE",
                help="f32, f16 or q8_0: a GGUF file with such matrices and a Modelfile, for llama.cpp and "
                "Ollama, instead of Hugging Face layout.",
            ),
        ] = None,
        prompts: Annotated[
            bool, typer.Option("--prompts", help="Of a run that trained a policy too: its prompts.")
        ] = False,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    ) -> None:
        """Export a trained policy in Hugging Face layout, or the prompts of a search as text files.

        A card beside them names the run. The last line of stdout is what was written. transformers, vLLM and
        `agl serve` load a policy's folder; with --gguf llama.cpp and Ollama do.
        """
        from agl_audit.exported_policy import export as copy_policy, find_best, holds_policy
        from agl_audit.exported_prompts import export_prompts, find_prompts
        from agl_audit.policies import find_policy, pretrained_or_same

        what = pretrained_or_same(what)
        if best and step is not None:
            raise UsageError("give --best or --step, not both")
        if prompts and gguf is not None:
            raise UsageError("give --prompts or --gguf, not both: prompts are text files")
        of_policy = best or step is not None or policy is not None or gguf is not None
        texts = find_prompts(what) if prompts or not of_policy else None
        if prompts and texts is None:
            raise UsageError(f"{what} has no prompts: no search has ended in it")
        told: dict[str, Any]
        if texts is not None and (prompts or not holds_policy(what)):
            written = export_prompts(texts, folder)
            told = {"folder": str(written), "run": texts.run.name, "prompts": list(texts.texts)}
        else:
            found = find_best(what, name=policy) if best else find_policy(what, step=step, name=policy)
            written = copy_policy(found, folder, gguf)
            if gguf is not None:
                say(
                    f"agl: README.md in {written} says what llama.cpp and Ollama do otherwise",
                    file=sys.stderr,
                )
            run = found.run and found.run.name
            told = {"folder": str(written), "run": run, "step": found.step, "policy": found.name}
        if as_json:
            print_json(told)
        else:
            say(written)
