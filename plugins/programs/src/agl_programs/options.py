"""Options of ``agl run``, checked before anything is opened."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from agentlightning.child_environment import engine_key
from agentlightning.types import UsageError
from agentlightning.types.base import NotJSON, read_json_lines
from agentlightning.types.work import missing_policy_message

if TYPE_CHECKING:
    from agentlightning.gateway import Upstream

POLICY = "policy"
"""Name under which the gateway serves the model."""
PLACEHOLDER = "{task}"
SCRIPTS = (".py", ".js", ".mjs", ".ts", ".sh", ".pl", ".rb")


class CannotStart(UsageError):
    """There is no such program, or it is not executable. ``code``: the exit status that a shell reports."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What answers the calls that are recorded: an engine elsewhere, or a policy that is served here."""

    upstream: Annotated[
        str | None, typer.Option(help="Base URL (…/v1) of the OpenAI-compatible engine that answers.")
    ] = None
    model: Annotated[str | None, typer.Option(help="Name under which that engine serves the model.")] = None
    api_key_env: Annotated[str | None, typer.Option(help="Environment variable with that engine's key.")] = (
        None
    )
    frozen: Annotated[
        bool, typer.Option("--frozen", help="That engine returns no token ids: record messages only.")
    ] = False
    policy: Annotated[
        Path | None,
        typer.Option(help="Model to serve here, not --upstream: a folder, or a name of `agl policy list`."),
    ] = None
    driver: Annotated[str, typer.Option(help="Driver that serves --policy.")] = "local"


