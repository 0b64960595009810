"""The hooks that the test of an adapter implements, and the fixtures of the contract's tests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from agentlightning.capture import COUNTS
from agentlightning.keys import CONTEXT_KEY
from agl_testing import ScriptedModelServer
from agl_testing.contract import script
from agl_testing.contract.script import ARGUMENTS
from agl_testing.contract.tally import TALLY, CountedServer


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class AdapterHooks(ABC):
    """Hooks to implement. The hooks that are not abstract are for features that a framework may lack."""

    # ------------------------------------------------------------------------------------------- hooks
    @abstractmethod
    def instrumentor(self) -> Any:
        """Return the adapter's ``BaseInstrumentor``."""

    @abstractmethod
    def client(self, url: str, key: str) -> Any:
        """Return a model client of the framework for any number of agents. It retries up to three times."""

    @abstractmethod
    async def tool_agent(self, client: Any, task: str, tool: Callable[..., Any], stream: bool) -> str:
        """Run one agent ``solver`` that calls ``tool`` and answers: two model calls. Return the answer."""

    @abstractmethod
    async def team(self, client: Any, task: str, stream: bool) -> None:
        """Run a team of ``writer`` and ``critic``. Each makes one model call, with its name in the system
        prompt.
        """

    @abstractmethod
    async def close(self, client: Any) -> None:
        """Close the client."""

    @abstractmethod
    def patched(self) -> Sequence[tuple[Any, str]]:
        """Return (owner, attribute) of each patch. A test compares them by ``is`` after ``uninstrument``."""

    def tool_agent_sync(self, client: Any, task: str, tool: Callable[..., Any], stream: bool) -> str | None:
        """As ``tool_agent``, by the framework's synchronous API. Return ``None`` if it has none."""
        return None

    async def structured(self, client: Any, task: str, schema: type[Any], stream: bool) -> Any:
        """Run ``solver`` for an answer of this pydantic model, and return it. Return ``None`` if the
        framework has no structured answers, or none that stream.
        """
        return None

    def entries(self, client: Any) -> Mapping[str, Callable[[str], Awaitable[Any]]]:
        """Return every method by which a program may run one agent ``solver``, by name, as a function of the
        task: those that ``tool_agent`` takes, those below them, and those that are rarely taken. The agent
        has no tool, and makes one model call.
        """
        return {}

    async def several(self, client: Any, task: str, n: int) -> bool:
        """Request ``n`` answers in one call of the framework. Return ``False`` if the framework cannot."""
        return False

    def arguments(self, stream: bool) -> str:
        """Return a tool call's arguments in its span: the model's text, or the framework's form of it."""
        return ARGUMENTS

    def result(self, text: str) -> str:
        """Return a tool's result in its span, where the tool returned ``text``: what the model reads."""
        return text

    def say(self, body: dict[str, Any]) -> Any:
        """Answer a request as the model would: the tool's call, and once its result is there an answer. A
        framework whose agents finish by a tool, or get results as a user's text, needs a model that does so.
        """
        return script.say(body)

    def answer(self, text: str) -> Any:
        """Return the reply that ends an agent's turn: the text, or the call of a tool that gives it."""
        return text

    def excuse(self, test: pytest.Item) -> str | None:
        """Return why this test must fail because of a fault of the framework; ``None``: it must pass."""
        return None

    def prepare(self) -> None:
        """Change settings of the framework in this process, after the adapter is on."""
        return None

    # ---------------------------------------------------------------------------------------- fixtures
    @pytest.fixture(autouse=True)
    def excused(self, request: pytest.FixtureRequest) -> None:
        """Expect the failure of a test that :meth:`excuse` names."""
        reason = self.excuse(request.node)
        if reason is not None:
            request.node.add_marker(pytest.mark.xfail(reason=reason, strict=True))

    @pytest.fixture(autouse=True)
    def tally(self, request: pytest.FixtureRequest, excused: None) -> Iterator[None]:
        """Count the test's calls, and fail the test if a call was not compared with the server's log."""
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
        """Switch the adapter on for the test."""
        COUNTS.clear()
        self.instrumentor().instrument(raise_exception_on_conflict=True)
        self.prepare()
        yield
        if self.instrumentor().is_instrumented_by_opentelemetry:
            self.instrumentor().uninstrument()

    @pytest.fixture
    async def server(self) -> AsyncIterator[ScriptedModelServer]:
        """The scripted model server."""
        async with CountedServer(self.say, ids="always") as server:
            yield server

    @pytest.fixture
    async def shared(self, server: ScriptedModelServer) -> AsyncIterator[Any]:
        """One client for all agents of a test."""
        client = self.client(server.url, CONTEXT_KEY)
        yield client
        await self.close(client)
