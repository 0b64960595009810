"""Finding plugins and calling their hooks.

:func:`load` reads the built-ins, then the entry-point group ``agentlightning``, and returns :class:`Plugins`:
specs by kind and name, and :meth:`Plugins.ask` for notification hooks. ``AGL_PLUGINS=a,b`` loads only
those entry points (empty: none). ``AGL_TRACE_HOOKS=1`` prints each call of a hook.

Invariant: a name means one thing. Two plugins that register the same name are an error that names both; a
plugin that cannot be imported is named, with its error, and the rest goes on.
"""

from __future__ import annotations

import copy
import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, TypeVar

import pluggy

from agentlightning import hookspecs, specs
from agentlightning.plugins import package_conflict
from agentlightning.plugins.suite import checkout, install_line, not_installed
from agentlightning.types import UsageError
from agentlightning.types.base import meant
from agentlightning.types.record import REWARD_FORMATS

log = logging.getLogger(__name__)
GROUP = "agentlightning"
Spec = TypeVar("Spec")


class PluginError(UsageError):
    """Plugins that cannot work together, or a name that no plugin knows."""


class NotInstalled(PluginError, ImportError):
    """A name or a module of a plugin that is not there."""


class Plugins:
    """The loaded plugins: specs by kind and name."""

    def __init__(self, manager: pluggy.PluginManager, broken: dict[str, str]) -> None:
        _specify(manager)
        self.manager = manager
        self.broken = broken
        """Entry point → why it could not be loaded."""
        self.errors: Counter[str] = Counter()
        """Notification hook → errors raised in it."""
        self._tables: dict[str, dict[str, Any]] = {}
        """Registration hook → what it has registered."""
        self.adapters: dict[str, specs.AdapterSpec] = self.table("agl_adapters")
        self.recipes: dict[str, specs.RecipeSpec] = self.table("agl_recipes")
        self.algorithms: dict[str, specs.AlgorithmSpec] = self.table("agl_algorithms")
        self.drivers: dict[str, specs.DriverSpec] = self.table("agl_drivers")
        self.runners: dict[str, specs.RunnerSpec] = self.table("agl_runners")
        self.stores: dict[str, specs.StoreSpec] = self.table("agl_stores", "scheme")
        self.store_operations: dict[str, specs.StoreOperationSpec] = self.table("agl_store_operations")
        self.trackers: dict[str, specs.TrackerSpec] = self.table("agl_trackers")
        self.policies: dict[str, specs.PolicySpec] = self.table("agl_policies")
        self.commands: dict[str, specs.CommandSpec] = self.table("agl_commands")
        self.sections: dict[str, specs.SectionSpec] = self.table("agl_sections")
        self.api_formats: dict[str, specs.ApiFormatSpec] = self.table("agl_api_formats", "path")
        self.run_services: dict[str, specs.RunServiceSpec] = self.table("agl_run_services")
        self.names: dict[str, str] = self.table("agl_names", "")
        """Public name → ``module:object``."""

    def table(self, hook: str, key: str = "name") -> dict[str, Any]:
        """Return what plugins register by ``hook``, by the attribute ``key`` of each spec, or by the keys of
        mappings. A hook of a plugin's own (``agl_hookspecs``) is asked when its table is first wanted, and
        then never again; that of a plugin which is not there has an empty table.
        """
        if hook in self._tables:
            return self._tables[hook]
        found: dict[str, Any] = {}
        owner: dict[str, str] = {}
        caller = getattr(self.manager.hook, hook, None)
        for impl in caller.get_hookimpls() if caller else ():
            given: Any = impl.function()
            for spec in given if key else given.items():
                name, spec = (getattr(spec, key), spec) if key else spec
                if name in found:
                    raise PluginError(
                        f"{hook}: {name!r} is registered by both {owner[name]!r} and {impl.plugin_name!r}; "
                        "uninstall one, or choose with AGL_PLUGINS"
                    )
                found[name], owner[name] = spec, impl.plugin_name
        self._tables[hook] = found
        return found

    def ask(self, hook: str, **kwargs: Any) -> list[Any]:
        """Call a hook of every plugin and return their answers but ``None``. An error is counted and logged,
        never raised.
        """
        answers = []
        for impl in reversed(getattr(self.manager.hook, hook).get_hookimpls()):
            try:
                answers.append(impl.function(*(kwargs[name] for name in impl.argnames)))
            except Exception:
                self.errors[hook] += 1
                if self.errors[hook] <= 3:
                    log.exception("plugin %s: its hook %s failed", impl.plugin_name, hook)
        if os.environ.get("AGL_TRACE_HOOKS") == "1":
            print(f"agl hook {hook}({', '.join(kwargs)})", file=sys.stderr)
        return [answer for answer in answers if answer is not None]

    def first(self, hook: str, **kwargs: Any) -> Any:
        """Return the first plugin's answer that is not ``None``; without one, ``None``. The plugins after it
        are not asked. Errors are raised.
        """
        return next(self.answers(hook, **kwargs), None)

    def answers(self, hook: str, **kwargs: Any) -> Iterator[Any]:
        """Yield the answers of plugins that are not ``None``. Errors are raised."""
        for impl in reversed(getattr(self.manager.hook, hook).get_hookimpls()):
            if (answer := impl.function(*(kwargs[name] for name in impl.argnames))) is not None:
                yield answer

    @property
    def credit_functions(self) -> dict[str, Any]:
        """Credit rules and baselines by name, as keywords of :func:`agentlightning.credit.assign`, which they
        load.
        """
        return {
            "rules": {name: spec.rule for name, spec in self.table("agl_credit_rules").items()},
            "baselines": {name: spec.baseline for name, spec in self.table("agl_baselines").items()},
        }

    def with_listeners(self, listeners: Iterable[object]) -> Plugins:
        """Return these plugins and ``listeners``: a run notifies its own listeners only. What plugins have
        registered stays as it is.
        """
        manager = pluggy.PluginManager("agentlightning")
        for name, plugin in self.manager.list_name_plugin():
            if plugin is not None:
                manager.register(plugin, name)
        for listener in listeners:
            manager.register(listener)
        _specify(manager)
        found = copy.copy(self)
        found.manager, found.errors = manager, Counter()
        return found

    def has_listeners(self, hook: str) -> bool:
        """Return whether any plugin implements the hook. A hot path then skips making its arguments."""
        return bool(getattr(self.manager.hook, hook).get_hookimpls())


