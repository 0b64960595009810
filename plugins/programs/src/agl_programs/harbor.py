"""Task folders in Harbor's format: each attempt in a sandbox of its own, graded by the task's own tests.

    agent: {target: "agl_programs.harbor:play"}
    environment: {train: {target: "agl_programs.harbor:tasks", args: {folder: tasks}}}

A task folder holds ``task.toml``, ``instruction.md``, ``environment/Dockerfile``, ``tests/test.sh`` and
perhaps ``solution/solve.sh``. No image is built: the working folder and what the Dockerfile copies lie in the
sandbox at their paths, all programs are those of this machine, and its ``RUN`` lines run there, without
network. A task that cannot live so, or whose files are wrong, is refused by name when it is loaded.

Invariants: attempts share nothing; the tests, and the log folder into which they write the reward, come into
being after the last command of the agent, so it neither reads nor writes them; a missing reward is not zero.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import re
import secrets
import shlex
import tarfile
import tomllib
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

import agentlightning as agl
from agentlightning.plugins.options import checked_options
from agentlightning.types import LLM, UsageError
from agl_programs import dockerfile
from agl_programs.sandbox import bubblewrap
from agl_programs.sandbox.box import Sandbox, SandboxResult
from agl_programs.sandbox.bubblewrap import PREFIXES

_LOG = logging.getLogger(__name__)
Task = dict[str, Any]
TESTS, LOGS, SOLUTION = "/tests", "/logs", "/solution"
PRIMARY = "reward"
SHOWN = 8_000
"""Characters of a command's output that the model is shown: the last ones."""
_TAKEN = {
    "bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sandbox", "sbin", "sys", "tmp", "usr"
}  # fmt: skip
"""First parts of paths at which a sandbox has something already."""
_NOTHING = {
    "CMD", "ENTRYPOINT", "EXPOSE", "FROM", "LABEL", "MAINTAINER", "STOPSIGNAL", "USER", "VOLUME"
}  # fmt: skip
"""Instructions that change nothing here: whoever runs a command is no user of this machine."""
BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command in the task's environment and return its output.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}


class NotGraded(RuntimeError):
    """Tests that gave no reward."""


def _mebibytes(size: object) -> int:
    """``2G`` and the like, as Harbor reads them."""
    units = {"K": 1 / 1024, "M": 1, "G": 1024}
    if (found := re.fullmatch(r"\s*(\d+(?:\.\d+)?)([KMG])\s*", str(size), re.IGNORECASE)) is None:
        raise PydanticCustomError("size", "Input should be a number and K, M or G, such as '2G'")
    return int(float(found[1]) * units[found[2].upper()])


