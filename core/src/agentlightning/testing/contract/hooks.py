"""What a framework's adapter test implements, and the surroundings that every test of the contract has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import pytest

from agentlightning.capture import COUNTS
from agentlightning.keys import CONTEXT_KEY
from agentlightning.testing import ScriptedModelServer
from agentlightning.testing.contract.script import ARGUMENTS, say
from agentlightning.testing.contract.tally import TALLY, CountedServer


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class AdapterHooks(ABC):
    """Hooks to implement; those that are not abstract stand for what a framework may lack."""

    # ------------------------------------------------------------------------------------------- hooks
    @abstractmethod
    def instrumentor(self) -> Any:
        """The adapter's ``BaseInstrumentor``."""

    @abstractmethod
    def client(self, url: str, key: str) -> Any:
        """A model client of the framework, which may be shared by many agents. It retries up to three
        times."""

    @abstractmethod
    async def tool_agent(self, client: Any, task: str, tool: Callable[..., Any], stream: bool) -> str:
        """Run one agent named ``solver`` with ``tool``, and answer after its result: two calls. Returns the
        answer."""

    @abstractmethod
    async def team(self, client: Any, task: str, stream: bool) -> None:
        """Run a team of ``writer`` and ``critic``, each with its name in its system prompt, each speaking
        once."""

    @abstractmethod
    async def close(self, client: Any) -> None:
        """Close the client."""

    @abstractmethod
    def patched(self) -> Sequence[tuple[Any, str]]:
        """Everything the adapter patches, as owner and attribute: compared by identity after
        ``uninstrument``."""

    def tool_agent_sync(self, client: Any, task: str, tool: Callable[..., Any], stream: bool) -> str | None:
        """As ``tool_agent`` through the framework's blocking face; ``None`` where it has none."""
        return None

    async def structured(self, client: Any, task: str, schema: type[Any], stream: bool) -> Any:
        """Run ``solver`` for an answer of this pydantic model, and return it. ``None``: the framework has no
        such thing, or none that streams."""
        return None

    async def several(self, client: Any, task: str, n: int) -> bool:
        """Ask the framework's own model once for ``n`` answers; ``False`` where there is no way to."""
        return False

    def arguments(self, stream: bool) -> str:
        """A tool call's arguments in its span: as the model wrote them, unless the framework forgets that."""
        return ARGUMENTS

    def excuse(self, test: pytest.Item) -> str | None:
        """Why this test may fail, by the framework's own fault; an excused test that passes fails. Most
        frameworks need none."""
        return None

    def prepare(self) -> None:
        """Settings of the framework for a whole process, after the adapter is on."""
        return None

    # ---------------------------------------------------------------------------------------- fixtures
    @pytest.fixture(autouse=True)
    def excused(self, request: pytest.FixtureRequest) -> None:
        """Only what :meth:`excuse` names may fail, and then it must."""
        reason = self.excuse(request.node)
        if reason is not None:
            request.node.add_marker(pytest.mark.xfail(reason=reason, strict=True))

    @pytest.fixture(autouse=True)
    def tally(self, request: pytest.FixtureRequest, excused: None) -> Iterator[None]:
        """Every answered call of the test was compared with the server's log, and is counted."""
        TALLY.clear()
        yield
        made, exact = TALLY.counts()
        found = {"made": made, "exact": exact, **dict(request.node.user_properties).get("contract", {})}
        request.node.user_properties.append(("contract", found))
        left = [x.body for x in TALLY.answered() if not TALLY.exact(x)]
        TALLY.clear()
        may_fail = self.excuse(request.node) is not None
        assert may_fail or made == exact, f"{made - exact} of {made} calls were not compared: {left[:1]}"

    @pytest.fixture(autouse=True)
    def instrumented(self, tally: None) -> Iterator[None]:
        """The adapter is on."""
        COUNTS.clear()
        self.instrumentor().instrument(raise_exception_on_conflict=True)
        self.prepare()
        yield
        if self.instrumentor().is_instrumented_by_opentelemetry:
            self.instrumentor().uninstrument()

    @pytest.fixture
    async def server(self) -> AsyncIterator[ScriptedModelServer]:
        """The scripted model."""
        async with CountedServer(say, ids="always") as server:
            yield server

    @pytest.fixture
    async def shared(self, server: ScriptedModelServer) -> AsyncIterator[Any]:
        """One client for all agents of a test."""
        client = self.client(server.url, CONTEXT_KEY)
        yield client
        await self.close(client)
