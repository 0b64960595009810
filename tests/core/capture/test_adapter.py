"""What every adapter's instrumentor does: on, off, and nothing left of what failed half-way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

import pytest

from agentlightning.capture import COUNTS, install, installed, uninstall
from agentlightning.capture.adapter import AdapterInstrumentor
from agentlightning.capture.identity import CALLER_SOURCES, Caller
from agentlightning.capture.installation import capturing
from agentlightning.specs import lazily


class Agent:
    def run(self) -> str:
        return "ran"


def louder(wrapped: Callable[..., Any], agent: Any, args: Any, kwargs: Any) -> Any:
    return wrapped(*args, **kwargs).upper()


def somebody() -> Caller:
    return Caller({"agent": "somebody"}, 0)


class Whole(AdapterInstrumentor):
    done: list[str] = []

    def begin(self) -> None:
        self.patch(Agent, "run", louder)
        self.patch_private(Agent, "_later", louder, "agent-has-no-later")
        self.add(CALLER_SOURCES, somebody)
        self.undo(self.done.append, "undone")


class Half(Whole):
    def begin(self) -> None:
        super().begin()
        self.patch(Agent, "walk", louder)


class Demanding(AdapterInstrumentor):
    instruments = ("pytest < 1",)

    def begin(self) -> None:
        self.patch(Agent, "run", louder)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    COUNTS.clear()
    Whole.done.clear()
    yield
    uninstall()


def test_on_and_off_again_and_again() -> None:
    original = vars(Agent)["run"]
    for _ in range(2):
        Whole().instrument()
        assert installed() and Agent().run() == "RAN" and somebody in CALLER_SOURCES
        Whole().uninstrument()
        assert not installed() and vars(Agent)["run"] is original and somebody not in CALLER_SOURCES
    assert COUNTS.snapshot() == {"agent-has-no-later": 2} and Whole.done == ["undone"] * 2


def test_capture_that_was_on_stays_on() -> None:
    from agentlightning.capture import install

    install()
    Whole().instrument()
    Whole().uninstrument()
    assert installed()


def test_what_fails_half_way_leaves_nothing() -> None:
    original = vars(Agent)["run"]
    with pytest.raises(AttributeError, match="walk"):
        Half().instrument()
    assert vars(Agent)["run"] is original and somebody not in CALLER_SOURCES and not installed()
    assert Half.done == ["undone"]
    assert not Half().is_instrumented_by_opentelemetry


def test_another_version_is_refused() -> None:
    with pytest.raises(Exception, match="pytest < 1"):
        Demanding().instrument(raise_exception_on_conflict=True)
    assert Agent().run() == "ran" and not installed()


def test_an_adapter_says_what_it_instruments() -> None:
    class Silent(AdapterInstrumentor):
        pass

    with pytest.raises(NotImplementedError, match="Silent"):
        Silent().instrument()
    assert not installed()


def test_lazily_imports_when_it_is_called() -> None:
    later = lazily("nowhere.at.all:thing")
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        later()
    assert lazily("math:floor")(2.5) == 2


def test_another_thread_may_switch_capture_on_while_an_instrumentor_of_a_session_works() -> None:
    """As a framework does that sets a tracer provider while another thread imports it."""

    class Waits(AdapterInstrumentor):
        def begin(self) -> None:
            other = Thread(target=install, daemon=True)
            other.start()
            other.join(300)
            assert not other.is_alive(), "the session holds what install() waits for"

    with capturing([Waits()]):
        assert installed()
    assert not installed()
