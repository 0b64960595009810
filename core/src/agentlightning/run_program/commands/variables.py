"""The environment of a command: an allow-list of this process's variables, the task, and the user's own."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentlightning.run_program.commands.command import value_text

PASSED = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TERM", "TMPDIR",
    "PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "VIRTUAL_ENV",
    "CONDA_PREFIX", "NODE_PATH", "NODE_EXTRA_CA_CERTS", "NVM_DIR", "LD_LIBRARY_PATH", "JAVA_HOME", "GOPATH",
    "CARGO_HOME", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    "http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY",
    "NO_PROXY",
)  # fmt: skip
"""Variables that a program gets without being asked for; none of them usually holds a secret."""
FIELD = "AGL_TASK_"
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
HIDDEN = "[hidden]"


def passed_variables(base: Mapping[str, str], more: Sequence[str]) -> dict[str, str]:
    """Return the variables of ``base`` that are on the allow-list or match ``more``."""
    return {name: value for name, value in base.items() if _matches(name, (*PASSED, *more))}


def container_variables(variables: Mapping[str, str], own: Sequence[str]) -> list[str]:
    """Return the names of the variables for a container, which has its own ``PATH`` and the like: those that
    are not on the allow-list, and those of ``own``.
    """
    return [name for name in variables if _matches(name, own) or not _matches(name, PASSED)]


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def task_variables(task: Any) -> dict[str, str]:
    """Return a variable for each field of the task: ``AGL_TASK_QUESTION`` for ``question``. A character that
    no variable's name has becomes ``_``; of two fields with one name, the first counts. A text with a null
    byte is left out: ``AGL_TASK`` has it.
    """
    found: dict[str, str] = {}
    for field in task if isinstance(task, Mapping) else ():
        name = FIELD + re.sub(r"[^A-Za-z0-9_]", "_", str(field)).upper()
        value = value_text(task[field], "")
        if "\0" not in value:
            found.setdefault(name, value)
    return found


def hide_secrets(text: str, variables: Mapping[str, str]) -> str:
    """Return the text with the values of secret variables hidden: those whose name says key, token, secret,
    password or credential, of at least eight characters.
    """
    secrets = {value for name, value in variables.items() if _SECRET.search(name) and len(value) >= 8}
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text
