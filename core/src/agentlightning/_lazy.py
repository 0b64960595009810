"""Names of a package that are imported from their modules when they are first used (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package. ``homes``: public name → module, relative to the package."""

    def get(name: str) -> Any:
        if name not in homes:
            return former_name(package, name)
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)  # the next access finds it without this function
        return value

    return get


def former_name(module: str, name: str) -> Any:
    """Return what Agent Lightning 0.3 calls ``name`` in ``module``; the last resort of ``__getattr__``.

    Raises ``AttributeError`` for a name that v0.3 does not have.
    """
    if name.startswith("__"):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    names = import_module("agentlightning.compat.v0.former_names")
    return names.former_name(module.partition(".")[2], name)


class FormerModules:
    """The last finder of modules: Python asks it for those that are not there. Those of Agent Lightning 0.3
    are found by the names that they had.
    """

    @staticmethod
    def find_spec(fullname: str, path: object = None, target: object = None) -> Any:
        """Return the spec of a module of v0.3; ``None`` for any other."""
        if not fullname.startswith("agentlightning."):
            return None
        return import_module("agentlightning.compat.v0.former_names").find_module(fullname)
