"""What every store does with odd input: it is stored exactly, or it is an error."""

from __future__ import annotations

import math
import re

import pytest
from contract.storing import call, span

from agentlightning.store.base import Conflict, Store
from agentlightning.types import Rollout, Span

ODD = {
    "nan": math.nan,
    "inf": [math.inf, -math.inf, -0.0],
    "big": 2**200,
    "half": "lone \ud83d surrogate",
    "zero": "a\x00b",
    "empty": [{}, [], "", None, False],
    "deep": [[[[[[[[[[{"x": 1}]]]]]]]]]],
    "long": "x" * 300_000,
    "schlüssel": "ключ",
}


def same(a: object, b: object) -> bool:
    """Equal, NaN and -0.0 included."""
    return repr(a) == repr(b)


class InputContract:
    """Values as they are."""

    async def test_odd_values_are_stored_exactly(self, store: Store) -> None:
        for odd in (ODD, {k: v for k, v in ODD.items() if k not in ("big", "half")}, *ODD.values()):
            made = await store.enqueue_rollout(odd, metadata={"odd": odd})
            found = await store.get_rollout_by_id(made.rollout_id)
            assert same(found.input, odd) and same(found.metadata, {"odd": odd})

    async def test_odd_values_in_spans_and_calls(self, store: Store) -> None:
        made = await store.enqueue_rollout(1)
        lease = await store.start_attempt(made.rollout_id)
        await store.add_span(span(lease, attributes=ODD))
        await store.add_calls([call(lease, request=ODD, response=ODD)])
        rollout_id = lease.rollout.rollout_id
        (found,) = await store.query_calls(rollout_id)
        assert same(found.request, ODD) and same(found.response, ODD)
        first = (await store.spans(rollout_id))[0]
        assert same(first.attributes, ODD)

    @pytest.mark.parametrize("odd", [".", "..", "null"])
    @pytest.mark.parametrize("name", ["rollout_id", "run_id", "group_id"])
    async def test_an_id_that_a_url_takes_for_something_else_is_refused(
        self, store: Store, name: str, odd: str
    ) -> None:
        with pytest.raises(ValueError, match=f"{name} '{re.escape(odd)}' means something else"):
            await store.enqueue_many_rollouts([Rollout(**{"rollout_id": "ro-1", "input": 1, name: odd})])
        assert await store.query_rollouts() == []

    async def test_one_rollout_id_names_one_content(self, store: Store) -> None:
        given = Rollout(rollout_id="ro-1", input=ODD, run_id="r", seed=1)
        for _ in range(2):
            (made,) = await store.enqueue_many_rollouts([given])
            assert made.rollout_id == "ro-1"
        for changed in (
            Rollout(rollout_id="ro-1", input={**ODD, "nan": 1.0}, run_id="r", seed=1),
            Rollout(rollout_id="ro-1", input=ODD, run_id="s", seed=1),
            Rollout(rollout_id="ro-1", input=ODD, run_id="r", seed=2),
        ):
            with pytest.raises(Conflict, match="ro-1 exists with another"):
                await store.enqueue_many_rollouts([Rollout(rollout_id="ro-0", input=1), changed])
        twice = [Rollout(rollout_id="ro-2", input=1), Rollout(rollout_id="ro-2", input=2)]
        with pytest.raises(Conflict):
            await store.enqueue_many_rollouts(twice)
        assert [r.rollout_id for r in await store.query_rollouts()] == ["ro-1"]

    async def test_a_request_id_is_that_of_one_request(self, store: Store) -> None:
        """Methods for one thing and for many remember their answers alike."""
        assert await store.add_many_spans([], request_id="once") == []
        with pytest.raises(Conflict, match="was already used"):
            await store.add_span(Span(rollout_id="ro", attempt_id="at", name="s"), request_id="once")
        assert await store.enqueue_many_rollouts([], request_id="none") == []
        with pytest.raises(Conflict, match="none was already used"):
            await store.enqueue_rollout(1, request_id="none")
