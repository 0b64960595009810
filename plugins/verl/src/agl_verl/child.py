"""The process that is verl: started with its configuration, ended by the end of its standard input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

TAIL = 4000
PATIENCE = 30.0
"""Seconds that Ray may take to end by itself."""


class Child:
    """``python -m agl_verl.inside.main`` where verl is installed; what it prints goes to ``output``."""

    def __init__(
        self, python: str, overrides: Sequence[str], environment: Mapping[str, str], output: Path
    ) -> None:
        self._python, self._output = python, output
        self._order = json.dumps({"overrides": list(overrides)})
        self._environment = {**os.environ, "PYTHONUNBUFFERED": "1", "RAY_DEDUP_LOGS": "0", **environment}
        self._process: subprocess.Popen[bytes] | None = None
        self.status: int | None = None

    def start(self) -> None:
        """Start it. Raises OSError if there is no such interpreter."""
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [self._python, "-m", "agl_verl.inside.main"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,  # Ctrl-C is for us; we end it
            )
        assert self._process.stdin is not None
        self._process.stdin.write(self._order.encode() + b"\n")
        self._process.stdin.flush()

    def wait(self) -> int:
        """Its exit status, once it has ended."""
        assert self._process is not None
        self.status = self._process.wait()
        return self.status

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def tail(self) -> str:
        """The end of what it printed."""
        try:
            return self._output.read_bytes()[-TAIL:].decode(errors="replace").strip()
        except OSError:
            return "(nothing)"

    def close(self) -> None:
        """End it, and by force what does not follow. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        try:
            process.stdin.close()
            process.wait(PATIENCE)
        except (OSError, subprocess.TimeoutExpired):
            pass
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # Ray's daemons are in its session
            except ProcessLookupError:
                pass
            process.wait()
