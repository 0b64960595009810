"""Bodies of every kind to the APIs that this plugin brings: as those of core."""

from __future__ import annotations

from core.webserver.test_fuzz import Running, fuzz, running as running
from hypothesis import HealthCheck, given, settings, strategies as st
from marks import examples

PATHS = ["/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/v1/conversations"]


@settings(
    max_examples=examples(150),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_the_gateway(running: Running, data: st.DataObject) -> None:
    fuzz(running, data, PATHS)
