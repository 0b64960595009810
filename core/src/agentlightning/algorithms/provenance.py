"""Where a run came from, as it is recorded at its start: the code's version, and what its policies are of.

The version of code is the content of a function and the git commit that holds it. Invariants: nothing here
imports or runs what it looks at, and no file is written. What cannot be known is ``None`` and never guessed.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from agentlightning.child_environment import child_environment

ORIGIN = "agl_origin.json"
"""File in an exported policy's folder: the run that trained it."""
_STEP = re.compile(r"step-0*(\d+)")


def code_of(agent: Any) -> dict[str, Any]:
    """Return the digest of the source of an agent and its file, and the git commit of its checkout, without
    what cannot be known.
    """
    source = source_digest(agent)
    found: dict[str, Any] = {"agent": source.both} if source.both else {}
    return {**found, **(git_state(source.path) if source.path is not None else {})}


def origin_of(policy: Path) -> dict[str, Any]:
    """Return what is known of a policy's folder: the run, step and name that trained it; else its name alone.

    It is known of an export, by :data:`ORIGIN`, and of a folder within a run's own.
    """
    told = read_object(policy / ORIGIN)
    if told:
        return told
    for folder in policy.parents[:4]:
        if info := read_object(folder / "run.json"):
            found = {"run": str(info.get("run_id", folder.name))}
            between = policy.relative_to(folder).parts
            steps = [int(m[1]) for part in between if (m := _STEP.fullmatch(part))]
            return {**found, **({"step": steps[0]} if steps else {}), "folder": "/".join(between)}
    return {"folder": policy.name}


def origins(policies: Mapping[str, Any]) -> dict[str, Any]:
    """Return the origin of each policy that is a folder; ``policies``: name → what has a ``path``, or not."""
    return {
        name: origin_of(Path(path).absolute())
        for name, given in policies.items()
        if (path := getattr(given, "path", None)) is not None
    }


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty without the file, or if it holds none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def installed(name: str) -> str | None:
    """Return the version of a distribution, ``None`` if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


# ---------------------------------------------------------------------------------------- code
GIT_SECONDS = 5.0
"""After which git counts as not available."""


class SourceDigest(NamedTuple):
    """sha256 of source texts; ``None`` where there is none, e.g. of a function written in C."""

    function: str | None
    """Of the function's own text."""
    file: str | None
    """Of the file that holds it: its helpers are there."""
    path: Path | None

    @property
    def both(self) -> str | None:
        """One digest of both; ``None`` if either is unknown."""
        if self.function is None or self.file is None:
            return None
        return hashlib.sha256(f"{self.function}{self.file}".encode()).hexdigest()


def source_digest(function: Callable[..., Any]) -> SourceDigest:
    """Return the digests of a function's source."""
    found: Any = inspect.unwrap(function)
    if not (inspect.isfunction(found) or inspect.ismethod(found) or inspect.isclass(found)):
        found = type(found)
    try:
        text = inspect.getsource(found)
        path = Path(inspect.getsourcefile(found) or "")
        content = path.read_bytes()
    except (OSError, TypeError):
        return SourceDigest(None, None, None)
    return SourceDigest(_sha256(text.encode()), _sha256(content), path)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def git_state(path: Path) -> dict[str, Any]:
    """Return ``commit`` and ``dirty`` of the git repository that holds ``path``; empty where there is none,
    or no git. ``dirty``: files that git tracks differ from the commit.
    """
    folder = path if path.is_dir() else path.parent
    if not any((above / ".git").exists() for above in (folder, *folder.absolute().parents)):
        return {}
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return {}
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if changed is None else bool(changed)}


def _git(folder: Path, *words: str) -> str | None:
    quiet = {**child_environment(os.environ), "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True, encoding="utf-8", timeout=GIT_SECONDS, env=quiet, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
