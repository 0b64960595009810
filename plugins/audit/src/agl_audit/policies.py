"""The policies that a run has written: its exports and checkpoints.

A run writes its policy in Hugging Face layout to ``<run>/policy`` at its end (``<run>/policy/<name>`` for
each of several), and to every checkpoint before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentlightning.algorithms.journal import checkpoints_in
from agentlightning.plugins.manager import load as load_plugins
from agentlightning.train.policies import fetch_pretrained
from agentlightning.types import UsageError
from agl_audit.locations import find_run

CONFIG = "config.json"
"""A file that every model folder has."""
ADAPTER = "adapter_config.json"
"""A file that the folder of an adapter of LoRA has."""
_STEP = re.compile(r"step-(\d+)")


class NoPolicy(UsageError, LookupError):
    """A run or folder holds no such policy; the message names those that it holds."""


@dataclass(frozen=True, slots=True)
class TrainedPolicy:
    """A policy folder, and the run that trained it."""

    folder: Path
    """Model folder in Hugging Face layout."""
    run: Path | None = None
    """The run's folder; ``None`` for a model folder outside a run."""
    name: str | None = None
    """Name of the policy in a run with several."""
    step: int | None = None
    """Finished steps of the checkpoint that holds it; ``None``: the run's export."""
    best: Mapping[str, Any] | None = None
    """The record of its evaluation, if it is the run's best policy."""


def find_policy(what: str, *, step: int | None = None, name: str | None = None) -> TrainedPolicy:
    """Return the policy of a model folder or a run.

    ``what``: a model folder, or a run (its id, the beginning of its id, or its folder). ``step``: the policy
    of the checkpoint with that many finished steps; without it the run's export, or the newest checkpoint of
    a run that was interrupted. ``name``: one of several policies. Raise :class:`NoPolicy` or
    :class:`.NoSuchRun`.
    """
    folder = Path(what).expanduser()
    if (folder / CONFIG).is_file():
        if step is not None or name is not None:
            raise NoPolicy(f"{folder} is a model folder, not a run: leave --step, --policy and --best out")
        return TrainedPolicy(folder)
    run = run_folder(what)
    return choose(run, policies_of(run), step, name)


def pretrained_or_same(what: str) -> str:
    """Return the folder of a pretrained policy if ``what`` is its name (fetched on first use), else ``what``.
    Raise :class:`NoPolicy` for an adapter's folder, which has a name too.
    """
    if (Path(what).expanduser() / ADAPTER).is_file() and not (Path(what).expanduser() / CONFIG).is_file():
        raise NoPolicy(f"{what} holds an adapter of LoRA and no model: give adapter:{what}")
    if Path(what).exists() or (fetched := fetch_pretrained(what, load_plugins())) is None:
        return what
    return str(fetched)


def run_folder(what: str) -> Path:
    """Return the folder of a run. Raise :class:`NoPolicy` for one that has none, or :class:`.NoSuchRun`."""
    run = find_run(what).folder
    if run is None:
        raise NoPolicy(f"{what}: its store is not in a run's folder, so its policies cannot be found")
    return run


def policies_of(run: Path) -> list[TrainedPolicy]:
    """Return every policy that the run holds, its exports first, then the newest checkpoints."""
    exports = [run / "policy", *sorted((run / "policy").glob("*"))]
    found = [
        TrainedPolicy(path, run, None if path.name == "policy" else path.name)
        for path in exports
        if (path / CONFIG).is_file()
    ]
    saved = []
    for path in checkpoints_in(run):
        if (number := _STEP.fullmatch(path.name)) and (path / "policy" / CONFIG).is_file():
            name = path.parent.parent.name if path.parent.parent != run else None
            saved.append(TrainedPolicy(path / "policy", run, name, int(number[1])))
    return found + sorted(saved, key=lambda policy: -(policy.step or 0))


def choose(run: Path, policies: list[TrainedPolicy], step: int | None, name: str | None) -> TrainedPolicy:
    """Return the first of ``policies`` that is meant. Raise :class:`NoPolicy` without one."""
    if not policies:
        raise NoPolicy(f"run {run.name} has written no policy yet: it has no export and no checkpoint")
    names = sorted({policy.name for policy in policies if policy.name})
    if name is None and len(names) > 1:
        raise NoPolicy(f"run {run.name} trained {', '.join(names)}: choose one with --policy")
    for policy in policies:
        if name in (None, policy.name) and (step is None or step == policy.step):
            return policy
    if name is not None and name not in names:
        raise NoPolicy(f"run {run.name} has no policy {name!r}; it has {', '.join(names) or 'one, unnamed'}")
    steps = sorted({policy.step for policy in policies if policy.step is not None})
    raise NoPolicy(f"run {run.name} has no checkpoint of step {step}; it has {steps or 'none'}")
