"""Names of a package that are imported from their modules when they are first used (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.machinery import PathFinder
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package. ``homes``: public name → module, relative to the package."""

    def get(name: str) -> Any:
        if name in homes:
            value = getattr(import_module(f"{package}.{homes[name]}"), name)
        else:
            value = plugin_name(package, name)
        setattr(sys.modules[package], name, value)  # the next access finds it without this function
        return value

    return get


def plugin_name(module: str, name: str) -> Any:
    """Return what a plugin calls ``name`` in ``module``; the last resort of ``__getattr__``.

    Raises ``AttributeError`` for a module that is not imported yet, and for a name that no plugin has.
    """
    path = vars(sys.modules[module]).get("__path__")
    ours = name.startswith("_") or (path and PathFinder.find_spec(f"{module}.{name}", path))
    found = None if ours else _in_plugins(module.partition(".")[2], name)
    if found is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return found


class PluginModules:
    """The last finder of modules: Python asks it for those that are not there, and it asks the plugins."""

    @staticmethod
    def find_spec(fullname: str, path: object = None, target: object = None) -> Any:
        """Return the spec of a plugin's module in this package; ``None`` for any other."""
        package, _, module = fullname.partition(".")
        if package != "agentlightning":
            return None
        return _in_plugins(module, "")


def _in_plugins(module: str, name: str) -> Any:
    return import_module("agentlightning.plugins.manager").missing(module, name)
