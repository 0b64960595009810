"""The command ``agl`` (also ``agent-lightning``). Plugins register every subcommand through ``agl_commands``.

Exit status: 0 done, 2 an error that the user can fix, 3 a run that learned nothing, 130 and 143 interrupted
by Ctrl-C and SIGTERM, with everything closed.
"""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from agentlightning._version import __version__
from agentlightning.child_environment import hide_secrets
from agentlightning.cli.interrupts import set_exit_status, sigterm_like_ctrl_c
from agentlightning.plugins.manager import load as load_plugins  # `plugins` is a command's module here
from agentlightning.plugins.suite import instead
from agentlightning.redaction import ShownLines, say, show_tracebacks
from agentlightning.types import UsageError
from agentlightning.types.base import meant


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM, under a name that typer does not swallow."""


class _Group(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted from None
        except Exception as error:
            if type(error).__name__ != "NoSuchOption":  # typer has a click of its own, or an installed one
                raise
            context, name = cast(Any, error).ctx, cast(Any, error).option_name
            options = [o for one in context.command.params for o in one.opts if o.startswith("-")]
            known_as = "option" if context.command.name in ("train", "doctor") else ""
            said = f"{context.command_path}: there is no option {name}{meant(name, options, known_as)}"
            raise UsageError(f"{said}; keys are given as --set key=value" if known_as else said) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Of an unknown command, say which distribution of the suite brings it, or what does that here."""
        if self.get_command(ctx, args[0]) is None:
            hint = instead(args[0], self.commands, "command")
            raise UsageError(f"agl {args[0]}: there is no such command{hint}")
        return super().resolve_command(ctx, args)


def app(line: Sequence[str] | None = None) -> typer.Typer:
    """Return the application with every plugin's commands.

    ``line``: the words of the command line. Only the command that they name is imported; the help lists the
    others by their :class:`.CommandSpec`.
    """
    root = typer.Typer(
        name="agl",
        cls=_Group,
        help="Train agents you have already written.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    root.callback()(_global_options)
    commands = load_plugins().commands
    named = next((word for word in line or () if not word.startswith("-")), "--help")
    # A plugin may register further commands: a word that names no spec may be one of them.
    every = (
        line is None or "_AGL_COMPLETE" in os.environ or (named not in commands and not named.startswith("-"))
    )
    for spec in commands.values():
        if every or spec.name == named or not spec.about:
            spec.register(root)
        else:
            root.command(spec.name, help=spec.about)(lambda: None)
    return root


def _print_version(asked: bool) -> None:
    if asked:
        print(f"agl {__version__}")
        raise typer.Exit


def _global_options(
    verbose: Annotated[
        int, typer.Option("-v", "--verbose", count=True, help="Log what happens (-vv: debug messages).")
    ] = 0,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Log errors only.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit."),
    ] = False,
) -> None:
    """Train agents you have already written."""
    levels = [logging.WARNING, logging.INFO, logging.DEBUG]
    logging.getLogger().setLevel(logging.ERROR if quiet else levels[min(verbose, 2)])


def main() -> None:
    """Entry point."""
    hide_secrets()
    show_tracebacks()
    run_command(lambda: app(sys.argv[1:])(prog_name="agl"))


def run_command(command: Callable[[], object]) -> None:
    """Run a command. Errors that a person can fix are printed as one message, without a traceback. What the
    terminal's encoding does not know is printed as an escape (``\\u2713``).
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    handler = logging.StreamHandler()
    handler.setFormatter(ShownLines("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    with sigterm_like_ctrl_c() as terminated:
        try:
            command()
        except UsageError as error:
            say(f"agl: {error}", file=sys.stderr)
            raise SystemExit(error.status) from None
        except (KeyboardInterrupt, Interrupted):
            print("agl: interrupted", file=sys.stderr)
            code = 128 + (signal.SIGTERM if terminated.is_set() else signal.SIGINT)
            set_exit_status(code)
            raise SystemExit(code) from None