@dataclass(frozen=True, kw_only=True)
class ProgramOptions(EngineOptions):
    """One ``agl run``: a process for each of ``tasks``. ``Annotated`` fields are options of the command."""

    command: Annotated[list[str], typer.Argument(metavar="PROGRAM [ARGS]…", help="What to run.")]
    adapters: Annotated[
        list[str] | None,
        typer.Option(
            "--adapter",
            help="Framework adapter to use; default: those of the frameworks that the program imports.",
        ),
    ] = None
    select: Annotated[
        list[str] | None, typer.Option(help="Agents whose calls are trained; re:… for a pattern.")
    ] = None
    concurrency: Annotated[int, typer.Option(min=1, help="Processes that run at the same time.")] = 1
    timeout: Annotated[float | None, typer.Option(help="Seconds after which a process is ended.")] = None
    reward_file: Annotated[
        str | None,
        typer.Option(help="File into which the program writes its reward; default: that of AGL_REWARD_FILE."),
    ] = None
    trusted: Annotated[
        bool,
        typer.Option("--trusted", help="The program's word about itself counts as that of your own code."),
    ] = False
    per_entry: Annotated[
        bool,
        typer.Option("--per-entry", help="A rollout for each call of an @agl.rollout or @agl.agent entry."),
    ] = False
    store: Annotated[
        str | None, typer.Option(help="The store to record in; default: one in the run's folder.")
    ] = None
    output: Annotated[Path, typer.Option(help="Where run folders are made.")] = Path("runs")
    run_id: Annotated[str | None, typer.Option(help="The run's id; default: time and program.")] = None
    listen: str | None = None
    """``host:port`` of the gateway; ``None``: a free port of 127.0.0.1."""
    tasks: Sequence[Any] = (None,)
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags of every call."""

    @property
    def name(self) -> str:
        """The program's name, as a part of a folder's name."""
        return program_name(self.command)

    def check(self) -> Self:
        """Return the options. Raise :class:`UsageError`, which names the option, for a wrong one."""
        if not self.command:
            raise UsageError("there is no program to run: agl run [OPTIONS] -- python app.py")
        self.check_engine()
        shared = self.reward_file is not None and "{rollout}" not in self.reward_file
        if shared and min(self.concurrency, len(self.tasks)) > 1:
            raise UsageError(
                f"--reward-file {self.reward_file}: concurrent processes would share one file; put "
                "{rollout} into its name, and let the program take it from AGL_REWARD_FILE"
            )
        executable(self.command[0], os.environ)
        return self

    def check_engine(self) -> None:
        """Raise :class:`UsageError` unless the options name one model that can answer."""
        if (self.upstream is None) == (self.policy is None):
            raise UsageError(
                "name the model: either --upstream URL --model NAME (an engine that runs) "
                "or --policy FOLDER_OR_NAME (served here)"
            )
        if self.upstream is not None and self.model is None:
            raise UsageError(f"give --model, the name under which {self.upstream} serves the model")
        if self.api_key_env is not None and not os.environ.get(self.api_key_env):
            raise UsageError(f"--api-key-env {self.api_key_env}: this environment variable is not set")
        if self.policy is not None:
            self.policy_folder()
        try:
            self.engine()
        except ValueError as error:
            raise UsageError(f"--upstream: {error}") from None

    def policy_folder(self) -> Path:
        """Return the folder of ``policy``; a pretrained one is fetched on first use."""
        from agentlightning.plugins.manager import load
        from agentlightning.train.policies import fetch_pretrained

        assert self.policy is not None
        fetched = None if self.policy.is_dir() else fetch_pretrained(self.policy, load())
        if fetched is None and not self.policy.is_dir():
            raise UsageError(f"--policy {missing_policy_message(self.policy)}")
        folder = fetched or self.policy
        if not (folder / "config.json").is_file():
            raise UsageError(f"--policy {folder}: it holds no model in Hugging Face layout (no config.json)")
        return folder

    def engine(self) -> Upstream | None:
        """Return the engine that ``upstream`` names, or ``None`` if ``policy`` is served here."""
        from agentlightning.gateway import Upstream  # here, so that `agl --help` does not import the gateway

        if self.upstream is None or self.model is None:
            return None
        return Upstream(
            policy=POLICY,
            url=self.upstream,
            model=self.model,
            api_key=engine_key(self.api_key_env) if self.api_key_env else None,
            trainable=not self.frozen,
        )

    def arguments(self, task: Any) -> list[str]:
        """Return the command with ``{task}`` replaced by the task: a text as it is, other values as JSON."""
        text = task if isinstance(task, str) else json.dumps(task, ensure_ascii=False)
        return [word.replace(PLACEHOLDER, text) for word in self.command]


def program_name(command: Sequence[str]) -> str:
    """Return the name of a command's program, as a part of a folder's name: that of its script, if it has
    one.
    """
    words = [word for word in command if not word.startswith("-")]
    scripts = [word for word in words[1:] if word.endswith(SCRIPTS)]
    stem = Path(scripts[0] if scripts else words[0] if words else "program").stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:60] or "program"


def executable(program: str, environment: Mapping[str, str]) -> str:
    """Return the path of a program. Raise :class:`CannotStart` if there is none."""
    if found := shutil.which(program, path=environment.get("PATH")):
        return found
    path = Path(program)
    if path.is_dir():
        raise CannotStart(f"{program} is a folder, not a program", 126)
    if path.is_file() and os.sep in program:
        raise CannotStart(f"{program} is not executable: chmod +x it, or run it with its interpreter", 126)
    raise CannotStart(f"there is no program {program!r}", 127)


def read_tasks(file: Path) -> list[Any]:
    """Return the tasks of a JSON-lines file. An error names the line."""
    try:
        tasks = read_json_lines(file)
    except NotJSON as error:
        raise UsageError(f"--tasks {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--tasks {file}: {error}") from None
    if not tasks:
        raise UsageError(f"--tasks {file}: it holds no task")
    return tasks


def read_input(text: str) -> Any:
    """Return the task of ``--input``: parsed if it is JSON, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def read_tags(given: Sequence[str]) -> dict[str, str]:
    """Return the tags in ``key=value`` texts."""
    tags = {}
    for item in given:
        key, sep, value = item.partition("=")
        if not sep or not key:
            raise UsageError(f"--tag {item!r}: write key=value")
        tags[key] = value
    return tags
