"""Python's garbage collector while a server of this process serves.

Each call under way holds some hundred objects that the collector tracks. Many calls at once outlive its young
generations, and the whole process is looked through again and again: a tenth of a call's CPU at 64 at once,
and pauses. Almost nothing of a call is cyclic. So the young generation is made larger while any gateway or
store server of the process is started, and made as it was when the last one stops.
"""

from __future__ import annotations

import gc

YOUNG_THRESHOLD = 20_000
"""Objects made and not freed before the collector looks; Python's own default is 700 (3.11) to 2,000."""
_started = 0
_before: tuple[int, int, int] = gc.get_threshold()


def enlarge_young_generation() -> None:
    """A server starts. Larger settings, and a collector that is off, stay as they are."""
    global _started, _before
    _started += 1
    if _started == 1:
        _before = gc.get_threshold()
        if 0 < _before[0] < YOUNG_THRESHOLD:
            gc.set_threshold(YOUNG_THRESHOLD, *_before[1:])


def restore_thresholds() -> None:
    """A server stopped."""
    global _started
    _started -= 1
    if not _started and gc.get_threshold() == (
        YOUNG_THRESHOLD,
        *_before[1:],
    ):  # else somebody else set it meanwhile
        gc.set_threshold(*_before)
