"""The policy that comes with this package."""

from __future__ import annotations

from pathlib import Path

TINY = "tiny"
"""Its name."""


def tiny_policy() -> Path:
    """Return the folder of the policy that comes with this package; in a checkout, the quickstarts' one."""
    here = Path(__file__).parents[1] / "tiny_policy"
    return here if here.is_dir() else Path(__file__).parents[5] / "examples" / "quickstart" / "policy"
