"""Calls that an engine gives up to make way for new weights are asked again, whole.

While a policy is held, its engine may end what it was asked: with the finish reason ``abort``, with an error,
or by hanging up. Invariants: a call is asked again only if its policy was held since it was asked, so at most
once for each time; only if nothing of an answer has left for the agent, who then never knows; and what the
first try had cost is counted.
"""

from __future__ import annotations

from agentlightning.gateway.metrics import Metrics
from agentlightning.gateway.pause import PauseGate
from agentlightning.gateway.record import ModelRequest

ABORTED_BY_ENGINE = "aborted-by-engine"
"""How a call ends that cannot be asked again, because a part of its answer has left."""


class RetryAfterHold(Exception):
    """The engine has given the call up, and nobody has heard of it."""


class HoldRetries:
    """Says of a call that failed whether it is to be asked again."""

    def __init__(self, gate: PauseGate, metrics: Metrics) -> None:
        self._gate, self._metrics = gate, metrics

    def begin(self, exchange: ModelRequest) -> None:
        """Each time a call passes the gate."""
        exchange.holds_seen = self._gate.hold_count(exchange.route.policy)

    def check(self, exchange: ModelRequest) -> None:
        """Raise :class:`RetryAfterHold` if the policy has been held since."""
        if exchange.holds_seen != self._gate.hold_count(exchange.route.policy):
            raise RetryAfterHold

    def failed(self, exchange: ModelRequest, code: str, tokens: int = 0) -> str:
        """Raise :class:`RetryAfterHold` if the policy was held, else return the error code of the call.

        ``tokens``: of the answer that was given up, as far as known.
        """
        if exchange.holds_seen == self._gate.hold_count(exchange.route.policy):
            return code
        if exchange.assembler is not None:
            tokens = exchange.assembler.tokens
        aborted = self._metrics.aborted
        aborted["tokens"] += tokens
        if exchange.begun:
            aborted["streams"] += 1
            return ABORTED_BY_ENGINE
        aborted["calls"] += 1
        exchange.assembler = None  # nothing of it is on record
        raise RetryAfterHold
