"""Counting and delivering from destructors, and in processes forked while another thread held the lock."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from agentlightning.capture import delivery
from agentlightning.capture.delivery import Counts


def held_by_another(lock: threading.RLock) -> Callable[[], None]:
    """Another thread takes the lock; the result lets go of it."""
    has, may = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            has.set()
            may.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    has.wait()

    def let_go() -> None:
        may.set()
        thread.join()

    return let_go


def forked(work: Callable[[], None]) -> int:
    """How a forked process ends that does ``work``; it is killed where it waits for what nobody will do."""
    if not (child := os.fork()):
        import signal

        signal.alarm(20)
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_locks_are_free_in_a_forked_process() -> None:
    counts = Counts()
    let_go = held_by_another(delivery._lock)
    try:
        assert forked(lambda: counts.add("why")) == 0
        assert forked(lambda: delivery.end_attempt("at-forked")) == 0
    finally:
        let_go()


def test_a_destructor_may_count_and_deliver_while_its_thread_does() -> None:
    counts, done = Counts(), threading.Event()

    def within() -> None:
        with delivery._lock:  # where the collector may run whatever is due
            counts.add("why")
            delivery.remember_response("at-destructor", "re", "sp")
        done.set()

    threading.Thread(target=within, daemon=True).start()
    assert done.wait(300) and counts.snapshot() == {"why": 1}
