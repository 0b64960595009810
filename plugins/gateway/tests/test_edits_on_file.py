"""The edits of a route's calls, on file in a real store."""

from agl_gateway.edits.section import RouteSection
from core.gateway.conftest import tokens_of
from core.gateway.test_real_store import lease, store as store

from agentlightning.gateway import Upstream


async def test_what_was_edited_is_on_file(world):
    rollout, _, key = await lease(world)
    route = Upstream(
        url=world.engine.url,
        model="tiny",
        settings=RouteSection(reasoning="split", over_length="truncate", max_len=50_000),
    )
    world.gateway.add_route(route)
    world.engine.options = {"text": "<think> a </think> b"}
    await world.post(key=key)
    (call,) = await world.store.query_calls(rollout.rollout_id)
    assert call.edited == {"reasoning": "split"}
    assert call.response == {"role": "assistant", "content": "b", "reasoning_content": "a"}
    assert call.response_ids == tokens_of("<think> a </think> b")[0]
