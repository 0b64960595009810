"""Figures as the doctor prints them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


def format_bytes(count: float) -> str:
    """Format bytes, e.g. ``3.4 MB`` (powers of 1000)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def format_seconds(seconds: float) -> str:
    """Format seconds, e.g. ``0.42 s``, ``73 s``, ``12 min``, ``3.5 h``, ``2.1 days``."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"


def format_number(value: float) -> str:
    """Format a reward, e.g. ``0.250``; huge ones as ``1.5e+30``."""
    return f"{value:.3f}" if abs(value) < 1e6 else f"{value:.3g}"


def percent(share: float) -> str:
    """Format a share, e.g. ``37 %``."""
    return f"{100 * share:.0f} %"


def format_counts(counts: Mapping[str, float]) -> str:
    """Format the four most common counts: ``3 × template, 1 × branch``."""
    listed = Counter({k: int(v) for k, v in counts.items()}).most_common(4)
    return ", ".join(f"{n} × {reason}" for reason, n in listed)
