"""What a run opens: runners outside the trainer's process, its gateway, and what lives as long as it does."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # pydantic is not imported for it
    from pydantic import BaseModel

    from agentlightning.specs.gateway import CallGuard
    from agentlightning.store.base import Store


@dataclass(frozen=True, slots=True)
class RunnerJob:
    """What a runner outside the trainer's process is given."""

    config: Any
    """The run's description, a ``RunConfig``, which this floor does not import."""
    store: Store
    """The run's store, as the trainer reaches it."""
    agent: Any = None
    """The agent, a ``LitAgent``; ``None``: whoever starts the runner does not import it."""
    run_id: str | None = None
    """Only the rollouts of this run."""
    gateway: str | None = None
    """The address of the run's gateway as agents are told it, where it is known."""


class RemoteRunner(Protocol):
    """Has the rollouts of a store run elsewhere."""

    counts: Counter[str]
    """What became of its attempts and of its workers."""

    async def serve(self, stop: asyncio.Event) -> None:
        """Run rollouts until ``stop`` is set, then let those that run end or stop them. Raise the error that
        prevents any rollout from being run.
        """


@dataclass(frozen=True, slots=True)
class RunnerSpec:
    """A runner outside the trainer's process by name: ``factory(job, options)`` makes one, and raises
    UsageError for what a person can mend, e.g. a library that is not installed.
    """

    name: str
    factory: Callable[[RunnerJob, Any], RemoteRunner]
    options: Callable[[], type[BaseModel]]
    """Imports and returns the pydantic model of its options: the section ``runner`` without ``kind``."""
    about: str = ""
    trusted: bool = True
    """Whether its agents are trusted where ``agent.trusted`` is not set."""


@dataclass(frozen=True, slots=True)
class GatewayJob:
    """What a run's gateway is made with. Types are those of the gateway, which this floor does not import."""

    config: Any
    """The run's description, a ``RunConfig``."""
    calls: Any
    """Which calls are trained, a ``CallSection``."""
    store: Store
    keys: Any
    """The run's ``Keys``."""
    on_call: Callable[[Any], None] | None
    """Called with each ``Call`` that is on record; ``None``: nobody listens."""
    plugins: Any = None
    """The run's ``Plugins``, whose APIs a gateway in its process serves; ``None``: those of the process."""
    guards: Sequence[CallGuard] = ()
    """What admits and counts the run's calls. Gateways that are processes of their own get copies, by pickle,
    after :meth:`CallGuard.share`.
    """


@dataclass(frozen=True, slots=True)
class RunServiceSpec:
    """What lives as long as a run, by name. ``open(config)``, with its ``RunConfig``, returns an async
    context manager, or ``None`` where the run has no such thing. It is entered before the run's folder is
    opened, and left after all that writes to the folder. What it yields listens to the run's hooks.
    """

    name: str
    open: Callable[[Any], AbstractAsyncContextManager[object] | None]
    about: str = ""
