"""The versions of verifiers whose environments can be run, and of mcp, checked before the first import.

Versions before 0.4 have other classes, and mcp 1, which OpenEnv installs, other modules: without the check,
the import would fail with the name of a class or module, and say nothing of versions.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Final

from packaging.specifiers import SpecifierSet

from agentlightning.types import UsageError

SUPPORTED: Final = ">=0.4,<0.5"
MCP: Final = ">=2,<3"
"""What verifiers 0.4 imports."""


def check_version() -> None:
    """Raise :class:`.UsageError` if verifiers or mcp is missing, or of a version that is not supported."""
    install = f"pip install 'verifiers{SUPPORTED}'"
    try:
        found = version("verifiers")
    except PackageNotFoundError:
        raise UsageError(f"agl-verifiers: the library verifiers is not installed: {install}") from None
    if found not in SpecifierSet(SUPPORTED):
        raise UsageError(
            f"agl-verifiers: verifiers {found} is installed, whose environments have another interface than "
            f"those of {SUPPORTED}, which can be run here: {install}"
        )
    try:
        mcp = version("mcp")
    except PackageNotFoundError:
        mcp = "(no version)"
    if not SpecifierSet(MCP).contains(mcp):
        raise UsageError(
            f"agl-verifiers: mcp {mcp} is installed, and verifiers {found} needs mcp {MCP}: {install}. "
            "OpenEnv installs mcp 1: give it an environment (venv) of its own"
        )
