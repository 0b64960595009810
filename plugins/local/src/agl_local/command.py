"""``agl policy``: fetch pretrained models, list and remove those that were fetched."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from agl_local.policy.cache import (
    cached_policies,
    locked,
    policies_folder,
    read_cached,
    remove_policy,
)
from agl_local.policy.catalogue import CATALOGUE
from agl_local.policy.fetch import FetchError, fetch as fetch_policy, known_folder


def register(app: typer.Typer) -> None:
    policy = typer.Typer(help="Fetch pretrained models, list and remove them.", no_args_is_help=True)
    app.add_typer(policy, name="policy")

    @policy.command("fetch")
    def fetch(
        name: Annotated[
            str,
            typer.Argument(
                help="A name of `agl policy list`, a .gguf file, or owner/name of the Hugging Face hub."
            ),
        ],
    ) -> None:
        """Download and convert a model. The last line of stdout is the folder, for backend.policy."""
        found = fetch_policy(name)
        print(f"model    {found.origin.name}")
        print(f"licence  {found.origin.licence}")
        print(f"from     {found.origin.source}")
        if found.origin.about:
            print(f"about    {found.origin.about}")
        print(found.path)

    @policy.command("list")
    def list_policies() -> None:
        """List the models that are known by name, and those that were fetched."""
        _show()

    @policy.command("clear")
    def clear(
        name: Annotated[
            str | None, typer.Argument(help="Name of a fetched model or of its folder; default: all.")
        ] = None,
    ) -> None:
        """Remove fetched models."""
        _clear(name)


def _show() -> None:
    table = Table(title=f"models in {policies_folder()}", title_justify="left", header_style="bold")
    for column in ("model", "licence", "size", "folder", "from"):
        table.add_column(column, justify="right" if column == "size" else "left", overflow="fold")
    for policy in cached_policies():
        cells = (policy.origin.name, policy.origin.licence, decimal(policy.bytes), policy.path.name)
        table.add_row(*map(Text, (*cells, policy.origin.source)))
    for model in CATALOGUE.values():
        if read_cached(known_folder(model)) is None:
            size = f"{model.megabytes} MB to fetch"
            table.add_row(*map(Text, (model.name, model.licence, size, "–", model.source)))
    console = Console()
    if not console.is_terminal:
        console.width = 160
    console.print(table)


def _clear(name: str | None) -> None:
    if not policies_folder().is_dir():
        raise FetchError(f"no model was fetched: {policies_folder()} does not exist")
    try:
        _remove(name)
    except OSError as error:
        raise FetchError(f"{policies_folder()}: {error}") from error


def _remove(name: str | None) -> None:
    with locked():
        cached = cached_policies()
        chosen = [p for p in cached if name is None or name in (p.origin.name, p.path.name)]
        if name is not None and not chosen:
            known = ", ".join(policy.path.name for policy in cached) or "none"
            raise FetchError(f"no fetched model is called {name!r}; there are: {known}")
        for policy in chosen:
            size = decimal(policy.bytes)
            remove_policy(policy)
            print(f"removed {policy.path} ({size})")
