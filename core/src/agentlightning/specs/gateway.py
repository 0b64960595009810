"""What plugins add to the gateway: further APIs, and guards that admit and count a run's calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentlightning.types import Call

if TYPE_CHECKING:
    from agentlightning.store.base import Store


@dataclass(frozen=True, slots=True)
class ApiFormatSpec:
    """An API that agents speak: the path of its model calls (``/v1/responses``), and what makes its format, a
    :class:`~agentlightning.gateway.apis.ApiFormat`.
    """

    path: str
    format: Callable[[], Any]
    about: str = ""


class CallGuard:
    """Admits the calls of one run, and counts them. It lives as long as the run.

    A guard overrides what it needs.
    """

    name: str
    """Key of its :meth:`summary`, and what is said of a run that it ends."""
    refused: int = 0
    """Calls that it refused."""

    async def begin(self, store: Store, run_id: str, recorded: Mapping[str, Any]) -> None:
        """The run begins, or goes on. ``recorded``: the last :meth:`summary` of its earlier lives."""

    def share(self) -> None:
        """Gateways in processes of their own are about to get copies, and forward the run's calls: what one
        admits and counts, this one and the others see in the store alone.
        """

    def join(self, store: Store) -> None:
        """This is the copy of a gateway process, which has a connection of its own to the store."""

    def admit(self, rollout_id: str) -> AbstractAsyncContextManager[None]:
        """Entered before a call is sent to its engine, and left once it is on record. Raise
        :class:`CallFailure` to refuse it: the refusal is recorded as a call.
        """
        return nullcontext()

    def count(self, calls: Sequence[Call]) -> None:
        """Calls that this gateway has put on record, of one request."""

    async def exhausted(self, *, last: bool = False) -> str | None:
        """Why no call of the run is admitted any more, if so: training then ends. ``last``: the evaluation
        after it is about to begin, and nothing is kept back any longer.
        """
        return None

    def keep_back(self) -> None:
        """The evaluations before training are made: as much may be kept back for those after it."""

    def metrics(self) -> dict[str, float]:
        """Metrics of the present step."""
        return {}

    def summary(self) -> dict[str, Any]:
        """What the run's record and its summary say."""
        return {}