Size = Annotated[int, BeforeValidator(_mebibytes)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Part(BaseModel):
    """A section of ``task.toml``: what is read of it here. The rest has no effect, which is said."""

    model_config = ConfigDict(extra="allow")


class EnvironmentPart(_Part):
    """What the task needs. Bounds are those of :class:`.SandboxSection`."""

    os: str = "linux"
    workdir: str | None = None
    env: dict[str, str] = {}
    memory_mb: int | None = Field(default=None, ge=16)
    storage_mb: int | None = Field(default=None, ge=1)
    memory: Size | None = Field(default=None, ge=16)
    """The older form of ``memory_mb``, a text."""
    storage: Size | None = Field(default=None, ge=1)
    build_timeout_sec: Seconds = 600.0

    @field_validator("workdir")
    @classmethod
    def _absolute(cls, path: str | None) -> str | None:
        if path is not None and not path.startswith("/"):
            raise PydanticCustomError("path", "Input should be an absolute path")
        return path

    @model_validator(mode="after")
    def _one_size(self) -> EnvironmentPart:
        for new, old in ((self.memory_mb, self.memory), (self.storage_mb, self.storage)):
            if new and old and new != old:
                raise PydanticCustomError("size", "memory and memory_mb, or storage and storage_mb, differ")
        return self


class AgentPart(_Part):
    """How long the agent may work."""

    timeout_sec: Seconds = 600.0


class VerifierPart(AgentPart):
    """How long the tests may run, and their variables."""

    env: dict[str, str] = {}


class TaskConfig(BaseModel):
    """``task.toml``, as far as it matters here."""

    environment: EnvironmentPart = EnvironmentPart()
    agent: AgentPart = AgentPart()
    verifier: VerifierPart = VerifierPart()
    steps: list[Any] = []


_HONOURED = {"allow_internet": False, "network_mode": "no-network", "environment_mode": "shared", "gpus": 0}
"""Keys of which a sandbox honours this value alone."""
_FROM_HOST = re.compile(r"\$\{(\w+)(?::-(.*))?\}", re.DOTALL)
"""A value of ``env`` that Harbor takes from the variables of its own process."""


@dataclass(frozen=True)
class RunStep:
    """``RUN``: a line for the shell, with the working folder and the variables at that line."""

    line: str
    where: str
    env: Mapping[str, str]


@dataclass(frozen=True)
class CopyStep:
    """``COPY``: files and folders of this machine, each with its path in the environment."""

    files: Sequence[tuple[Path, str]]
    executable: bool


@dataclass(frozen=True)
class HarborTask:
    """A task folder. Raise :class:`.UsageError` for one that is none, or that needs more than a sandbox."""

    folder: Path
    workdir: str = field(default="/", init=False)
    env: dict[str, str] = field(default_factory=dict, init=False)
    steps: list[RunStep | CopyStep] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        for name in ("task.toml", "instruction.md", "environment/Dockerfile", "tests/test.sh"):
            if not (self.folder / name).is_file():
                raise self.refused(f"there is no {name}")
        given = self.config.environment
        if self.config.steps or given.os.lower() != "linux":
            raise self.refused("it has several steps, or another system than Linux")
        self.variables("verifier")  # before an attempt is made, not after it
        where = self._read_dockerfile()
        self.env.update(self.variables("environment"))
        object.__setattr__(self, "workdir", given.workdir or where)
        if self.workdir == "/":
            raise self.refused("its Dockerfile names no WORKDIR, and the root of a sandbox cannot be written")
        for path in self.places:
            if PurePosixPath(path).parts[1] in _TAKEN:
                raise self.refused(f"it writes to {path}, where a sandbox has the files of this machine")
            if any(PurePosixPath(path).is_relative_to(prefix) for prefix in PREFIXES):
                raise self.refused(f"it writes to {path}, where the Python of this machine lies")

    @cached_property
    def config(self) -> TaskConfig:
        """``task.toml``. Raise :class:`.UsageError` with a line for each key whose value is wrong."""
        try:
            given = tomllib.loads(self.text("task.toml"))
        except tomllib.TOMLDecodeError as error:
            raise self.malformed("task.toml", f"this is no TOML: {error}") from None
        return checked_options(TaskConfig, given, f"Harbor task {self.folder}: task.toml")

    @cached_property
    def places(self) -> dict[str, str]:
        """Path in the environment → folder of the sandbox's that stands there; the working folder first."""
        copied = [file for step in self.steps if isinstance(step, CopyStep) for file in step.files]
        folders = [path for source, path in copied if source.is_dir() or len(PurePosixPath(path).parts) > 2]
        roots = dict.fromkeys("/" + PurePosixPath(path).parts[1] for path in (self.workdir, *folders))
        found = {root: f"root-{root[1:]}" for root in roots}
        for _, path in copied:
            if PurePosixPath(path).parent == PurePosixPath("/") and path not in found:
                why = "and the root of a sandbox holds folders only"
                raise self.refused(f"its Dockerfile copies a file to {path}, {why}")
        return {self.workdir: inside(self.workdir, found), **found}

    def _read_dockerfile(self) -> str:
        """Read the steps and variables of the Dockerfile, and return its last working folder."""
        said, where = "", "/"
        shared: dict[str, str] = {}
        args: dict[str, str] = {}
        try:
            for name, rest in list(dockerfile.instructions(self.text("environment/Dockerfile"))):
                said = f"{name} {rest[:80]}".splitlines()[0].strip() + ": "
                known = {"PATH": bubblewrap.variables()["PATH"], **args, **self.env}
                if name == "FROM":  # what ARG declared before it is known below where ARG names it again
                    shared, args = {**shared, **args}, {}
                elif name == "ARG":
                    for key, value in dockerfile.arguments(rest, known).items():
                        if (default := shared.get(key) if value is None else value) is not None:
                            args[key] = default
                elif name == "ENV":
                    self.env.update(dockerfile.variables(rest, known))
                elif name == "WORKDIR":
                    where = normpath(PurePosixPath(where, dockerfile.folder(rest, known)))
                elif name == "RUN":
                    self.steps.append(self._run_step(rest, where, known))
                elif name in ("COPY", "ADD"):
                    self.steps.append(self._copy_step(name, rest, where, known))
                elif name not in _NOTHING:
                    raise self.refused(f"its Dockerfile says {name}")
        except (ValueError, OSError) as error:
            raise self.malformed("environment/Dockerfile", f"{said}{error}") from None
        except dockerfile.NeedsImage as error:
            raise self.refused(f"its Dockerfile says {said}{error}") from None
        return where

    def _run_step(self, rest: str, where: str, known: Mapping[str, str]) -> RunStep:
        flags, line = dockerfile.flags(rest)
        if flags:
            raise self.refused(f"its Dockerfile says RUN --{next(iter(flags))}")
        if not line:
            raise ValueError("RUN needs a command")
        return RunStep(dockerfile.command(line), where, known)

    def _copy_step(self, name: str, rest: str, where: str, known: Mapping[str, str]) -> CopyStep:
        """Look for what ``COPY`` and ``ADD`` copy: files, or what a folder holds, of ``environment``."""
        flags, words = dockerfile.flags(rest)
        if others := flags.keys() - {"chown", "chmod", "link"}:  # there is one user
            raise self.refused(f"its Dockerfile says {name} --{min(others)}")
        *sources, target = dockerfile.paths(words, known) or [""]
        if not sources:
            raise ValueError(f"{name} needs what to copy, and where to")
        found = [path for source in sources for path in self._sources(name, source)]
        into = normpath(PurePosixPath(where, target))
        if into == "/":
            raise self.refused("its Dockerfile copies to /, and the root of a sandbox cannot be written")
        folder = len(found) > 1 or target.rpartition("/")[2] in ("", ".", "..")
        files = [(path, f"{into}/{path.name}" if folder and path.is_file() else into) for path in found]
        return CopyStep(files, bool(re.search("[1357x]", flags.get("chmod", ""))))

    def _sources(self, name: str, source: str) -> list[Path]:
        """The files and folders that a word of ``COPY`` names; it may be a pattern."""
        if "://" in source or source.startswith(("git@", "<<")):
            raise self.refused(f"its Dockerfile says {name} {source}, which is no file of its environment")
        context = (self.folder / "environment").resolve()
        inner = source.lstrip("/")
        found = [context / inner] if (context / inner).exists() else sorted(context.glob(inner))
        if not found or not all(path.resolve().is_relative_to(context) for path in found):
            raise ValueError(f"{source} is not in the folder environment")
        for path in found:
            if name == "ADD" and path.is_file() and tarfile.is_tarfile(path):
                raise self.refused(f"its Dockerfile says ADD {source}, an archive that has to be unpacked")
        return found

    def text(self, name: str) -> str:
        """The text of one of its files. Raise :class:`.UsageError` if it is none."""
        try:
            return (self.folder / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise self.malformed(name, f"it cannot be read: {error}") from None

    def limits(self) -> dict[str, int]:
        """The sandbox's limits in bytes, as far as the task names any."""
        given = self.config.environment
        sizes = {"memory": given.memory_mb or given.memory, "disk": given.storage_mb or given.storage}
        return {limit: size << 20 for limit, size in sizes.items() if size}

    def variables(self, section: str) -> dict[str, str]:
        """``env`` of a section. As in Harbor, a value ``${NAME}`` or ``${NAME:-default}`` is that variable of
        this process; no other value is expanded. Raise :class:`.UsageError` for one that is not set.
        """
        found: dict[str, str] = dict(getattr(self.config, section).env)
        for key, value in found.items():
            if (asked := _FROM_HOST.fullmatch(value)) is None:
                continue
            name, default = asked.groups()
            if default is None and name not in os.environ:
                why = f"{section}.env.{key} asks for the variable {name}, which is not set: set it, or write "
                raise self.malformed("task.toml", f"{why}${{{name}:-DEFAULT}}")
            found[key] = os.environ.get(name, default)
        return found

    def notes(self) -> Iterator[str]:
        """What whoever runs the task should know of its ``task.toml``."""
        for section in ("environment", "agent", "verifier"):
            part: _Part = getattr(self.config, section)
            for key, value in (part.model_extra or {}).items():
                if key not in _HONOURED or _HONOURED[key] != value:
                    yield f"{section}.{key} has no effect in a sandbox"
            for value in getattr(part, "env", {}).values():
                if (asked := _FROM_HOST.fullmatch(value)) and asked[1] in os.environ:
                    yield f"{section}.env is given the variable {asked[1]} of this process"

    def malformed(self, file: str, why: str) -> UsageError:
        """The error of a task folder that is wrong in itself."""
        return UsageError(f"Harbor task {self.folder}: {file}: {why}")

    def refused(self, why: str) -> UsageError:
        """The error of a task that cannot be run here."""
        return UsageError(f"Harbor task {self.folder}: {why}; `harbor run` runs it in a container")


def inside(path: str, places: Mapping[str, str]) -> str:
    """Return the path in a sandbox's folder of a path in its environment. ``ValueError`` for one that is
    nobody's.
    """
    for place in sorted(places, key=len, reverse=True):
        if PurePosixPath(path).is_relative_to(place):
            return str(PurePosixPath(places[place]) / PurePosixPath(path).relative_to(place))
    raise ValueError(f"{path}: an environment's files lie below {', '.join(places)}")


class Trial:
    """A task's environment for one attempt, in a block of :func:`trial`."""

    def __init__(self, task: HarborTask, box: Sandbox) -> None:
        self.task, self._box = task, box

    async def run(
        self, command: str | Sequence[str], *, stdin: str = "", env: Mapping[str, str] | None = None
    ) -> SandboxResult:
        """Run a command in the working folder: a list of words, or a line for ``/bin/sh``."""
        return await self._box.run(command, stdin=stdin, env={**self.task.env, **(env or {})})

    def write(self, path: str, content: str | bytes, *, executable: bool = False) -> None:
        """Write a file; a relative path begins at the working folder."""
        whole = str(PurePosixPath(self.task.workdir, path))
        self._box.write(inside(whole, self._box.places), content, executable=executable)

    def copy(self, source: Path, path: str, *, executable: bool = False) -> None:
        """Copy a file of this machine, or what a folder of it holds. ``executable``: even those that are not
        so on this machine.
        """
        for file in [source] if source.is_file() else sorted(source.rglob("*")):
            if file.is_file():
                target = PurePosixPath(path, file.relative_to(source).as_posix())
                self.write(str(target), file.read_bytes(), executable=executable or os.access(file, os.X_OK))

    def read(self, path: str) -> bytes:
        """Return the content of a file, as :meth:`.Sandbox.read` does."""
        return self._box.read(inside(str(PurePosixPath(self.task.workdir, path)), self._box.places))

    async def solve(self) -> SandboxResult:
        """Run the task's own solution, in the agent's stead."""
        self._place(SOLUTION)
        self.copy(self.task.folder / "solution", SOLUTION)
        return await self.run(f"chmod +x {SOLUTION}/*; {SOLUTION}/solve.sh")

    async def grade(self) -> dict[str, float]:
        """Run the tests, and return their rewards by name, ``reward`` among them. The agent's part ends here.
        Raise :class:`NotGraded` if the tests wrote no reward, or one that is no number.
        """
        box = self._box
        box.section = box.section.model_copy(update={"seconds": self.task.config.verifier.timeout_sec})
        self._place(TESTS)
        self.copy(self.task.folder / "tests", TESTS)
        logs = self._place(LOGS)
        for name in ("agent", "verifier", "artifacts"):
            box.add_folder(f"{logs}/{name}")
        env = self.task.variables("verifier")
        done = await self.run(f"chmod +x {TESTS}/test.sh; {TESTS}/test.sh", env=env)
        said = f"status {done.status}{f', ended by {done.ended}' if done.ended else ''}: {done.stderr[-500:]}"
        for name in ("reward.json", "reward.txt"):
            try:
                text = box.read(f"{logs}/verifier/{name}").decode()
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                raise NotGraded(f"{self.task.folder}: {name} cannot be read: {error}") from None
            return _rewards(text, f"{self.task.folder}: {name}")
        raise NotGraded(f"{self.task.folder}: the tests wrote no {LOGS}/verifier/reward.txt ({said})")

    def _place(self, path: str) -> str:
        """Give a path a folder that nobody has seen."""
        name = f"{path[1:]}-{secrets.token_hex(8)}"
        self._box.add_folder(name)
        self._box.places = {**self._box.places, path: name}
        return name


def _rewards(text: str, where: str) -> dict[str, float]:
    try:
        found = json.loads(text)
        named = found if isinstance(found, dict) else {PRIMARY: found}
        rewards = {str(name): float(value) for name, value in named.items()}
    except (ValueError, TypeError) as error:
        raise NotGraded(f"{where} holds {text[:60]!r}: {error}") from None
    if len(rewards) == 1:
        rewards = {PRIMARY: next(iter(rewards.values()))}
    if PRIMARY not in rewards or not all(map(math.isfinite, rewards.values())):
        raise NotGraded(f"{where} holds {text[:60]!r}: a finite number called {PRIMARY} is wanted")
    return rewards


@asynccontextmanager
async def trial(task: Mapping[str, Any]) -> AsyncIterator[Trial]:
    """Open the environment of a task of :func:`tasks`. Raise :class:`.UsageError` if it cannot be made."""
    found = HarborTask(Path(task["folder"]))
    async with Sandbox(seconds=found.config.environment.build_timeout_sec, **found.limits()) as box:
        for place in found.places.values():
            _made(box, place)
        box.places = found.places
        one = Trial(found, box)
        for step in found.steps:
            if isinstance(step, RunStep):
                done = await one.run(f"cd {shlex.quote(step.where)}\n{step.line}", env=step.env)
                if not done.ok:
                    said = done.ended or done.stderr.strip()[-200:]
                    raise found.refused(f"its line RUN {step.line[:80]} fails without its image: {said}")
            else:
                for source, path in step.files:
                    _copy(one, source, path, step.executable)
        box.section = box.section.model_copy(update={"seconds": found.config.agent.timeout_sec})
        yield one


def _made(box: Sandbox, name: str) -> None:
    try:
        box.add_folder(name)
    except FileExistsError:
        pass  # the working folder lies in a place of its own, or is one


def _copy(one: Trial, source: Path, path: str, executable: bool) -> None:
    try:
        one.copy(source, path, executable=executable)
    except IsADirectoryError:  # as in Docker, a file is put into the folder that is there
        one.copy(source, f"{path}/{source.name}", executable=executable)


def tasks(folder: str, names: Sequence[str] | None = None, max_turns: int = 16) -> list[Task]:
    """Return the task folders below ``folder``, or those of ``names``, in the order of their names.
    ``max_turns``: the answers that :func:`play` asks the model for. Raise :class:`.UsageError` for a task
    that cannot be run in a sandbox, and if there is none.
    """
    root = Path(folder).expanduser().resolve()
    found = (
        [root / name for name in names] if names else sorted(path.parent for path in root.glob("*/task.toml"))
    )
    if not found:
        raise UsageError(f"{root} holds no task folders of Harbor (NAME/task.toml)")
    made = [HarborTask(one) for one in found]
    noted: dict[str, list[str]] = defaultdict(list)
    for one in made:
        for note in dict.fromkeys(one.notes()):
            noted[note].append(one.folder.name)
    for note, those in noted.items():
        _LOG.warning("%s: task.toml: %s (tasks: %d; the first: %s)", root, note, len(those), those[0])
    return [
        {
            "folder": str(one.folder),
            "name": one.folder.name,
            "instruction": one.text("instruction.md"),
            "max_turns": max_turns,
        }
        for one in made
    ]


@agl.rollout
async def play(task: Mapping[str, Any], llm: LLM) -> float:
    """Work on a task with the tool ``bash`` until an answer calls none, and return the reward of its tests.
    When the turns or the time of the agent are used up, the task is graded as it stands.
    """
    async with trial(task) as one:
        try:
            async with asyncio.timeout(one.task.config.agent.timeout_sec):
                turns = await _played(one, task, llm)
        except TimeoutError:
            turns = task["max_turns"]
        rewards = await one.grade()
    agl.emit_reward(float(turns), name="turns", final=False)
    return report(rewards)


def report(rewards: Mapping[str, float]) -> float:
    """Emit all rewards of a grading but ``reward``, which is returned."""
    for name, value in rewards.items():
        if name != PRIMARY:
            agl.emit_reward(value, name=name, final=False)
    return rewards[PRIMARY]


async def _played(one: Trial, task: Mapping[str, Any], llm: LLM) -> int:
    from openai import AsyncOpenAI

    messages: list[Any] = [{"role": "user", "content": task["instruction"]}]
    tools: Any = [BASH]
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        for turn in range(1, task["max_turns"] + 1):
            answer = await client.chat.completions.create(model=llm.model, messages=messages, tools=tools)
            message = answer.choices[0].message
            if not message.tool_calls:
                return turn
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                said = await _called(one, call)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": said})
    return int(task["max_turns"])


async def _called(one: Trial, call: Any) -> str:
    """Run a call of the tool; the model is told what was wrong with it."""
    try:
        command = json.loads(call.function.arguments)["command"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f'error: call bash with {{"command": …}}: {error!r}'
    if not isinstance(command, str) or "\0" in command:
        return "error: command is a text"
    done = await one.run(command)
    shown = (done.stdout + done.stderr)[-SHOWN:]
    return shown if done.ok else f"{shown}\n[status {done.status}{f', {done.ended}' if done.ended else ''}]"
