"""The body of a request: how deep, and how many choices."""

from __future__ import annotations

import pytest

from agentlightning.gateway.errors import RequestRefused
from agentlightning.gateway.identity import decode_json
from agentlightning.webserver.body import MAX_DEPTH


def nested(levels: int, more: str = "") -> bytes:
    """An object of so many levels, itself included."""
    return f'{{"a": {"[" * (levels - 1)}{"]" * (levels - 1)}{more}}}'.encode()


@pytest.mark.parametrize("more", ["", ', "b": ' + "[" * 60 + "]" * 60, ', "b": "' + "[{" * 200 + '"'])
def test_the_deepest_body_is_read_and_a_deeper_one_is_refused(more: str) -> None:
    assert decode_json(nested(MAX_DEPTH, more)).keys() >= {"a"}
    with pytest.raises(RequestRefused, match="nested more than 100 levels deep") as refused:
        decode_json(nested(MAX_DEPTH + 1, more))
    assert (refused.value.status, refused.value.reason) == (400, "bad-body")
