"""Which code something ran with: the content of a function, and the git commit that holds it.

Invariants: nothing here imports or runs what it looks at, and no file is written. What cannot be known is
``None`` and never guessed.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from agentlightning.child_environment import child_environment

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
