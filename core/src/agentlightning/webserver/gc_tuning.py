"""Python's garbage collector while a server of this process serves.

Each call under way holds some hundred objects that the collector tracks. Many concurrent calls outlive its
young generations, and the whole process is scanned again and again: a tenth of a call's CPU at 64 at once,
and pauses. Almost nothing of a call is cyclic. So the young generation is enlarged while any gateway or store
server of the process runs, and restored when the last one stops.
"""

from __future__ import annotations

import gc

YOUNG_THRESHOLD = 20_000
"""Objects allocated and not freed before a collection; Python's default is 700 (3.11) to 2,000."""
_started = 0
_before: tuple[int, int, int] = gc.get_threshold()


def enlarge_young_generation() -> None:
    """Call when a server starts. Larger settings, and a disabled collector, stay as they are."""
    global _started, _before
    _started += 1
    if _started == 1:
        _before = gc.get_threshold()
        if 0 < _before[0] < YOUNG_THRESHOLD:
            gc.set_threshold(YOUNG_THRESHOLD, *_before[1:])


def restore_thresholds() -> None:
    """Call when a server stops."""
    global _started
    _started -= 1
    if not _started and gc.get_threshold() == (
        YOUNG_THRESHOLD,
        *_before[1:],
    ):  # else it was set meanwhile
        gc.set_threshold(*_before)
