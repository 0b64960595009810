"""The process that is verl: started with its configuration, ended by the end of its standard input."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentlightning.child_environment import child_environment
from agentlightning.proxies import PROXIES
from agl_verl.process import session

log = logging.getLogger(__name__)

TAIL = 4000
ERROR = re.compile(r"[\w.]*(Error|Exception|Closed|Refused)\b.*:")
"""The line of a traceback that says what it was."""
PATIENCE = 30.0
"""Seconds that Ray may take to end by itself."""


class Child:
    """``python -m agl_verl.inside.main`` where verl is installed; what it prints goes to ``output``."""

    def __init__(
        self, python: str, overrides: Sequence[str], environment: Mapping[str, str], output: Path
    ) -> None:
        self._python, self.output = python, output
        self._order = json.dumps({"overrides": list(overrides)})
        self._environment = {
            **child_environment(os.environ, named=PROXIES),
            "PYTHONUNBUFFERED": "1",
            "RAY_DEDUP_LOGS": "0",
            **environment,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self.status: int | None = None

    def start(self) -> None:
        """Start it. Raises OSError if there is no such interpreter."""
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(
                [self._python, "-m", "agl_verl.inside.main"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,  # Ctrl-C is for us; we end it
            )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already: `wait` says how
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
            return self.output.read_bytes()[-TAIL:].decode(errors="replace").strip()
        except OSError:
            return "(nothing)"

    def error(self) -> str:
        """The last error that it named, on a line of its own; empty if there is none."""
        lines = self.output.read_bytes()[-50 * TAIL :].decode(errors="replace").splitlines()
        found = next((line for line in reversed(lines) if ERROR.match(line)), "")
        return f"\n{found.strip()[:500]}" if found else ""

    def close(self) -> None:
        """End it, and by force what does not follow: Ray's daemons and workers too. Idempotent."""
        process, self._process = self._process, None
        if process is None:  # closed already, or never started
            return
        assert process.stdin is not None
        try:
            process.stdin.close()
            process.wait(PATIENCE)
        except (OSError, subprocess.TimeoutExpired):
            pass
        finally:
            if left := session.end(process.pid):
                log.warning("processes of verl that do not end: %s", left)
            process.wait()
