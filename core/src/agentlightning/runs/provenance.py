"""Where a run came from, as it is recorded at its start: the code's version, and what its policies are of."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentlightning.runs.code_version import git_state, source_digest

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