def _specify(manager: pluggy.PluginManager) -> None:
    """Add the specifications of all hooks, those of plugins included, and refuse implementations that fit
    none.
    """
    manager.add_hookspecs(hookspecs)
    for impl in manager.hook.agl_hookspecs.get_hookimpls():
        specified: Any = impl.function()
        for namespace in specified:
            try:
                manager.add_hookspecs(namespace)
            except ValueError as error:
                raise PluginError(f"plugin {impl.plugin_name}: its own hooks: {error}") from None
    manager.check_pending()
    for plugin in manager.get_plugins():
        for caller in manager.get_hookcallers(plugin) or ():
            for impl in caller.get_hookimpls():
                if impl.wrapper or impl.hookwrapper:
                    raise PluginError(
                        f"plugin {impl.plugin_name}: its hook {caller.name} is a wrapper of pluggy. Each "
                        "plugin is asked by itself, so that an error in one is its own: write the hook "
                        "without `wrapper`"
                    )


def pick(table: dict[str, Spec], kind: str, name: str) -> Spec:
    """Return the spec called ``name``. The error lists known names, and how to install one of the suite's."""
    if name in table:
        return table[name]
    known = ", ".join(sorted(table)) or "none are installed"
    if (line := install_line(kind, name)) is not None:
        raise PluginError(
            f"the {kind} {name!r} is not installed, or AGL_PLUGINS leaves it out (`agl plugins` lists what "
            f"there is; known: {known}); in a checkout of Agent Lightning: {line}"
        )
    every = sorted({*table, *checkout().get(kind, ())})
    raise PluginError(f"no {kind} is called {name!r}{meant(name, every, kind)}")


def build(extra: Iterable[object] = (), *, discover: bool = True) -> Plugins:
    """Load the built-ins, ``extra`` plugin objects and, with ``discover``, the installed entry points."""
    package_conflict.refuse_conflict()
    from agentlightning.plugins import builtin

    manager = pluggy.PluginManager("agentlightning")
    manager.register(builtin, "builtin")
    for plugin in extra:
        manager.register(plugin)
    broken = _discover(manager) if discover else {}
    return Plugins(manager, broken)


def _discover(manager: pluggy.PluginManager) -> dict[str, str]:
    wanted = os.environ.get("AGL_PLUGINS")
    names = None if wanted is None else {n.strip() for n in wanted.split(",") if n.strip()}
    broken: dict[str, str] = {}
    for point in entry_points(group=GROUP):
        if names is not None and point.name not in names:
            continue
        try:
            plugin = point.load()
        except Exception as error:
            broken[point.name] = f"{type(error).__name__}: {error}"
            log.warning("plugin %s (%s) could not be loaded: %s", point.name, point.value, broken[point.name])
            continue
        if not manager.is_registered(plugin):
            manager.register(plugin, point.name)
    return broken


@lru_cache(maxsize=1)
def load() -> Plugins:
    """Return the process's plugins, loaded once."""
    plugins = build()
    REWARD_FORMATS[:] = [one for formats in plugins.ask("agl_reward_formats") for one in formats]
    return plugins


def store_operation(name: str) -> Any:
    """Return the function of a plugin's operation on stores. Raise ``AttributeError`` for a name that none
    has, and :class:`NotInstalled` for one of a plugin of the suite.
    """
    if (spec := load().store_operations.get(name)) is not None:
        return spec.operation()
    if (said := not_installed("store operation", name)) is not None:
        raise NotInstalled(f"a store's {name}: {said}")
    raise AttributeError(f"a store has no {name!r}")


_loading = threading.local()
"""``now``: this thread loads plugins for a name, and what a plugin itself lacks meanwhile is nobody's."""


def missing(module: str, name: str) -> Any:
    """Return what plugins have for a name, or for a module (no name), that the package lacks (hooks
    ``agl_names`` and ``agl_missing``); ``None`` if it is nobody's. Raises :class:`NotInstalled` if it is of a
    plugin of the suite.
    """
    if getattr(_loading, "now", False):
        return None
    _loading.now = True
    try:
        plugins = load()
    finally:
        _loading.now = False
    if not module and (place := plugins.names.get(name)) is not None:
        home, _, attribute = place.partition(":")
        return getattr(import_module(home), attribute) if attribute else import_module(home)
    found = plugins.first("agl_missing", module=module, name=name)
    if found is None:
        said = not_installed("name", name)
        if said is None and not plugins.has_listeners("agl_missing"):
            said = not_installed("module", module.partition(".")[0])
        if said is not None:
            raise NotInstalled(f"{'.'.join(filter(None, (GROUP, module, name)))}: {said}")
    return found
