"""The environment of processes that run other people's code, and what they can see of this process.

Commands, worker processes of agents, programs of ``agl run`` and servers of environments get their variables
from :func:`child_environment`. :func:`hide_secrets` comes before: the secrets of the run leave the part of
this process that others can read. They stay in ``os.environ``, so that its own code finds them.

Invariants: no process that this one starts inherits a secret of the run. On Linux, other processes of the
same user read none from ``/proc``; root, and a user with ``CAP_SYS_PTRACE``, can read all of this process.
"""

from __future__ import annotations

import ctypes
import fnmatch
import logging
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from agentlightning.keys import CONTEXT_KEY
from agentlightning.proxies import PROXIES
from agentlightning.redaction import SECRET_NAME, redacted

log = logging.getLogger(__name__)
OF_THE_RUN = "AGL_"
"""Beginning of the suite's own variables. Those of them whose name says key, token, secret, password or
credential are the secrets of the run: no process of other people's code gets one.
"""
PLACES = ("AGL_STORAGE", *PROXIES)
"""Variables whose value is a URL, which is a secret if it holds a password or a token."""
_PR_SET_DUMPABLE = 4
_ENVIRONMENT_START = 47
"""Place of the first environment's address in ``/proc/self/stat``, behind the name in brackets."""
_taken: dict[str, str | None] = {}
"""Variables from which this process took a secret → what processes that it starts find there instead."""
_told: set[str] = set()


def engine_key(variable: str) -> str | None:
    """Return the key of a model's server in an environment variable; ``None`` if it is not set, or empty. In
    its place, processes that are started from now on find the placeholder of an attempt's key.
    """
    _taken[variable] = CONTEXT_KEY
    return os.environ.get(variable) or None


def store_password(variable: str) -> str | None:
    """Return the password of the run's store in an environment variable; ``None`` if it is not set, or empty.
    Processes that are started from now on do not find it.
    """
    _taken[variable] = None
    return os.environ.get(variable) or None


def child_environment(base: Mapping[str, str], *, named: Sequence[str] = ()) -> dict[str, str]:
    """Return the variables of ``base`` for a process of other people's code: without secrets of the run, keys
    of engines, the store's password, and URLs that hold one. ``named``: names that the user passes on,
    ``NAME_*`` for all that begin so, whatever they hold but secrets of the run.
    """
    hide_secrets()
    found = {}
    for name, value in base.items():
        if is_secret(name):
            continue
        if not matches(name, named):
            if _is_secret_url(name, value):
                continue
            if (instead := _taken.get(name, value)) is None:
                continue
            value = instead
        found[name] = value
    return found


def is_secret(name: str) -> bool:
    """Return whether a variable is a secret of the run."""
    return name.startswith(OF_THE_RUN) and SECRET_NAME.search(name) is not None


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether one of the patterns (``NAME``, ``NAME_*``) matches a name."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _is_secret_url(name: str, value: str) -> bool:
    if name not in PLACES or redacted(value) == value:
        return False
    if name in PROXIES and name not in _told:
        _told.add(name)
        log.warning(
            "%s holds a password and is not passed to agents: give them a proxy without one, or name the "
            "variable in agent.program.pass_env",
            name,
        )
    return True


# ------------------------------------------------------------------------------------ what others can read
def hide_secrets() -> None:
    """Take the secrets of the run out of what other processes can read of this one, and of what its children
    inherit. ``os.environ`` keeps them. Each call looks again: a variable may have been set meanwhile.

    On Linux the first environment is overwritten (``/proc/<pid>/environ`` shows it for as long as the process
    lives), and the kernel refuses other processes of this user access to its memory, its open files and that
    environment. It writes no core dump then.
    """
    names = [name for name in os.environ if _hidden(name)]
    if sys.platform == "linux":
        _overwrite(names)
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    for name in names:
        # What children inherit, and not os.environ.
        instead = _taken.get(name)
        os.unsetenv(name) if instead is None else os.putenv(name, instead)


def hidden_variables() -> dict[str, str]:
    """Return what :func:`hide_secrets` hides, for processes of this program, which do not inherit it."""
    return {name: value for name, value in os.environ.items() if _hidden(name)}


def _hidden(name: str) -> bool:
    return (
        is_secret(name)
        or name in _taken
        or (name in PLACES and redacted(os.environ[name]) != os.environ[name])
    )


def _overwrite(names: Sequence[str]) -> None:
    """Overwrite the values of variables in the memory with which this process was started."""
    if not names:
        return
    fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    start, end = int(fields[_ENVIRONMENT_START]), int(fields[_ENVIRONMENT_START + 1])
    if not start:  # the kernel does not say
        return
    wanted = b"|".join(re.escape(os.fsencode(name)) for name in names)
    for found in re.finditer(rb"(?:^|(?<=\0))(?:%b)=([^\0]+)" % wanted, ctypes.string_at(start, end - start)):
        ctypes.memset(start + found.start(1), ord("*"), len(found[1]))
