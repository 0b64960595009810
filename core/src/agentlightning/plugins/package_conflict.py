"""Detects another package called ``agentlightning`` in the environment, and names it.

Another distribution of that name ships its own modules. It overwrites ours, or hides them, and the import
errors that follow explain nothing.

Invariant: this module imports the standard library only and nothing of its own package, because the command
line loads it by path *before* anything named ``agentlightning`` is imported.
"""

from __future__ import annotations

import json
import shlex
import sys
from importlib.machinery import PathFinder
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

PACKAGE = "agentlightning"
CORE = "agl-core"
PACKAGE_FOLDER = Path(__file__).resolve().parents[1]


class PackageConflict(NamedTuple):
    """A package called ``agentlightning`` that is not ours."""

    version: str
    """Its version; ``unknown`` when no distribution stands behind it."""
    location: Path
    """The folder of its modules."""
    installed: bool
    """Whether pip knows it, so that pip can remove it."""

    def message(self) -> str:
        """Return the problem, its place, and the commands that mend it."""
        if self.installed:
            pip = shlex.join([sys.executable, "-m", "pip"])
            mend = [
                f"{pip} uninstall -y {PACKAGE}",
                f"{pip} install --force-reinstall --no-deps {_core_source()}",
            ]
        else:
            mend = [f"remove or rename {self.location}"]
        return (
            f"another package called {PACKAGE!r} is in this environment\n"
            f"  version {self.version}, in {self.location}\n"
            f"It hides or overwrites the modules of {CORE} in {PACKAGE_FOLDER}. To mend it:\n  "
            + "\n  ".join(mend)
        )


class PackageConflictError(ImportError):
    """Another package called ``agentlightning`` is in the environment."""


def find_conflict(path: list[str] | None = None, ours: Path = PACKAGE_FOLDER) -> PackageConflict | None:
    """Find a package in the folders of ``path`` (default: ``sys.path``) that is not ``ours``, or ``None``."""
    folders = sys.path if path is None else path
    spec = PathFinder.find_spec(PACKAGE, folders)
    origin = Path(spec.origin).parent if spec is not None and spec.origin is not None else None
    shadow = origin if origin is not None and origin.resolve() != ours else None
    found = next(iter(distributions(name=PACKAGE, path=folders)), None)
    if found is not None:
        return PackageConflict(found.version, _modules(found) or shadow or ours, installed=True)
    return PackageConflict("unknown", shadow, installed=False) if shadow is not None else None


def refuse_conflict() -> None:
    """Raise :class:`PackageConflictError`, with the commands that mend it, if a foreign package is found."""
    found = find_conflict()
    if found is not None:
        raise PackageConflictError(found.message())


def _modules(distribution: Distribution) -> Path | None:
    for file in distribution.files or ():
        if file.parts == (PACKAGE, "__init__.py"):
            return Path(str(distribution.locate_file(file))).parent
    return None


def _core_source() -> str:
    """Return pip's argument to reinstall the core: the checkout of its installation, else its name."""
    for core in distributions(name=CORE):
        origin = json.loads(core.read_text("direct_url.json") or "{}")
        url = urlsplit(origin.get("url", ""))
        if url.scheme == "file":
            editable = ["-e"] if origin.get("dir_info", {}).get("editable") else []
            from urllib.request import url2pathname  # here, as every start of agl would load a client for it

            return shlex.join([*editable, url2pathname(url.path)])
    return CORE
