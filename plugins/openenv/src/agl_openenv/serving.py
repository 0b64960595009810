"""Servers of environments: at an address, or a child process of this one.

Invariant: a child ends with this process. It watches its standard input, which the system closes then.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

from agentlightning.child_environment import child_environment
from agl_openenv.session import EnvironmentFailed

_lock = threading.Lock()
_served: dict[str, tuple[subprocess.Popen[str], str]] = {}


def url_of(environment: str) -> str:
    """Return the address of an environment's server. ``module:app`` is served by a child process, one for all
    episodes of this process; it is started again if it has ended. Raise EnvironmentFailed if it does not
    start.
    """
    if environment.startswith(("http://", "https://")):
        return environment
    with _lock:
        known = _served.get(environment)
        if known is None or known[0].poll() is not None:
            known = _served[environment] = _start(environment)
        return known[1]


def _start(environment: str) -> tuple[subprocess.Popen[str], str]:
    variables = {**child_environment(os.environ), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    child = subprocess.Popen(
        [sys.executable, "-m", "agl_openenv.server", environment],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        env=variables,
    )
    assert child.stdout is not None and child.stdin is not None
    line = child.stdout.readline()
    if not line:
        child.stdout.close()
        child.stdin.close()
        raise EnvironmentFailed(
            f"the server of {environment!r} ended with status {child.wait()} before it served; "
            "its message is above"
        )
    return child, str(json.loads(line)["url"])
