"""Former names of fields, options, types and metrics. Each still loads; a warning names the present one.

Each kind of name has a table ``former → present``. :func:`renamed` renames the keys of a mapping (a section
of a YAML file, options, keywords). :func:`former_names` lets a class take former keywords and attributes.
Invariant: a record is hashed under the first released name of each field (:func:`stored_name`), so that
``agl verify`` reads runs of any age.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from agentlightning.types.base import UsageError

Names = Mapping[str, str]
"""Former name → present name."""
Class = TypeVar("Class", bound=type)

RECIPE: Names = {
    "drop_zero_spread": "filter_zero_std_groups",
    "normalise": "loss_aggregation",
    "constant": "loss_divisor",
    "objective": "ratio_level",
    "staleness": "max_staleness",
}
"""Fields of a recipe."""
TRAINING: Names = {"ahead": "async_steps", "refill": "dynamic_sampling"}
"""Keys of the section ``training``, which the trainer and the algorithm ``rl`` take as keywords."""
TRAINER: Names = {
    "n_runners": "concurrency",
    "n_workers": "concurrency",
    "timeout": "timeout_seconds",
    "unresponsive": "unresponsive_seconds",
    "folder": "output",
    **TRAINING,
}
"""Keywords of ``Trainer``."""
RUN_FILE: Names = {
    "backend.policies": "backend.policy",
    "backend.over_length": "gateway.over_length",
    "backend.reserve": "gateway.reserve",
    "backend.max_len": "gateway.max_len",
    "backend.reasoning": "gateway.reasoning",
    **{f"training.{former}": f"training.{present}" for former, present in TRAINING.items()},
}
"""Keys of a run's YAML file."""
TYPES: Names = {"Link": "AuditLink", "Normalise": "LossAggregation", "Seal": "RolloutFingerprint"}
"""Types of this package."""
DRIVER_SPEC: Names = {
    "honours": "supported_fields",
    "refuses": "unsupported_fields",
    "facts": "environment_info",
    "several": "multi_policy",
}
"""Fields of :class:`agentlightning.specs.DriverSpec`."""
DRIVER_OPTIONS: Names = {
    "clip_norm": "max_grad_norm",
    "warmup": "warmup_steps",
    "micro_tokens": "micro_batch_tokens",
    "share": "share_prefixes",
    "slots": "max_num_seqs",
    "keep": "keep_checkpoints",
}
"""Options of the drivers ``local`` and ``verl``."""
LEDGER: Names = {"out": "left_out", "breaks": "merge_failures"}
"""Fields of :class:`agentlightning.types.Ledger`."""
LINK: Names = {"seals": "fingerprints", "mac": "signature"}
"""Fields of :class:`agentlightning.types.AuditLink`, and of the body of a step's link."""
ENVIRONMENT: Names = {"AGL_SEAL_KEY": "AGL_SIGNING_KEY"}
"""Environment variables."""
LEFT_OUT: Names = {"zero-spread": "zero-std"}
"""Reasons of a ledger."""
METRICS: Names = {
    "groups_zero_spread": "groups_zero_std",
    "calls_alone": "calls_unpaired",
    "left_out/zero-spread": "left_out/zero-std",
    "ahead/": "async/",
    "refill/": "dynamic_sampling/",
    "breaks/": "merge_failures/",
    "out/": "left_out/",
}
"""Metrics of a step; a name that ends in a slash is a prefix."""

_SAID: set[tuple[str, str]] = set()


def successor(former: str, present: str, where: str) -> str:
    """Return ``present``; warn, once in a process, that it replaces ``former``. ``where``: its place."""
    if (where, former) not in _SAID:
        _SAID.add((where, former))
        warnings.warn(f"{where}: {former!r} is now called {present!r}", FutureWarning, stacklevel=3)
    return present


def renamed(given: Mapping[str, Any], names: Names, where: str, *, quiet: bool = False) -> dict[str, Any]:
    """Return ``given`` under present names. ``quiet``: do not warn, for records of earlier runs.

    Raises :class:`UsageError` for a mapping that holds a former name and its successor.
    """
    found = {}
    for key, value in given.items():
        present = names.get(key, key)
        if present != key:
            if present in given:
                raise UsageError(f"{where}: {key!r} is the former name of {present!r}; give one of the two")
            if not quiet:
                successor(key, present, where)
        found[present] = value
    return found


def setting(name: str) -> str | None:
    """Return the environment variable ``name``, which may be set under its former name; ``None`` if it is
    not set, or empty.
    """
    given = {key: value for key in (name, stored_name(name, ENVIRONMENT)) if (value := os.environ.get(key))}
    return renamed(given, ENVIRONMENT, "environment").get(name)


def stored_name(name: str, names: Names) -> str:
    """Return the name in records, the first released one."""
    return next((former for former, present in names.items() if present == name), name)


def former_names(names: Names, where: str) -> Callable[[Class], Class]:
    """Decorate a class: its constructor takes former names as keywords, and instances have them as
    attributes.
    """

    def decorate(cls: Class) -> Class:
        init = cls.__init__  # type: ignore[misc]

        @functools.wraps(init)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **renamed(kwargs, names, where))

        def __getattr__(self: Any, name: str) -> Any:
            return former_attribute(self, name, names, where)

        setattr(cls, "__init__", __init__)  # noqa: B010 - a type checker refuses the assignment
        setattr(cls, "__getattr__", __getattr__)  # noqa: B010
        return cls

    return decorate


def former_attribute(owner: object, name: str, names: Names, where: str) -> Any:
    """Return the attribute with the former name ``name``, for ``__getattr__``. ``AttributeError``: none had
    it.
    """
    if name not in names:
        raise AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}")
    return getattr(owner, successor(name, names[name], where))


class StepMetrics(dict[str, float]):
    """Metrics of a step under former and present names: a hook may ask for a former name, and the report of
    an earlier run holds former names.
    """

    def __missing__(self, name: str) -> float:
        held = self._held(name)
        if held == name:
            raise KeyError(name)
        return self[held]

    def __contains__(self, name: object) -> bool:
        return dict.__contains__(self, self._held(name))

    def get(self, name: str, default: Any = None) -> Any:
        """As ``dict.get``."""
        return dict.get(self, self._held(name), default)

    def _held(self, name: object) -> Any:
        """Return the name under which this mapping has the metric; ``name`` itself if it has none."""
        if not dict.__contains__(self, name):
            for former, present in METRICS.items():
                for mine, other in ((former, present), (present, former)):
                    if name == mine or (mine.endswith("/") and str(name).startswith(mine)):
                        held = other + str(name)[len(mine) :]
                        if dict.__contains__(self, held):
                            return held
        return name
