"""Options of ``agl run``, checked before anything is opened."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentlightning.gateway import Upstream
from agentlightning.types import UsageError

POLICY = "policy"
"""Name under which the gateway serves the model."""
PLACEHOLDER = "{task}"


class CannotStart(UsageError):
    """There is no such program, or it is not executable. ``code``: exit status that a shell would give."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOptions:
    """One ``agl run``: a process for each of ``tasks``. ``per_entry``: a rollout for each call of an entry,
    beside those of the processes.
    """

    command: Sequence[str]
    tasks: Sequence[Any] = (None,)
    concurrency: int = 1
    upstream: str | None = None
    model: str | None = None
    api_key_env: str | None = None
    frozen: bool = False
    """The engine returns no token ids: only messages are recorded."""
    policy: Path | None = None
    driver: str = "local"
    adapters: Sequence[str] = ()
    select: str | list[str] | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None
    reward_file: str | None = None
    per_entry: bool = False
    store: str | None = None
    output: Path = Path("runs")
    run_id: str | None = None

    @property
    def name(self) -> str:
        """The program's name, fit for a folder."""
        words = [word for word in self.command if not word.startswith("-")]
        scripts = [word for word in words[1:] if word.endswith(".py")]
        stem = Path(scripts[0] if scripts else words[0] if words else "program").stem
        return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:60] or "program"

    def check(self) -> ProgramOptions:
        """Check the options and return them; :class:`UsageError` names the one that is wrong."""
        if not self.command:
            raise UsageError("there is no program to run: agl run [OPTIONS] -- python app.py")
        if (self.upstream is None) == (self.policy is None):
            raise UsageError(
                "name the model: either --upstream URL --model NAME (an engine that runs) "
                "or --policy FOLDER (served here)"
            )
        self._check_engine()
        shared = self.reward_file is not None and "{rollout}" not in self.reward_file
        if shared and min(self.concurrency, len(self.tasks)) > 1:
            raise UsageError(
                f"--reward-file {self.reward_file}: concurrent processes would share one file; put "
                "{rollout} into its name, and let the program take it from AGL_REWARD_FILE"
            )
        executable(self.command[0], os.environ)
        return self

    def _check_engine(self) -> None:
        if self.upstream is not None and self.model is None:
            raise UsageError(f"give --model, the name under which {self.upstream} serves the model")
        if self.api_key_env is not None and not os.environ.get(self.api_key_env):
            raise UsageError(f"--api-key-env {self.api_key_env}: this environment variable is not set")
        if self.policy is not None and not (self.policy / "config.json").is_file():
            raise UsageError(
                f"--policy {self.policy}: it holds no model in Hugging Face layout (no config.json)"
            )
        try:
            self.engine()
        except ValueError as error:
            raise UsageError(f"--upstream: {error}") from None

    def engine(self) -> Upstream | None:
        """The engine that ``upstream`` names; ``None`` where ``policy`` is served here."""
        if self.upstream is None or self.model is None:
            return None
        return Upstream(
            policy=POLICY,
            url=self.upstream,
            model=self.model,
            api_key=os.environ[self.api_key_env] if self.api_key_env else None,
            trainable=not self.frozen,
        )

    def arguments(self, task: Any) -> list[str]:
        """The command with ``{task}`` replaced by the task: text as it is, anything else as JSON."""
        text = task if isinstance(task, str) else json.dumps(task, ensure_ascii=False)
        return [word.replace(PLACEHOLDER, text) for word in self.command]


def executable(program: str, environment: Mapping[str, str]) -> str:
    """The path of a program; :class:`CannotStart`: there is none."""
    if found := shutil.which(program, path=environment.get("PATH")):
        return found
    path = Path(program)
    if path.is_dir():
        raise CannotStart(f"{program} is a folder, not a program", 126)
    if path.is_file() and os.sep in program:
        raise CannotStart(f"{program} is not executable: chmod +x it, or run it with its interpreter", 126)
    raise CannotStart(f"there is no program {program!r}", 127)


def read_tasks(file: Path) -> list[Any]:
    """The tasks of a JSON-lines file; an error names the line."""
    try:
        lines = file.read_text().splitlines()
    except OSError as error:
        raise UsageError(f"--tasks {file}: {error}") from None
    tasks = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                tasks.append(json.loads(line))
            except ValueError as error:
                raise UsageError(f"--tasks {file}: line {number} is not JSON: {error}") from None
    if not tasks:
        raise UsageError(f"--tasks {file}: it holds no task")
    return tasks


def read_input(text: str) -> Any:
    """The task of ``--input``: JSON, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def read_tags(given: Sequence[str]) -> dict[str, str]:
    """Tags from ``key=value`` texts."""
    tags = {}
    for item in given:
        key, sep, value = item.partition("=")
        if not sep or not key:
            raise UsageError(f"--tag {item!r}: write key=value")
        tags[key] = value
    return tags
