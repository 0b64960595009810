"""The subjects as the parent sees them: processes that are asked one thing at a time and idle in between."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parent
PATIENCE = 420.0
"""Seconds that a subject may take to start or to answer."""


class SubjectError(RuntimeError):
    """A subject that did not start, or could not do what it was asked; the text is its reason."""


@dataclass(frozen=True)
class Answer:
    """What a subject returned, and the wall-clock and CPU seconds of its process for it."""

    result: Any
    seconds: float
    cpu_seconds: float


class Child:
    """``child.py`` with one subject, in the environment of ``python``.

    The threads of OpenMP are set for the whole process, before any library is loaded. Raise SubjectError if
    it does not start.
    """

    def __init__(self, name: str, module: str, python: Path, folder: Path, threads: int) -> None:
        self.name = name
        self._peak_mb = 0
        settings = {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        self._process = subprocess.Popen(
            [str(python), str(HERE / "child.py"), module, str(folder), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env=os.environ | settings,
        )
        try:
            started = self._answer()
        except SubjectError:
            self.close()
            raise
        self.version = str(started.result)
        self.start_seconds = started.seconds

    def ask(self, method: str, **arguments: Any) -> Answer:
        """Call a method of the subject. Raise SubjectError with its reason if it fails."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"method": method, "arguments": arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise SubjectError(f"its process has ended with status {self._process.wait()}") from None
        return self._answer()

    def peak_mb(self) -> int:
        """Return the peak of the resident memory of the process and its children at its last answer, in MB.

        Where the system does not keep it (Linux does), this is what was resident then.
        """
        return self._peak_mb

    def close(self) -> None:
        """End the process, by force if it does not end by itself. Idempotent."""
        process = self._process
        if process.stdin is not None and not process.stdin.closed:
            process.stdin.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def _answer(self) -> Answer:
        assert self._process.stdout is not None
        impatient = threading.Timer(PATIENCE, self._process.kill)
        impatient.start()
        line = self._process.stdout.readline()
        impatient.cancel()
        if not line:
            status = self._process.wait()
            raise SubjectError(f"its process ended with status {status} (its last words are above)")
        process = psutil.Process(self._process.pid)
        self._peak_mb = round(sum(map(_peak, (process, *process.children(recursive=True)))) / 1e6)
        found = json.loads(line)
        if "error" in found:
            raise SubjectError(found["error"])
        return Answer(found["result"], found["seconds"], found["cpu_seconds"])


def _peak(process: psutil.Process) -> float:
    try:
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
        return next(1024.0 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return float(process.memory_info().rss)
