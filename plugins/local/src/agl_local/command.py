"""``agl policy``: fetch pretrained models, list and remove those that were fetched."""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeAlias

import msgspec
import typer
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from agentlightning.terminal import Console
from agl_local.fresh import commands as fresh
from agl_local.policy.cache import (
    FetchError,
    cached_policies,
    locked,
    policies_folder,
    read_cached,
    remove_policy,
)
from agl_local.policy.catalogue import CATALOGUE
from agl_local.policy.fetch import describe, fetch as fetch_policy, known_folder

Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def register(app: typer.Typer) -> None:
    policy = typer.Typer(help="Make, check, fetch, list and remove policies.", no_args_is_help=True)
    app.add_typer(policy, name="policy")
    fresh.register(policy)

    @policy.command("fetch")
    def fetch(
        name: Annotated[
            str,
            typer.Argument(
                help="A name of `agl policy list`, a .gguf file, a folder with an adapter of LoRA, or "
                "owner/name of the Hugging Face hub (owner/name:file.gguf for one of several GGUF files)."
            ),
        ],
        as_json: Json = False,
    ) -> None:
        """Download and convert a model. The last line of stdout is the folder, for backend.policy."""
        found = fetch_policy(name)
        if as_json:
            _print({"folder": str(found.path), **msgspec.to_builtins(found.origin)})
            return
        print(*describe(found), found.path, sep="\n")

    @policy.command("list")
    def list_policies(as_json: Json = False) -> None:
        """List the models that are known by name, and those that were fetched."""
        if not as_json:
            _show()
            return
        _print(
            {
                "folder": str(policies_folder()),
                "fetched": [
                    {
                        "name": one.origin.name,
                        "folder": str(one.path),
                        "bytes": one.bytes,
                        "fetched": one.fetched.isoformat(timespec="seconds"),
                    }
                    for one in cached_policies()
                ],
                "known": [
                    {"name": one.name, "licence": one.licence, "megabytes": one.megabytes, "from": one.source}
                    for one in CATALOGUE.values()
                ],
            }
        )

    @policy.command("clear")
    def clear(
        name: Annotated[
            str | None, typer.Argument(help="Name of a fetched model or of its folder; default: all.")
        ] = None,
        as_json: Json = False,
    ) -> None:
        """Remove fetched models."""
        removed = _clear(name)
        if as_json:
            _print({"removed": [{"folder": path, "bytes": size} for path, size in removed]})
            return
        for path, size in removed:
            print(f"removed {path} ({decimal(size)})")


def _show() -> None:
    table = Table(title=f"models in {policies_folder()}", title_justify="left", header_style="bold")
    for column in ("model", "licence", "size", "fetched", "folder", "from"):
        table.add_column(column, justify="right" if column == "size" else "left", overflow="fold")
    for policy in cached_policies():
        cells = (policy.origin.name, policy.origin.licence, decimal(policy.bytes))
        table.add_row(
            *map(Text, (*cells, f"{policy.fetched:%Y-%m-%d %H:%M}", policy.path.name, policy.origin.source))
        )
    for model in CATALOGUE.values():
        if read_cached(known_folder(model)) is None:
            size = f"{model.megabytes} MB to fetch"
            table.add_row(*map(Text, (model.name, model.licence, size, "–", "–", model.source)))
    console = Console()
    if not console.is_terminal:
        console.width = 160
    console.print(table)


def _print(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


def _clear(name: str | None) -> list[tuple[str, int]]:
    if not policies_folder().is_dir():
        raise FetchError(f"no model was fetched: {policies_folder()} does not exist")
    try:
        return _remove(name)
    except OSError as error:
        raise FetchError(f"{policies_folder()}: {error}") from error


def _remove(name: str | None) -> list[tuple[str, int]]:
    with locked():
        cached = cached_policies()
        chosen = [p for p in cached if name is None or name in (p.origin.name, p.path.name)]
        if name is not None and not chosen:
            known = ", ".join(policy.path.name for policy in cached) or "none"
            raise FetchError(f"no fetched model is called {name!r}; there are: {known}")
        removed = []
        for policy in chosen:
            removed.append((str(policy.path), policy.bytes))
            remove_policy(policy)
        return removed
