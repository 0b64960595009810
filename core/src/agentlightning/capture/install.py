"""The switch: :func:`install` and :func:`uninstall`, importable at no cost.

The package imports these functions when it is itself imported, so that ``capture.install`` is always the
function and never this module. What they do is in ``installation``, which loads OpenTelemetry when needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider


def install(provider: TracerProvider | None = None) -> None:
    """Begin to capture in this process. ``provider``: listen to this one as well as to the process's own."""
    from agentlightning.capture.instrument import installation

    installation.install(provider)


def uninstall() -> None:
    """Stop capturing and undo what :func:`install` did."""
    from agentlightning.capture.instrument import installation

    installation.uninstall()


def installed() -> bool:
    """Whether capture is on."""
    from agentlightning.capture.instrument import installation

    return installation.installed()
