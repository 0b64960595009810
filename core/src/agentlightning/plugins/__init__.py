"""Plugins: found by entry point, called through the hooks of :mod:`agentlightning.hookspecs`."""

from agentlightning.plugins.manager import (
    PluginError as PluginError,
    Plugins as Plugins,
    load as load,
    pick as pick,
)
