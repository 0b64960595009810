"""A sandbox as Python code uses it: for the tools of an agent, and for the tests of a task.

    async with agl.Sandbox(memory="512MB", seconds=10) as box:
        await box.run(["python", "solution.py"], files={"solution.py": text}, stdin="3 4")

Invariant: a command finds what its words, its files and its ``env`` say, and nothing else of the run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from pydantic import ValidationError

from agentlightning.runner.threads import in_thread
from agentlightning.types import UsageError
from agl_programs.sandbox import bubblewrap, engine, files
from agl_programs.sandbox.run import run
from agl_programs.sandbox.settings import SandboxSection

SECONDS = 60.0
"""Wall time of a command that has no other limit."""
OUTPUT_BYTES = 1 << 20
"""Bytes that are kept of each output stream: the last ones."""


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """How a command ended.

    ``status``: its exit status, negative for a signal; 127: there is no such command. ``ended``: the limit
    that ended it (``seconds``, ``cpu``, ``memory``, ``processes``, ``disk``), empty if it ended by itself.
    ``dropped``: bytes of output before the kept ones.
    """

    status: int
    stdout: str
    stderr: str
    ended: str
    dropped: int
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with status 0."""
        return self.status == 0 and not self.ended


class Sandbox:
    """Runs commands that are not trusted. ``limits``: the fields of :class:`.SandboxSection`.

    In a block of ``async with``, all commands share one folder and one ``/tmp``, removed at its end. Raise
    :class:`.UsageError` for a limit that is none, and where this machine cannot make a sandbox: nothing is
    ever run without one.
    """

    places: Mapping[str, str] = {}
    """Absolute path that a command finds → folder of this sandbox's own that stands there; commands start in
    the first. None: they start in the sandbox's folder.
    """

    def __init__(self, **limits: Any) -> None:
        try:
            self.section = SandboxSection(**{"seconds": SECONDS, **limits})
        except ValidationError as error:
            found = error.errors()[0]
            raise UsageError(f"Sandbox: {'.'.join(map(str, found['loc']))}: {found['msg']}") from None
        if self.section.image is None:
            bubblewrap.check()
            bubblewrap.readable(self.section.read, Path.cwd())
        else:
            engine.found(self.section)
        self._user: int | None = None
        self._folder: Path | None = None
        self._tmp: Path | None = None

    async def __aenter__(self) -> Sandbox:
        self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        folder, self._folder, self._tmp = self._folder, None, None
        if folder is not None:
            await in_thread(files.remove, folder.parent)

    async def run(
        self,
        command: str | Sequence[str],
        *,
        files: Mapping[str, str | bytes] | None = None,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
    ) -> SandboxResult:
        """Run a command: a list of words, or a line for ``/bin/sh``. ``files``: path in the folder → content,
        written before. ``env``: its variables beside ``PATH``, ``HOME`` and the like. Raise
        :class:`.NotStarted` if the sandbox could not be made: then the command has no result.
        """
        if self._folder is None or self._tmp is None:
            async with type(self)(**self.section.model_dump()) as alone:
                return await alone.run(command, files=files, stdin=stdin, env=env)
        for name, content in (files or {}).items():
            self.write(name, content)
        words = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        if not words or not all(isinstance(word, str) and "\0" not in word for word in words):
            raise UsageError(f"Sandbox: the command {words!r} is no list of texts")
        began = time.monotonic()
        if self.section.image is None:
            variables = {**bubblewrap.variables(), **(env or {})}
            readable = bubblewrap.readable(self.section.read, Path.cwd())
            end = await run(
                self.section, words, variables, self._folder, self._user,
                stdin=stdin, output_bytes=OUTPUT_BYTES, read=readable, places=self.places, tmp=self._tmp,
            )  # fmt: skip
        else:
            end = await engine.run(
                self.section, words, env or {}, self._folder,
                stdin=stdin, output_bytes=OUTPUT_BYTES, places=self.places, tmp=self._tmp,
            )  # fmt: skip
        child = end.child
        return SandboxResult(
            child.code, child.stdout.text, child.stderr.text, end.why,
            child.stdout.dropped + child.stderr.dropped, time.monotonic() - began,
        )  # fmt: skip

    def write(self, name: str, content: str | bytes, *, executable: bool = False) -> None:
        """Write a file into the folder. ``ValueError`` for a path that is not inside."""
        files.write(self._opened(), name, content, self._user, 0o755 if executable else 0o644)

    def add_folder(self, name: str) -> None:
        """Make an empty folder in the folder. ``OSError`` if something is there already."""
        files.make(self._opened(), name, self._user)

    def read(self, name: str, limit: int = 1 << 20) -> bytes:
        """Return the content of a file of the folder. ``OSError`` if there is no such file, or it is a link,
        a pipe or a folder; ``ValueError`` for a path that is not inside, or more bytes than ``limit``.
        """
        return files.read(self._opened(), name, limit)

    def _open(self) -> None:
        if self._folder is not None:
            raise RuntimeError("this sandbox is open already: make one for each block")
        self._user = bubblewrap.new_user() if self.section.image is None else None
        self._folder, self._tmp = files.new_folders(self._user)

    def _opened(self) -> Path:
        if self._folder is None:
            raise RuntimeError("this sandbox has a folder in a block of `async with` only")
        return self._folder
