"""``agl policy new``, ``info`` and ``check``. Nothing heavy is imported until one runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from agentlightning.redaction import say
from agentlightning.types import UsageError
from agentlightning.types.work import missing_policy_message

Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Named: TypeAlias = Annotated[
    str, typer.Argument(help="A model folder in Hugging Face layout, or a name of `agl policy list`.")
]
LEAST = 8
"""Chats, at least: fewer teach no form."""


def register(policy: typer.Typer) -> None:
    """Add the commands to the group ``policy``."""
    policy.command("new")(_new)
    policy.command("info")(_info)
    policy.command("check")(_check)


def _new(
    folder: Annotated[Path, typer.Argument(help="The new folder.")],
    chats: Annotated[
        str, typer.Option(help='JSONL of {"messages": [...], "tools": [...]}, or module:function.')
    ],
    epochs: Annotated[int, typer.Option(help="Passes over the chats.")] = 40,
    lr: Annotated[float, typer.Option(help="Highest learning rate.")] = 2e-3,
    batch_size: Annotated[int, typer.Option(help="Chats of one optimizer step.")] = 16,
    hidden: Annotated[int, typer.Option(help="Width of the network, a multiple of 64.")] = 128,
    layers: Annotated[int, typer.Option(help="Layers of the network.")] = 2,
    length: Annotated[int, typer.Option(help="Tokens of prompt and answer together.")] = 2048,
    template: Annotated[
        Path | None,
        typer.Option(help="A chat template (.jinja), such as a published model's; default: a small one."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the weights and of the order of the chats.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 1,
    as_json: Json = False,
) -> None:
    """Make a tiny policy for a task of your own from a few dozen chats that show how it is done.

    Tokenizer and template are made for them, the network begins with random weights and learns the chats.
    The policy speaks the task's form and nothing else: a start for `agl train` on a CPU. The last line of
    stdout is the folder.
    """
    from agl_local.fresh.make import Shape, make
    from agl_local.fresh.tokenizer import TEMPLATE
    from agl_local.sft.finetune import SftSettings
    from agl_local.sft.job import load_chats

    data = load_chats(chats, "--chats")
    if len(data.chats) < LEAST:
        raise UsageError(f"--chats {chats}: {len(data.chats)} chats are too few; give at least {LEAST}")
    settings = SftSettings(epochs=epochs, lr=lr, batch_size=batch_size, max_len=length, seed=seed)
    if template is not None and not template.is_file():
        raise UsageError(f"--template {template}: there is no such file")
    shape = Shape(hidden, layers, length)
    summary = make(data, folder, settings, shape, template=template or TEMPLATE, threads=threads)
    say(json.dumps(summary) if as_json else summary["policy"])


def _info(policy: Named, as_json: Json = False) -> None:
    """Print what a policy folder holds: network, tokenizer, template, size, digest of the parameters."""
    from agl_local.fresh.look import info

    facts = info(_folder_of(policy))
    if as_json:
        say(json.dumps(facts))
        return
    for name, value in facts.items():
        say(f"{name:18} {value}")


def _check(
    policy: Named,
    chats: Annotated[
        str | None, typer.Option(help="Chats to say what the policy knows of them, as for `agl policy new`.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check that an agent can use a policy and a run can train it: text, end, history, and calls of tools,
    which must come back equal from what the chat template writes. Exit status 1 if a check fails. Warnings
    say what costs more, such as prompts that do not extend earlier ones, and which rules the template has.
    """
    from agl_local.fresh.look import check
    from agl_local.sft.job import load_chats

    found = check(_folder_of(policy), load_chats(chats, "--chats").chats if chats else ())
    if as_json:
        say(json.dumps(found))
    else:
        for name, wrong in found["checks"].items():
            say(f"{'✗' if wrong else '✓'} {name}{f': {wrong}' if wrong else ''}")
        for warning in found["warnings"]:
            say(f"! {warning}")
        if "chats" in found:
            left = f" ({found['too_long']} chats left out: too long)" if found["too_long"] else ""
            known = f"{found['word_for_word']:.0%} of {found['messages']} messages word for word"
            say(f"{found['chats']} chats{left}: loss {found['loss']:.3f} a token, {known}")
    if not found["ok"]:
        raise typer.Exit(1)


def _folder_of(given: str) -> Path:
    """The folder of whatever eval, serve and sft take."""
    from agl_local.policy.fetch import first_use
    from agl_local.policy.files import is_adapter

    if Path(given).is_dir() and not is_adapter(Path(given)):
        return Path(given)  # whether it can be used is what is asked
    if Path(given).is_absolute() and not Path(given).exists():
        raise UsageError(missing_policy_message(given))
    return first_use(given).path
