"""A policy's folder, and the message for one that does not exist."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""``owner/name``, as models are called on the Hugging Face hub."""


@dataclass(frozen=True, slots=True)
class PolicyFolder:
    """A policy in Hugging Face layout. ``train=False``: served as it is, never trained. ``options``: its
    driver's options, which win over the run's. ``name``: the key that the run gives it.
    """

    path: str | Path
    train: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    name: str = "policy"


def missing_policy_message(given: str | Path) -> str:
    """Return the message that ``given`` is no folder; for the name of a hub's model, with what fetches it."""
    text = Path(given).as_posix()
    said = f"{given}: there is no such folder; a policy is a model folder in Hugging Face layout"
    if not _HUB.fullmatch(text):
        return said
    return f"{said}. If it is a model of the Hugging Face hub, give hub:{text}, which agl-local downloads"
