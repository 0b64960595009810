"""Where policies and stores come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """A store by URL scheme: ``factory(url) -> Store``."""

    scheme: str
    factory: Callable[[str], Any]
    reader: Callable[[str], Any] | None = None
    """Opens a store that is only read; ``None``: as any other."""


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A pretrained policy by name: ``fetch()`` returns its folder, downloaded on first use. With ``prefix``,
    ``name`` is how further names begin, and ``fetch(rest)`` gets what follows it.
    """

    name: str
    fetch: Callable[..., Path]
    about: str = ""
    prefix: bool = False
