"""Switch capture on and off: :func:`install` and :func:`uninstall`, importable at no cost.

The package imports these functions first, so that ``capture.install`` is always the function and never this
module. The work is done in ``instrument.installation``, which loads OpenTelemetry when it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider


def install(provider: TracerProvider | None = None) -> None:
    """Begin to capture in this process. ``provider``: a tracer provider to record besides the process's."""
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
