"""The command ``agl`` (also ``agent-lightning``). Every subcommand comes in through ``agl_commands``."""

from __future__ import annotations

import logging
import sys

import typer

from agentlightning import plugins
from agentlightning.types import UsageError


def app() -> typer.Typer:
    """The application with every plugin's commands."""
    root = typer.Typer(
        name="agl",
        help="Train agents you have already written.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    for spec in plugins.load().commands.values():
        spec.register(root)
    return root


def main() -> None:
    """Entry point. Errors a person can mend are printed as one message, without a traceback."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        app()()
    except UsageError as error:
        print(f"agl: {error}", file=sys.stderr)
        raise SystemExit(2) from None
