"""Which policies a key opens: those of the run's agents, and none that the operator serves for others."""

from __future__ import annotations

import json

import pytest
from openai import AsyncOpenAI, PermissionDeniedError

from agentlightning.gateway import Upstream

ASKING = [
    ({"model": "judge"}, {}),
    ({}, {"x-agl-policy": "judge"}),
    ({}, {"x-agl-agent": "judge", "x-agl-policy": "judge"}),
    ({"model": "judge"}, {"x-agl-agent": "judge"}),
]


@pytest.fixture
def judged(world):
    """A world with a judge beside the trained policy."""
    world.gateway.add_route(Upstream(policy="judge", url=world.engine.url, model="big", trainable=False))
    return world


@pytest.mark.parametrize(("body", "headers"), ASKING)
@pytest.mark.parametrize("policies", [{}, {"solver": "default"}])
async def test_a_policy_of_no_agent_is_refused_and_counted(judged, body, headers, policies):
    key = judged.open("2", policies=policies)
    got = await judged.post(body, headers=headers, key=key)
    error = json.loads(got.raw)["error"]
    assert (got.status, error["code"]) == (403, "policy-closed") and "judge" in error["message"]
    assert judged.store.counted["refused", "policy-closed", "at-2"] == 1
    assert not judged.engine.bodies and not judged.store.calls
    assert (await judged.metrics())["refused"] == {"policy-closed": 1}


async def test_the_name_of_an_agent_opens_nothing_by_itself(judged):
    got = await judged.post(headers={"x-agl-agent": "judge"})
    assert got.status == 200 and judged.store.calls[0].policy == "default"


async def test_a_policy_that_an_agent_of_the_run_has_is_open_by_tag_and_by_name(judged):
    key = judged.open("2", policies={"critic": "judge", "re:.*": "default"})
    for body, headers in (({"model": "judge"}, {}), ({}, {"x-agl-agent": "critic"})):
        assert (await judged.post(body, headers=headers, key=key)).status == 200
    assert [call.policy for call in judged.store.calls] == ["judge", "judge"]


@pytest.mark.parametrize(("path", "body"), [("/completions", {"prompt": "x"})])
async def test_every_api_is_closed(judged, path, body):
    raw = json.dumps({"model": "judge", **body}).encode()
    assert (await judged.post(path=path, data=raw)).status == 403
    assert not judged.engine.bodies


async def test_an_sdk_is_told_what_to_do(judged):
    async with AsyncOpenAI(base_url=judged.url, api_key=judged.key) as client:
        with pytest.raises(PermissionDeniedError, match="`policies` says which agents may ask it"):
            await client.chat.completions.create(model="judge", messages=[{"role": "user", "content": "hi"}])


async def test_where_nothing_is_trained_and_nothing_mapped_every_policy_is_open(judged):
    judged.gateway.remove_route("default")
    judged.gateway.add_route(Upstream(policy="other", url=judged.engine.url, model="m", trainable=False))
    assert (await judged.post({"model": "judge"})).status == 200


async def test_a_rollout_with_a_map_of_its_own_asks_its_policy(judged):
    judged.store.put("ro-9", "at-9", metadata={"policies": {"re:.*": "judge"}})
    assert (await judged.post(key=judged.keys.mint("ro-9", "at-9"))).status == 200
    assert judged.store.calls[0].policy == "judge"
