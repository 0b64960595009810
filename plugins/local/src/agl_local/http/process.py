"""The engine as a child process: its own interpreter and cores, the driver's weights in shared memory.

Invariants: the child ends when ``close`` is called or its parent dies, however it dies; the admin token and
the API key travel through a pipe, never on a command line or in an environment.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from queue import Empty, Queue
from typing import IO, Any
from urllib.parse import urlencode, urlsplit

import msgspec

from agl_local.generation.orders import PauseMode
from agl_local.generation.request import EngineError
from agl_local.network.lora import Lora
from agl_local.network.quantized import Kind
from agl_local.policy.shared import Handover, SharedWeights

_TAIL = 4000


class EngineProcess:
    """``python -m agl_local.http.server`` for one policy folder. Start it, or use it as a context manager."""

    def __init__(
        self, path: str | Path, *, name: str = "policy", threads: int | None = None, slots: int = 64,
        max_len: int | None = None, device: str = "cpu", dtype: str = "float32", version: int = 0,
        timeout: float = 120.0, deterministic: bool = False, weights: SharedWeights | None = None,
        token: str | None = None, quantize: Kind | None = None, lora: Lora | None = None,
    ) -> None:  # fmt: skip
        """``quantize``, ``lora``: see ``policy.folder.load_policy`` and ``engine.Engine``. ``weights``: where
        new ones come from, if several engines share them; None: its own. ``token``: the API key that requests
        must bear, 16 characters or more; None: whoever reaches it may ask it.
        """
        self.name = name
        self.address = ""
        self.timeout = timeout
        self._token = secrets.token_urlsafe(32)
        self._api_key = token or ""
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None
        self._reader: threading.Thread | None = None
        options = {"--policy": path, "--name": name, "--host": "127.0.0.1", "--port": 0, "--slots": slots,
                   "--threads": threads, "--max-len": max_len, "--device": device, "--dtype": dtype,
                   "--version": version, "--quantize": quantize,
                   "--lora": None if lora is None else msgspec.json.encode(lora).decode()}  # fmt: skip
        given = [text for key, value in options.items() if value is not None for text in (key, str(value))]
        self._own_weights = weights is None
        self.weights = SharedWeights(dtype) if weights is None else weights
        flags = ["--child", *(["--deterministic"] if deterministic else [])]
        flags += ["--weights", *map(str, self.weights.files)]
        self._command = [sys.executable, "-m", "agl_local.http.server", *flags, *given]

    def start(self) -> str:
        """Start the child and wait until it is healthy; returns its address, ``http://127.0.0.1:port``.

        Raises EngineError with the end of the child's stderr when it dies or is not ready within
        ``timeout`` seconds.
        """
        if self._process is not None:
            raise EngineError("this engine process has been started already")
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            pass_fds=self.weights.files,
            process_group=0,  # Ctrl-C in the terminal is for us: we end the child when its calls are done
        )
        try:
            self._greet(time.monotonic() + self.timeout)
        except BaseException:
            self.close(timeout=0.1)
            raise
        return self.address

    def update(self, handover: Handover, version: int, mode: PauseMode = "drain") -> int:
        """Serve what :attr:`weights` published (``with engine.weights.publish(state(model)) as handover``);
        returns the version that is now served.
        """
        query = urlencode({"policy": self.name, "version": version, "mode": mode})
        body = msgspec.json.encode(handover)
        return int(self._request("POST", f"/agl/weights?{query}", body)["version"])

    def pause(self, mode: str = "drain") -> None:
        """Start no new requests; returns when running ones have finished (drain) or stand still (hold)."""
        self._request("POST", "/agl/pause?" + urlencode({"policy": self.name, "mode": mode}))

    def resume(self) -> None:
        """End a pause."""
        self._request("POST", "/agl/resume?" + urlencode({"policy": self.name}))

    def version(self) -> int:
        """The version that is served."""
        return int(self._request("GET", "/agl/version?" + urlencode({"policy": self.name}))["version"])

    def metrics(self) -> dict[str, Any]:
        """Counts and state of the engine, see ``Engine.status``."""
        found: dict[str, Any] = self._request("GET", "/metrics")["policies"][self.name]
        return found

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
        if self._own_weights:
            self.weights.close()
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
        assert process.stdout is not None
        if self._reader is None:
            process.stdout.close()
        else:
            self._reader.join(timeout)  # the pipe ends with the child, and the reader closes it
        if self._stderr is not None:
            self._stderr.close()

    def __enter__(self) -> EngineProcess:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _greet(self, deadline: float) -> None:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(f"{self._token}\n{self._api_key}\n".encode())
            process.stdin.flush()
        except BrokenPipeError as error:
            raise self._broken("died at once") from error
        lines: Queue[bytes] = Queue()
        self._reader = threading.Thread(target=_read_lines, args=(process.stdout, lines), daemon=True)
        self._reader.start()
        try:
            line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            raise self._broken(f"was not ready within {self.timeout:g} s") from None
        if not line:
            process.wait(timeout=10)
            raise self._broken(f"ended with status {process.returncode}")
        self.address = str(json.loads(line)["address"])
        self._request("GET", "/health")

    def _request(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        if (how := self.died()) is not None:
            raise EngineError(f"the engine of policy {self.name!r} died: {how}")
        if self._process is None:
            raise self._broken("is not running")
        parts = urlsplit(self.address)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=self.timeout)
        try:
            connection.request(method, path, body, {"X-AGL-Admin-Token": self._token})
            answer = connection.getresponse()
            content = json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._broken(f"did not answer {method} {path}: {error!r}") from error
        finally:
            connection.close()
        if answer.status != 200:
            message = content.get("error", content)
            raise EngineError(f"engine {self.name!r}, {method} {path}: {answer.status} {message}")
        return dict(content)

    def _broken(self, what: str) -> EngineError:
        said = f"{what}; its stderr ends with:\n{self._stderr_end()}"
        return EngineError(f"the engine process for policy {self.name!r} {said}")

    def _stderr_end(self) -> str:
        tail = b""
        if self._stderr is not None and not self._stderr.closed:
            size = os.fstat(self._stderr.fileno()).st_size
            tail = os.pread(self._stderr.fileno(), _TAIL, max(0, size - _TAIL))
        return tail.decode(errors="replace").strip() or "(nothing)"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unnamed"


def _read_lines(source: IO[bytes], lines: Queue[bytes]) -> None:
    """Hand on the first line (empty: the end), then keep the pipe empty: the child must not block."""
    with source:
        lines.put(source.readline())
        while source.read(65536):
            pass
