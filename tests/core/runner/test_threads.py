"""Running a coroutine from plain code, with or without an event loop around it; threads that stay behind."""

from __future__ import annotations

import asyncio
import contextvars
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentlightning.runner.threads import blocking_threads, run_sync

COLOUR = contextvars.ContextVar("colour", default="none")


async def look() -> tuple[str, str]:
    await asyncio.sleep(0)
    return COLOUR.get(), threading.current_thread().name


async def fail() -> None:
    raise LookupError("nothing there")


def test_without_a_loop_it_runs_here() -> None:
    assert run_sync(look) == ("none", threading.current_thread().name)


async def test_within_a_loop_it_runs_in_a_thread_and_in_this_context() -> None:
    COLOUR.set("green")
    assert run_sync(look) == ("green", "agl-run")


async def test_its_error_is_raised_here() -> None:
    with pytest.raises(LookupError, match="nothing there"):
        run_sync(fail)


def test_ctrl_c_cancels_it_and_waits_for_its_end() -> None:
    ended: list[str] = []

    async def hang() -> None:
        try:
            await asyncio.sleep(0.2)  # by then the main thread waits
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            ended.append("unwound")

    async def cell() -> None:
        run_sync(hang)

    loop = asyncio.new_event_loop()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a test runner may ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(cell())
    finally:
        signal.signal(signal.SIGINT, before)
        loop.close()
    assert ended == ["unwound"]


def test_threads_that_keep_the_process_from_ending_are_named() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="left-behind")
    thread.start()
    threading.Thread(target=release.wait, name="harmless", daemon=True).start()
    with ThreadPoolExecutor(1, "pooled") as executor:
        executor.submit(release.wait)
        assert {"left-behind", "pooled_0"} <= {*blocking_threads()} and "harmless" not in blocking_threads()
        release.set()
    thread.join()
    assert not {"left-behind", "pooled_0"} & {*blocking_threads()}


def test_a_fork_of_an_agents_loop_calls_nothing_that_was_ready_to_be_called() -> None:
    """Else it would read what a socket of the run has received."""
    script = """
import asyncio, os
from agentlightning.runner.threads import prepare_agent_loop
async def main():
    prepare_agent_loop()
    loop = asyncio.get_running_loop()
    loop.call_soon(lambda: os.waitpid(child, 0) if (child := os.fork()) else os.write(1, b"forked "))
    loop.call_soon(os.write, 1, b"called ")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("forked called ", "")
