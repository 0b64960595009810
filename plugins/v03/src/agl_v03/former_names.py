"""Find the names and modules of Agent Lightning 0.1 to 0.3, as ``names.toml`` lists them, and refuse those of
1.0.

The plugin asks for names and modules that core lacks. Nothing of v0.3 is imported before it is used.
"""

from __future__ import annotations

import sys
import tomllib
from functools import cache
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

from agentlightning.types.base import UsageError

PACKAGE = "agentlightning"


class RefusedName(UsageError, ImportError):
    """A former name that is not here; the message names what to use instead."""

    def __init__(self, name: str, instead: str, version: str = "0.3") -> None:
        super().__init__(f"{PACKAGE}.{name} of Agent Lightning {version} is not here: {instead}")


@cache
def table() -> dict[str, dict[str, str]]:
    """Return the sections of ``names.toml``."""
    return tomllib.loads(Path(__file__).with_name("names.toml").read_text(encoding="utf-8"))


def former_name(module: str, name: str) -> Any:
    """Return the object that v0.3 calls ``name`` in ``module`` (``""``: the package itself).

    Raises :class:`RefusedName` for a name without a counterpart, ``AttributeError`` for any other.
    """
    if (found := find_name(module, name)) is None:
        raise AttributeError(
            f"module {'.'.join(filter(None, (PACKAGE, module)))!r} has no attribute {name!r}"
        )
    return found


def find_name(module: str, name: str) -> Any:
    """Return what :func:`former_name` does, or ``None`` for a name that v0.3 does not have."""
    known, dotted = table(), f"{module}.{name}" if module else name
    if name.startswith("__"):
        return None
    if instead := known["refused_v1"].get(dotted):
        raise RefusedName(dotted, instead, "1.0")
    if instead := known["refused_in"].get(module):
        raise RefusedName(dotted, instead)
    of_module = [*known["modules"].get(module, "").split(), *known["refused"]]
    if module and not {name, dotted} & {*of_module}:
        return None
    for key in (dotted, name):
        if key in known["refused"]:
            raise RefusedName(dotted, known["refused"][key])
        if place := known["names"].get(key):
            home, _, attribute = place.partition(":")
            return getattr(import_module(home), attribute) if attribute else import_module(home)
    return getattr(sys.modules[PACKAGE], name) if module else None


def find_module(module: str) -> ModuleSpec | None:
    """Return the spec of a module of v0.3. Raise :class:`RefusedName` for one without a counterpart."""
    if module in table()["modules"]:
        return spec_from_loader(f"{PACKAGE}.{module}", FormerModule(), is_package=True)
    if instead := table()["refused_modules"].get(module):
        raise RefusedName(module, instead)
    if instead := table()["refused_v1"].get(module):
        raise RefusedName(module, instead, "1.0")
    return None


class CallableModule(ModuleType):
    """``agentlightning.reward``, which is a module and the decorator in it."""

    def __call__(self, function: Any) -> Any:
        return former_name("", "reward")(function)


class FormerModule(Loader):
    """Makes a module of v0.3, each of whose names is imported when it is used."""

    def create_module(self, spec: ModuleSpec) -> None:
        """Take Python's own kind of module."""

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its names."""
        name = module.__name__.removeprefix(f"{PACKAGE}.")
        setattr(module, "__getattr__", lambda attribute: former_name(name, attribute))  # noqa: B010
        setattr(module, "__all__", table()["modules"][name].split())  # noqa: B010
        if name.rpartition(".")[2] == "reward":
            module.__class__ = CallableModule
        module.__doc__ = f"The names of {module.__name__} in Agent Lightning 0.3 (docs/from-0x.md)."
        home, _, attribute = table()["names"].get(name, ":?").partition(":")
        if not attribute:  # a public name that is a module: both are the same object
            real = import_module(home)
            for inherited in ("__getattr__", "__path__"):
                real.__dict__.setdefault(inherited, getattr(module, inherited))
            sys.modules[module.__name__] = real
