"""``agl logs``: the log of a run, or of all runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentlightning.redaction import say
from agentlightning.terminal import print_json
from agentlightning.types import UsageError
from agl_audit.commands import JsonLines
from agl_audit.locations import find_run
from agl_audit.log_tail import follow, last_entries, parse
from agl_audit.run_log import NAME, VARIABLE, log_of_all_runs


def register(app: typer.Typer) -> None:
    @app.command("logs")
    def logs(
        what: Annotated[
            str | None,
            typer.Argument(metavar="[RUN]", help="A run's id or folder; default: the log of all runs."),
        ] = None,
        following: Annotated[
            bool, typer.Option("--follow", "-f", help="Go on with what is written, until Ctrl-C.")
        ] = False,
        lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="At most so many entries.")] = 40,
        file: Annotated[
            Path | None, typer.Option(help=f"Another file for all runs than that of {VARIABLE}.")
        ] = None,
        as_json: JsonLines = False,
    ) -> None:
        """Print the last entries of a run's training.log, or of the log of all runs. With -f, go on."""
        path = log_file(what, file)
        if not path.is_file() and not following:
            raise UsageError(f"{path}: there is no log yet; a run writes it from its start")
        for entry in last_entries(path, lines):
            _print(entry, as_json)
        if following:
            for line in follow(path):
                _print(line, as_json)


def log_file(run: str | None, file: Path | None = None) -> Path:
    """Return the log of a run, or the one of all runs. Raise :class:`UsageError` if there is none."""
    if run is not None:
        if file is not None:
            raise UsageError("give either a run, or --file")
        folder = find_run(run).folder
        if folder is None:
            raise UsageError(f"{run}: its store is not in a run's folder, and so it has no {NAME}")
        return folder / NAME
    found = log_of_all_runs(file)
    if found is None:
        raise UsageError(
            f"no log of all runs is kept ({VARIABLE} is empty, or there is no home folder): name a run"
        )
    return found


def _print(entry: str, as_json: bool) -> None:
    if as_json:
        print_json(parse(entry).model_dump())
    else:
        say(entry)
