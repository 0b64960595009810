"""Commands that look at runs, and the options they share."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

RunArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="RUN", help="Run id or its beginning, run folder, or store.")
]
OneOf: TypeAlias = Annotated[str | None, typer.Option(help="Which run, if RUN is a store of several.")]
StoreOfRun: TypeAlias = Annotated[str | None, typer.Option(help="The store of RUN, if it lies elsewhere.")]
InRun: TypeAlias = Annotated[str | None, typer.Option(help="The run it belongs to; default: look in all.")]
InStore: TypeAlias = Annotated[str | None, typer.Option(help="The store to look in.")]
Rewards: TypeAlias = Annotated[
    str | None, typer.Option(help="The rewards of `agl rescore` by this name; default: the original ones.")
]
JsonLines: TypeAlias = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
