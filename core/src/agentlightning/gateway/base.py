"""The gateway as a run sees it: a :class:`~agentlightning.gateway.app.Gateway` in its process, or what a
plugin has in its place (hook ``agl_gateways``), such as several processes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence

from agentlightning.gateway.attempts import AttemptInfo
from agentlightning.gateway.metrics import Metrics
from agentlightning.gateway.pause import ALL
from agentlightning.gateway.route import Routes, Upstream
from agentlightning.gateway.sampling import SamplingPolicy


class RunGateway(ABC):
    """What serves the model calls of a run: its routes, its sampling, and how its calls are held."""

    def __init__(self) -> None:
        self.routes: Routes = {}
        self.sampling: dict[str, SamplingPolicy] = {}
        """The run's sampling values, by policy."""
        self.moved: Callable[[], Awaitable[None]] | None = None
        """Awaited when an address was given up: new attempts need the others."""

    @property
    @abstractmethod
    def metrics(self) -> Metrics:
        """Counters since the start; of several processes, their sums at the last :meth:`settle`."""

    @property
    @abstractmethod
    def urls(self) -> Sequence[str]:
        """Base URLs while started. Each attempt keeps to one (:func:`~.route.ranking`)."""

    @property
    def url(self) -> str:
        """Base URL while started; of several processes, that of the first."""
        return self.urls[0]

    # -------------------------------------------------------------------------------- routes and sampling
    def add_route(self, upstream: Upstream) -> None:
        """Serve a policy from an engine, in place of any earlier engine."""
        self.routes[upstream.policy] = upstream
        self._changed()

    def remove_route(self, policy: str) -> None:
        """Stop serving a policy; calls under way finish."""
        if self.routes.pop(policy, None) is None:
            raise LookupError(f"no route {policy!r}; routes: {list(self.routes)}")
        self._changed()

    def limits(self, policy: str) -> tuple[int | None, int | None]:
        """Size of a policy's vocabulary, and of its context in tokens; ``None``: unknown."""
        route = self.routes.get(policy)
        return (route.vocabulary, route.context) if route else (None, None)

    def policy_sampling(self, policy: str, sampling: SamplingPolicy | None) -> None:
        """Set the sampling values of a policy's training calls; ``None`` keeps the agent's."""
        if sampling is None:
            self.sampling.pop(policy, None)
        else:
            self.sampling[policy] = sampling
        self._changed()

    def _changed(self) -> None:  # noqa: B027
        """Routes or sampling have changed: for gateways that are told so."""

    # ------------------------------------------------------------------------------------------- attempts
    @abstractmethod
    def open_attempt(self, info: AttemptInfo) -> str:
        """Let an attempt call, and return its key (the agent's ``OPENAI_API_KEY``)."""

    @abstractmethod
    async def close_attempt(self, attempt_id: str, *, grace: float = 0.0) -> None:
        """Revoke the key. Calls under way get ``grace`` seconds; then they are cancelled and recorded."""

    # ------------------------------------------------------------------------------------- weight updates
    @abstractmethod
    async def hold(self, policy: str = ALL) -> None:
        """Make new calls of a policy wait before they reach an engine. A call that its engine gives up
        meanwhile is retried whole after :meth:`release`; a call that it finishes is answered.
        """

    @abstractmethod
    async def release(self, policy: str = ALL) -> None:
        """Let calls of the policy go on."""

    @abstractmethod
    async def drain(self, timeout: float | None = None) -> bool:
        """Wait until no call is at an engine. Return False if ``timeout`` seconds did not suffice."""

    # ---------------------------------------------------------------------------------- several processes
    async def settle(self) -> None:  # noqa: B027
        """Return once all that serves does so by the present routes, sampling and versions, and has told its
        counts.
        """

    def accounts(self) -> dict[str, int]:
        """Losses of gateway processes, for the run's accounts."""
        return {}

    @abstractmethod
    async def stop(self) -> None:
        """Stop serving. Calls under way are cancelled, and recorded."""
