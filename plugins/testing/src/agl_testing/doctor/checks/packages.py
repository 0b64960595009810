"""Installed packages: plugins, adapters with their frameworks, the openai SDK, and conflicting packages."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import entry_points, version
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from agentlightning.algorithms.provenance import installed
from agentlightning.capture.sdk import OPENAI
from agentlightning.plugins import package_conflict
from agentlightning.plugins.manager import GROUP, load
from agentlightning.specs import AdapterSpec
from agl_testing.doctor.findings import Findings
from agl_testing.doctor.report import Check, Notes

SDK_WRAPPERS = {
    "agentops": "agentops",
    "litellm": "litellm",
    "openinference-instrumentation-openai": "openinference.instrumentation.openai",
    "opentelemetry-instrumentation-openai": "opentelemetry.instrumentation.openai",
    "opentelemetry-instrumentation-openai-v2": "opentelemetry.instrumentation.openai_v2",
    "traceloop-sdk": "traceloop.sdk",
    "langfuse": "langfuse.openai",
    "mlflow": "mlflow.openai",
    "weave": "weave",
}
"""Distribution that wraps or replaces the openai SDK → the module that does so on import."""


async def check_plugins(findings: Findings) -> Check:
    """Report plugins with versions, and those that cannot be loaded with their errors."""
    notes = Notes()
    plugins = findings.plugins = findings.plugins or load()
    versions = plugin_versions()
    for name, why in plugins.broken.items():
        notes.warn(
            f"plugin {name} ({versions.get(name, 'unknown version')}) cannot be loaded: {why}",
            "Reinstall it or uninstall it; AGL_PLUGINS=a,b chooses which ones are loaded.",
        )
    kinds: dict[str, dict[str, Any]] = {
        "drivers": plugins.drivers, "adapters": plugins.adapters, "recipes": plugins.recipes,
        "stores": plugins.stores, "trackers": plugins.trackers,
    }  # fmt: skip
    notes.fact("; ".join(f"{kind}: {', '.join(sorted(table)) or 'none'}" for kind, table in kinds.items()))
    loaded = [versions[name] for name, _ in plugins.manager.list_name_plugin() if name in versions]
    title = ", ".join([f"agl-core {version('agl-core')}", *sorted(loaded)])
    return notes.check("plugins", title, versions=versions, broken=plugins.broken)


async def check_packages(findings: Findings) -> Check:
    """Check that frameworks and SDK are in their tested ranges and that no other package has our name."""
    notes = Notes()
    plugins = findings.plugins or load()
    if (other := package_conflict.find_conflict()) is not None:
        notes.fail(other.message().splitlines()[0], other.message())
    sdk = check_versions(notes, "openai SDK", (OPENAI,), "captured at the gateway only, not confirmed exact")
    if sdk is None:
        notes.fact("openai SDK: not installed; an agent that uses it needs `pip install openai`")
    for spec in plugins.adapters.values():
        _adapter(notes, spec)
    found = {name: v for name in SDK_WRAPPERS if (v := installed(name)) is not None}
    if found:
        listed = ", ".join(f"{name} {v}" for name, v in found.items())
        notes.fact(f"installed too, wrapping the openai SDK once imported: {listed}")
    title = f"openai SDK {sdk or 'not installed'}; nothing foreign in the place of agentlightning"
    return notes.check("packages", title, openai=sdk, patchers=found)


def check_versions(notes: Notes, what: str, requirements: Iterable[str], otherwise: str) -> str | None:
    """Warn of installed versions outside ``requirements``. Return the first installed version, if any."""
    first: str | None = None
    for text in requirements:
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            notes.warn(f"{what}: {text!r} is no requirement: {error}", "Tell the plugin's authors.")
            continue
        found = installed(requirement.name)
        first = first or found
        if found is not None and not requirement.specifier.contains(found, prereleases=True):
            notes.warn(
                f"{what}: {requirement.name} {found} is outside the tested range {requirement.specifier}",
                f"pip install '{requirement}'; until then calls may be {otherwise}.",
            )
    return first


def plugin_versions() -> dict[str, str]:
    """Return entry point → distribution and version."""
    return {
        point.name: f"{point.dist.name} {point.dist.version}" if point.dist else point.value
        for point in entry_points(group=GROUP)
    }


def imported_sdk_wrappers() -> list[str]:
    """Return the packages that wrap the openai SDK and are imported in this process."""
    return [name for name, module in SDK_WRAPPERS.items() if module in sys.modules]


def _adapter(notes: Notes, spec: AdapterSpec) -> None:
    listed = [part.strip() for part in split(spec.requires)]
    found = check_versions(notes, f"adapter {spec.name}", listed, "without agent names")
    if found is None and listed:
        words = " ".join(f"'{part}'" for part in listed)
        notes.fact(f"adapter {spec.name}: framework not installed; the tested one: pip install {words}")
    else:
        notes.fact(f"adapter {spec.name}: {found} (tested: {spec.requires or '–'})")


def split(requires: str) -> list[str]:
    """Split ``a >= 1, < 2, b >= 3`` into ``["a >= 1, < 2", "b >= 3"]``: a part without a name belongs to the
    one before.
    """
    parts: list[str] = []
    for part in filter(None, (p.strip() for p in requires.split(","))):
        if parts and not part[0].isalnum():
            parts[-1] += f", {part}"
        else:
            parts.append(part)
    return parts
