"""Calls that an engine gives up to make way for new weights are asked again, whole.

While a policy is held, its engine may end what it was asked: with the finish reason ``abort``, with an error,
or by hanging up. Invariants: a call is asked again only if its policy was held since it was asked, so at most
once for each time; only if nothing of an answer has left for the agent, who then never knows; and what the
first try had cost is counted.
"""

from __future__ import annotations

from agentlightning.gateway.gate import Gate
from agentlightning.gateway.metrics import Metrics
from agentlightning.gateway.record import Exchange

GIVEN_UP = "aborted-by-engine"
"""How a call ends that cannot be asked again, because a part of its answer has left."""


class AskAgain(Exception):
    """The engine has given the call up, and nobody has heard of it."""


class Tries:
    """Says of a call that failed whether it is to be asked again."""

    def __init__(self, gate: Gate, metrics: Metrics) -> None:
        self._gate, self._metrics = gate, metrics

    def begin(self, exchange: Exchange) -> None:
        """Each time a call passes the gate."""
        exchange.holds = self._gate.holds(exchange.route.policy)

    def check(self, exchange: Exchange) -> None:
        """Raise :class:`AskAgain` if the policy has been held since: the engine has not been asked yet."""
        if exchange.holds != self._gate.holds(exchange.route.policy):
            raise AskAgain

    def failed(self, exchange: Exchange, code: str, tokens: int = 0) -> str:
        """Raise :class:`AskAgain`, or return what the call ends with: ``code``, if its policy was not held.

        ``tokens``: of the answer that was given up, as far as known.
        """
        if exchange.holds == self._gate.holds(exchange.route.policy):
            return code
        if exchange.assembler is not None:
            tokens = exchange.assembler.tokens
        given_up = self._metrics.given_up
        given_up["tokens"] += tokens
        if exchange.begun:
            given_up["streams"] += 1
            return GIVEN_UP
        given_up["calls"] += 1
        exchange.assembler = None  # nothing of it is on record
        raise AskAgain
