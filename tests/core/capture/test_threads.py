from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from contract.capturing import Recording

from agentlightning import capture
from agentlightning.capture.context import baggage_tags, current_attempt, tagged


def seen_in_thread() -> list[object]:
    seen: list[object] = []
    thread = threading.Thread(target=lambda: seen.extend((current_attempt(), baggage_tags())))
    thread.start()
    thread.join()
    return seen


def test_threads_started_in_an_attempt_work_for_it(capturing: None) -> None:
    recording = Recording("threads", None)
    with recording.active() as context, tagged(phase="night"):
        assert seen_in_thread() == [context, {"phase": "night"}]
    assert seen_in_thread() == [None, {}]


def test_a_subclass_of_thread_too(capturing: None) -> None:
    class Worker(threading.Thread):
        found: object = None

        def run(self) -> None:
            self.found = current_attempt()

    recording = Recording("subclass", None)
    worker = Worker()
    with recording.active() as context:
        worker.start()
        worker.join()
    assert worker.found is context


def test_a_pool_serves_many_attempts_and_keeps_none(capturing: None) -> None:
    with ThreadPoolExecutor(1) as pool:
        for name in "abc":
            with Recording(name, None).active() as context:
                assert pool.submit(current_attempt).result() is context
            assert pool.submit(current_attempt).result() is None


def test_uninstalled_threads_are_as_python_made_them() -> None:
    before = vars(threading.Thread)["start"], vars(ThreadPoolExecutor)["submit"]
    capture.install()
    capture.uninstall()
    assert (vars(threading.Thread)["start"], vars(ThreadPoolExecutor)["submit"]) == before
    with Recording("off", None).active():
        assert seen_in_thread() == [None, {}]
