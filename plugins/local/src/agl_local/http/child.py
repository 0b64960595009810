"""A child process that serves a policy, whatever its program: how it is started, watched, asked and ended.

Invariants: the child ends when ``close`` is called or its parent dies, however it dies; secrets travel
through a pipe, never on a command line or in an environment.
"""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from agl_local.generation.request import EngineError


class Child:
    """The process that serves the policy ``name``; a request to it may take ``timeout`` seconds, and its
    start too.
    """

    tail = 4000
    """Bytes of the end of its stderr that are shown when it dies."""

    def __init__(self, name: str, timeout: float) -> None:
        self.name = name
        self.address = ""
        """``http://127.0.0.1:port``, once it is started."""
        self.timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise EngineError("this engine process has not been started")
        return self._process.pid

    def died(self) -> str | None:
        """How the child ended by itself, with the end of its stderr; ``None``: it runs, or was closed."""
        process = self._process
        if process is None or (status := process.poll()) is None:
            return None
        how = f"exit status {status}" if status >= 0 else f"signal {-status} ({_signal_name(-status)})"
        if status == -signal.SIGKILL:
            how += ", which the kernel sends where memory is short"
        return f"{how}; its stderr ends with:\n{self._stderr_end()}"

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def close(self, timeout: float = 10.0) -> None:
        """End the child, by force if it does not follow within ``timeout`` seconds. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        try:
            process.stdin.close()
        except BrokenPipeError:
            pass  # it is dead already: there is nobody to tell
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        try:
            os.killpg(process.pid, signal.SIGKILL)  # what it began and left behind
        except (ProcessLookupError, PermissionError):
            pass  # nobody is left
        if self._stderr is not None:
            self._stderr.close()

    def copy_log(self, file: Path) -> None:
        """Write all that it has said to ``file``; nothing where it is not running, nor died before."""
        if self._stderr is None or self._stderr.closed:
            return
        with file.open("wb") as out:
            size = os.fstat(self._stderr.fileno()).st_size
            for at in range(0, size, 2**20):
                out.write(os.pread(self._stderr.fileno(), 2**20, at))

    def _launch(
        self,
        command: Sequence[str],
        files: Sequence[int],
        *,
        stdout: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start ``command``, which inherits ``files`` and ends with its standard input. ``stdout``: as of
        Popen; None: where its stderr goes.
        """
        if self._process is not None:
            raise EngineError("this engine process has been started already")
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=self._stderr if stdout is None else stdout,
            stderr=self._stderr,
            pass_fds=files,
            env=environment,
            process_group=0,  # Ctrl-C in the terminal is for us: we end the child when its calls are done
        )

    def _tell(self, *secrets: str) -> None:
        """Write lines to the child's standard input. Raises EngineError where it is dead already."""
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write("".join(f"{secret}\n" for secret in secrets).encode())
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._broken("died at once") from error

    def _ask(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        """Status and content of an answer. Raises EngineError where there is none."""
        if (how := self.died()) is not None:
            raise EngineError(f"the engine of policy {self.name!r} died: {how}")
        if self._process is None:
            raise self._broken("is not running")
        parts = urlsplit(self.address)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=self.timeout)
        try:
            connection.request(method, path, body, dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._broken(f"did not answer {method} {path}: {error!r}") from error
        finally:
            connection.close()

    def _broken(self, what: str) -> EngineError:
        said = f"{what}; its stderr ends with:\n{self._stderr_end()}"
        return EngineError(f"the engine process for policy {self.name!r} {said}")

    def _stderr_end(self) -> str:
        tail = b""
        if self._stderr is not None and not self._stderr.closed:
            size = os.fstat(self._stderr.fileno()).st_size
            tail = os.pread(self._stderr.fileno(), self.tail, max(0, size - self.tail))
        return tail.decode(errors="replace").strip() or "(nothing)"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unnamed"
