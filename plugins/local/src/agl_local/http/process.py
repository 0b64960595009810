"""The engine as a child process: its own interpreter and cores, the driver's weights in shared memory.

It serves one policy, or several over one base, each a :class:`Tenant`. What every such process is asked is
in ``child``.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, Queue
from typing import IO, Any
from urllib.parse import urlencode

import msgspec

from agl_local.generation.orders import PauseMode
from agl_local.generation.request import EngineError
from agl_local.http.child import Child
from agl_local.network.lora import Lora
from agl_local.network.quantized import Kind
from agl_local.policy.shared import Handover, SharedWeights


class Beside(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A further policy of an engine process: LoRA over the base of its first one. ``files``: descriptors of
    its own ``SharedWeights``. The rest: as of :class:`EngineProcess`.
    """

    path: str
    name: str
    lora: Lora | None
    slots: int
    max_len: int | None
    files: tuple[int, ...] = ()


class EngineProcess(Child):
    """``python -m agl_local.http.server`` for one policy folder. Start it, or use it as a context manager."""

    def __init__(
        self, path: str | Path, *, name: str = "policy", threads: int | None = None, slots: int = 64,
        max_len: int | None = None, device: str = "cpu", dtype: str = "float32", version: int = 0,
        timeout: float = 120.0, deterministic: bool = False, weights: SharedWeights | None = None,
        token: str | None = None, quantize: Kind | None = None, lora: Lora | None = None,
        beside: Sequence[Beside] = (),
    ) -> None:  # fmt: skip
        """``quantize``, ``lora``: see ``policy.folder.load_policy`` and ``engine.Engine``. ``weights``: where
        new ones come from, if several engines share them; None: its own. ``token``: the API key that requests
        must bear, 16 characters or more; None: whoever reaches it may ask it. ``beside``: further policies,
        each of which is a :class:`Tenant`.
        """
        super().__init__(name, timeout)
        self._token = secrets.token_urlsafe(32)
        self._api_key = token or ""
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
        flags += [word for one in beside for word in ("--beside", msgspec.json.encode(one).decode())]
        self._command = [sys.executable, "-m", "agl_local.http.server", *flags, *given]
        self._files = [*self.weights.files, *(file for one in beside for file in one.files)]
        self.starting = threading.Lock()
        """Held while one of its policies starts it."""

    def start(self) -> str:
        """Start the child and wait until it is healthy; returns its address, ``http://127.0.0.1:port``.

        Raises EngineError with the end of the child's stderr when it dies or is not ready within
        ``timeout`` seconds.
        """
        self._launch(self._command, self._files, stdout=subprocess.PIPE)
        try:
            self._greet(time.monotonic() + self.timeout)
        except BaseException:
            self.close(timeout=0.1)
            raise
        return self.address

    def update(
        self, handover: Handover, version: int, mode: PauseMode = "drain", policy: str | None = None
    ) -> int:
        """Serve what :attr:`weights` published (``with engine.weights.publish(state(model)) as handover``);
        returns the version that is now served. ``policy``: which; None: its first.
        """
        query = urlencode({"policy": policy or self.name, "version": version, "mode": mode})
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

    def close(self, timeout: float = 10.0) -> None:
        """End the child, by force if it does not follow within ``timeout`` seconds. Idempotent."""
        process = self._process
        if self._own_weights:
            self.weights.close()
        super().close(timeout)
        if process is None:
            return
        assert process.stdout is not None
        if self._reader is None:
            process.stdout.close()
        else:
            self._reader.join(timeout)  # the pipe ends with the child, and the reader closes it

    def __enter__(self) -> EngineProcess:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _greet(self, deadline: float) -> None:
        process = self._process
        assert process is not None and process.stdout is not None
        self._tell(self._token, self._api_key)
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
        status, said = self._ask(method, path, body, {"X-AGL-Admin-Token": self._token})
        try:
            content = json.loads(said)
        except ValueError as error:
            raise self._broken(f"did not answer {method} {path}: {error!r}") from error
        if status != 200:
            message = content.get("error", content)
            raise EngineError(f"engine {self.name!r}, {method} {path}: {status} {message}")
        return dict(content)


class Tenant:
    """What one of the policies of ``process`` asks of it. The first that starts, starts the process;
    ``leave`` is told the policy's name when it asks no more.
    """

    def __init__(self, process: EngineProcess, name: str, leave: Callable[[str], None]) -> None:
        self.process = process
        self.name = name
        self._leave = leave

    @property
    def address(self) -> str:
        return self.process.address

    def start(self) -> str:
        """Start the process unless it runs; returns its address. Raises EngineError as ``EngineProcess``."""
        with self.process.starting:
            return self.process.address if self.process.alive() else self.process.start()

    def update(self, handover: Handover, version: int, mode: PauseMode = "drain") -> int:
        """As :meth:`EngineProcess.update`."""
        return self.process.update(handover, version, mode, self.name)

    def close(self) -> None:
        """Ask no more. Idempotent."""
        self._leave(self.name)


def _read_lines(source: IO[bytes], lines: Queue[bytes]) -> None:
    """Hand on the first line (empty: the end), then keep the pipe empty: the child must not block."""
    with source:
        lines.put(source.readline())
        while source.read(65536):
            pass
