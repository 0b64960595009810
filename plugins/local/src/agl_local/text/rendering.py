"""Chat templates run in a process of their own, with limits on CPU time, memory and length of the text.

A template is a stranger's program: a loop without an end or a text of gigabytes must stop it and nothing
else. The sandbox of jinja2 guards what a template can reach, not what it can use up, so each rendering has a
limit of CPU time (the kernel ends the process, also within one long operation) and the process one of memory.
The process (``sandbox``) is started on first use, serves all templates of its parent, has none of its secrets
in the environment, and ends with it.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import IO, Any

from agl_local.text import sandbox

_KEPT = 64
"""Templates of one process."""
_ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "SYSTEMROOT", "TZ", "LANG")


class TemplateError(ValueError):
    """The template is broken, or it refused the messages (``raise_exception``); the text says which."""


class TemplateStopped(TemplateError):
    """The template broke a limit: of time, memory or length."""


class Renderer:
    """The process. Any thread may use it; renderings come one after another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]] | None = None
        self._sent: set[str] = set()

    def render(self, source: str, variables: Mapping[str, Any] | None, mapping: bool) -> str:
        """Render ``source``, or only read it if there are no ``variables``. ``mapping``: arguments of calls,
        which are texts, are given as JSON objects.

        Raise TemplateError with the template's own reason, or with the limit that it broke.
        """
        key = hashlib.sha256(source.encode(errors="surrogatepass")).hexdigest()
        order: dict[str, Any] = {"key": key, "variables": variables, "mapping": mapping}
        with self._lock:
            if (
                self._child is None
                or self._child[0].poll() is not None
                or (key not in self._sent and len(self._sent) >= _KEPT)
            ):
                self.close()
            if key not in self._sent:
                order["source"] = source
            try:
                line = json.dumps(order).encode()
            except (TypeError, ValueError, RecursionError) as error:
                raise TemplateError(f"chat template: the messages are not plain JSON: {error}") from None
            reply = self._ask(line, key)
        if "text" not in reply:
            raise (TemplateStopped if reply.get("stopped") else TemplateError)(reply["error"])
        return str(reply["text"])

    def close(self) -> None:
        """End the process, also in the middle of a rendering; the next rendering starts another one."""
        child, self._child = self._child, None
        self._sent.clear()
        if child is not None:
            process, *pipes = child
            process.kill()
            process.wait()
            for pipe in pipes:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _ask(self, line: bytes, key: str) -> dict[str, Any]:
        process, orders, answers = self._child or self._start()
        self._sent.add(key)
        try:
            orders.write(line + b"\n")
            orders.flush()
            answer = answers.readline()
        except (OSError, ValueError):  # it has ended, or ``close`` has closed the pipes
            answer = b""
        if not answer.endswith(b"\n"):
            status = process.wait()
            self.close()
            return {"error": _ended(status), "stopped": True}
        reply: dict[str, Any] = json.loads(answer)
        return reply

    def _start(self) -> tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]]:
        process = subprocess.Popen(
            [sys.executable, "-P", sandbox.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
        )
        assert process.stdin is not None and process.stdout is not None
        self._child = (process, process.stdin, process.stdout)
        return self._child


def _ended(status: int) -> str:
    if status == -signal.SIGPROF:
        return f"chat template: stopped: it was not done after {sandbox.SECONDS:g} seconds of CPU time"
    return f"chat template: stopped: its process ended with status {status}"


RENDERER = Renderer()
atexit.register(RENDERER.close)


def _forget() -> None:
    """A child that was forked off this process has no share in the pipes."""
    RENDERER.__init__()  # type: ignore[misc]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
