"""A task folder in Harbor's format: what its ``task.toml`` and its Dockerfile say, read and judged at once.

A folder holds ``task.toml``, ``instruction.md``, ``environment/Dockerfile``, ``tests/test.sh`` and perhaps
``solution/solve.sh``. Invariant: a task that a sandbox cannot be, or whose files are wrong, is refused by
name here, before an attempt of it begins.
"""

from __future__ import annotations

import os
import re
import tarfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from agentlightning.plugins.options import checked_options
from agentlightning.redaction import SECRET_NAME
from agentlightning.types import UsageError
from agl_programs import dockerfile
from agl_programs.sandbox import bubblewrap

_TAKEN = {
    "bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sandbox", "sbin", "sys", "tmp", "usr"
}  # fmt: skip
"""First parts of paths at which a sandbox has something already."""
_NOTHING = {
    "CMD", "ENTRYPOINT", "EXPOSE", "FROM", "LABEL", "MAINTAINER", "STOPSIGNAL", "USER", "VOLUME"
}  # fmt: skip
"""Instructions that change nothing here: whoever runs a command is no user of this machine."""


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
            if any(PurePosixPath(path).is_relative_to(prefix) for prefix in bubblewrap.PREFIXES):
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
        this process; no other value is expanded. Raise :class:`.UsageError` for one that is not set, and for
        a secret that the agent would see.
        """
        found: dict[str, str] = dict(getattr(self.config, section).env)
        for key, value in found.items():
            if (asked := _FROM_HOST.fullmatch(value)) is None:
                continue
            name, default = asked.groups()
            if section == "environment" and SECRET_NAME.search(name):
                raise self.malformed(
                    "task.toml", f"env.{key} asks for {name}: no agent gets a secret of yours"
                )
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
