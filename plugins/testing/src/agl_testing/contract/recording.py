"""An attempt that keeps its spans in a list, and the comparison of its calls with a server's log."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

from agentlightning import semconv
from agentlightning.capture.context import AttemptContext, attempt_context
from agentlightning.capture.sdk_call import LOGPROB_COUNT
from agentlightning.types import Span
from agentlightning.types.arrays import unpack_float32
from agentlightning.types.tokens import TokenIds, tokens_digest
from agl_testing import Exchange
from agl_testing.contract.tally import TALLY


class Recording:
    """One attempt. With ``gateway=None`` the server is no gateway, and the spans carry the token ids."""

    def __init__(self, name: str, gateway: str | None) -> None:
        self.spans: list[Span] = []
        self.ended: Callable[[Span], object] = lambda span: None
        """Called with each span that was added."""
        self.context = AttemptContext(
            rollout_id=f"ro-{name}",
            attempt_id=f"at-{name}",
            sink=self._keep,
            key=f"agl-key-{name}",
            gateway=gateway,
        )

    def _keep(self, span: Span) -> None:
        self.spans.append(span)
        self.ended(span)

    def active(self) -> AbstractContextManager[AttemptContext]:
        """Make this the current attempt within the block."""
        return attempt_context(self.context)

    def named(self, name: str) -> list[Span]:
        """Return the spans whose names begin with ``name``."""
        return [span for span in self.spans if span.name.startswith(name)]

    @property
    def calls(self) -> list[Span]:
        """Return the call spans in the order in which the calls began."""
        return sorted(self.named(semconv.CALL_SPAN), key=lambda span: span.start_time)

    def agents(self) -> list[str | None]:
        """Return the agent of each call, in order."""
        return [span.attributes.get(semconv.TAG_PREFIX + "agent") for span in self.calls]


def assert_exact(recording: Recording, log: Iterable[Exchange]) -> None:
    """Assert that each answered request of this log is one call span of the attempt, with the same tokens, in
    the same order.
    """
    exchanges = [exchange for exchange in log if exchange.status == 200]
    calls = [span for span in recording.calls if span.status == "ok"]
    answered = [span.attributes.get(semconv.RESPONSE_ID) for span in calls]
    assert answered == [exchange.response_id for exchange in exchanges]
    for span, exchange in zip(calls, exchanges, strict=True):
        assert (span.rollout_id, span.attempt_id) == (
            recording.context.rollout_id,
            recording.context.attempt_id,
        )
        assert_same_tokens(span, exchange)


def assert_each_exact(recording: Recording, log: Iterable[Exchange]) -> None:
    """As :func:`assert_exact` for concurrent calls: in any order, with one span for each choice."""
    exchanges = {x.response_id: x for x in log if x.status == 200}
    calls = [span for span in recording.calls if span.status == "ok"]
    assert len(calls) == sum(len(exchange.answers) for exchange in exchanges.values())
    told = [(span.attributes[semconv.RESPONSE_ID], span.attributes[semconv.CHOICE]) for span in calls]
    assert len(set(told)) == len(told)
    for span in calls:
        assert span.attempt_id == recording.context.attempt_id
        assert_same_tokens(span, exchanges[span.attributes[semconv.RESPONSE_ID]])


def assert_same_tokens(span: Span, exchange: Exchange) -> None:
    """Assert that the span has the server's digest and counts, and the server's ids and logprobs if any."""
    answer = exchange.answers[span.attributes[semconv.CHOICE]]
    attributes = span.attributes
    assert attributes[semconv.TOKENS_DIGEST] == tokens_digest(exchange.prompt_ids, answer.ids)
    assert attributes[semconv.PROMPT_COUNT] == len(exchange.prompt_ids)
    assert attributes[semconv.RESPONSE_COUNT] == attributes[LOGPROB_COUNT] == len(answer.ids)
    if semconv.RESPONSE_IDS in attributes:
        assert TokenIds.unpacked(b64decode(attributes[semconv.PROMPT_IDS])) == exchange.prompt_ids
        assert TokenIds.unpacked(b64decode(attributes[semconv.RESPONSE_IDS])) == answer.ids
        assert unpack_float32(b64decode(attributes[semconv.LOGPROBS])) == answer.logprobs
    TALLY.found(exchange, attributes[semconv.CHOICE])
