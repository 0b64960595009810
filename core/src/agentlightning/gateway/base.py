"""The gateway as a run sees it: a :class:`~agentlightning.gateway.app.Gateway` in its process, or what a
plugin has in its place (hook ``agl_gateways``), such as several processes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from agentlightning.gateway.admission.attempts import AttemptInfo
from agentlightning.gateway.admission.spending import Spending
from agentlightning.gateway.metrics import Metrics
from agentlightning.gateway.rewrite.sampling import SamplingPolicy
from agentlightning.gateway.upstream.route import Upstream


class RunGateway(Protocol):
    """What serves the model calls of a run."""

    spending: Spending
    moved: Callable[[], Awaitable[None]] | None
    """Awaited when an address was given up: new attempts need the others."""

    @property
    def metrics(self) -> Metrics:
        """Counters since the start; of several processes, their sums at the last :meth:`settle`."""

    @property
    def url(self) -> str:
        """Base URL while started; of several processes, that of the first."""

    @property
    def urls(self) -> Sequence[str]:
        """Base URLs while started. Each attempt keeps to one (:func:`~.upstream.endpoints.ranking`)."""

    def add_route(self, upstream: Upstream) -> None: ...
    def remove_route(self, policy: str) -> None: ...
    def limits(self, policy: str) -> tuple[int | None, int | None]: ...
    def policy_sampling(self, policy: str, sampling: SamplingPolicy | None) -> None: ...
    def open_attempt(self, info: AttemptInfo) -> str: ...
    async def close_attempt(self, attempt_id: str, *, grace: float = 0.0) -> None: ...
    async def pause(self) -> None: ...
    async def drain(self, timeout: float | None = None) -> bool: ...
    async def resume(self) -> None: ...
    async def hold(self, policy: str) -> None: ...
    async def release(self, policy: str) -> None: ...

    async def stop(self) -> None: ...

    async def settle(self) -> None:
        """Return once every process serves by the present routes, sampling and versions, and has told its
        counts.
        """

    def accounts(self) -> dict[str, int]:
        """Losses of gateway processes, for the run's accounts."""
