"""Sampling: forced in training, kept elsewhere, masked where it could not be set."""

import pytest
from aiohttp import web

from agentlightning.gateway import SamplingPolicy, Upstream
from agentlightning.gateway.sampling import derive_seed, settle

from .conftest import whole

NEUTRAL = SamplingPolicy().values()


@pytest.fixture
def run(world):
    world.gateway.policy_sampling("default", SamplingPolicy())
    return world


async def test_training_forces_the_runs_values(run):
    await run.post({"temperature": 0.2, "top_p": 1.0, "frequency_penalty": 1.5})
    sent, (call,) = run.engine.bodies[0], run.store.calls
    assert {k: sent[k] for k in NEUTRAL} == NEUTRAL
    assert call.sampling == NEUTRAL | {"seed": sent["seed"]}
    assert call.asked == {"temperature": 0.2, "frequency_penalty": 1.5}
    assert call.masked is None and call.selected
    assert call.request["temperature"] == 0.2, "the request is recorded as the agent sent it"


async def test_runs_own_values(run):
    run.gateway.policy_sampling("default", SamplingPolicy(temperature=0.7, top_k=20))
    await run.post()
    assert (run.engine.bodies[0]["temperature"], run.engine.bodies[0]["top_k"]) == (0.7, 20)
    run.gateway.policy_sampling("default", None)
    await run.post({"temperature": 0.1})
    assert run.engine.bodies[1]["temperature"] == 0.1 and "top_k" not in run.engine.bodies[1]


@pytest.mark.parametrize("mode", ["val", "test"])
async def test_evaluation_keeps_the_agents_values(run, mode):
    await run.post({"temperature": 0.2}, key=run.open("v", mode=mode))
    assert run.engine.bodies[0]["temperature"] == 0.2 and "top_k" not in run.engine.bodies[0]
    assert run.store.calls[0].sampling == {"temperature": 0.2} and run.store.calls[0].asked == {}


async def test_greedy_evaluation(run):
    await run.post({"temperature": 0.2}, key=run.open("v", mode="val", greedy=True))
    await run.post({"temperature": 0.2}, key=run.open("t", mode="train", greedy=True))
    assert [b["temperature"] for b in run.engine.bodies] == [0.0, 1.0]
    assert run.store.calls[0].sampling["temperature"] == 0.0 and run.store.calls[0].asked == {
        "temperature": 0.2
    }


@pytest.mark.parametrize(
    ("select", "agent", "selected"),
    [
        (None, "solver", True),
        ("solver", "solver", True),
        ("solver", "critic", False),
        ("solver", None, False),
        (["solver", "critic"], "critic", True),
        ("re:wolf_[0-9]+", "wolf_12", True),
        ("re:wolf_[0-9]+", "wolf_12b", False),
    ],
)
async def test_only_selected_calls_are_forced(run, select, agent, selected):
    key = run.open("s", select=select, seed=1)
    headers = {"x-agl-tags": f'{{"agent": "{agent}"}}'} if agent else {}
    await run.post({"temperature": 0.2}, key=key, headers=headers)
    (call,) = run.store.calls
    assert call.selected is selected
    assert run.engine.bodies[0]["temperature"] == (1.0 if selected else 0.2)
    assert ("seed" in run.engine.bodies[0]) is selected


async def test_frozen_policies_are_left_alone(run):
    run.gateway.add_route(Upstream(policy="judge", url=run.engine.url, model="big", trainable=False))
    run.gateway.policy_sampling("judge", SamplingPolicy())
    await run.post({"model": "judge", "temperature": 0.2})
    sent, (call,) = run.engine.bodies[0], run.store.calls
    assert sent["temperature"] == 0.2 and sent["model"] == "big"
    assert not {"return_token_ids", "logprobs", "seed"} & set(sent)
    assert not call.selected and call.policy == "judge"


@pytest.mark.parametrize(
    "extra",
    [
        {"logit_bias": {"5": 10}},
        {"guided_choice": ["a", "b"]},
        {"structured_outputs": {"regex": "a+"}},
        {"best_of": 2},
        {"min_tokens": 4},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"response_format": {"type": "json_object"}},
        {"echo": True},
    ],
)
async def test_what_cannot_be_set_is_masked(run, extra):
    await run.post(extra)
    (call,) = run.store.calls
    assert call.masked == "off-policy-sampling" and call.status == "ok"
    assert call.asked == extra
    assert (await run.metrics())["masked"] == {"off-policy-sampling": 1}
    await run.post(extra, key=run.open("v", mode="val"))
    assert run.store.calls[1].masked is None


@pytest.mark.parametrize(
    "extra",
    [
        {"logit_bias": {}},
        {"best_of": 1},
        {"tool_choice": "auto"},
        {"response_format": {"type": "text"}},
        {"min_tokens": 0},
    ],
)
async def test_neutral_fields_do_not_mask(run, extra):
    await run.post(extra)
    assert run.store.calls[0].masked is None and run.store.calls[0].asked == {}


async def test_an_engine_that_used_other_values_is_masked(run):
    async def answer(request, body):
        return web.json_response(
            whole(body, sampling={"temperature": 0.6, "top_p": 1.0, "seed": 5, "other": 3})
        )

    run.engine.answer = answer
    await run.post()
    (call,) = run.store.calls
    assert call.masked == "off-policy-sampling" and call.sampling["temperature"] == 0.6


async def test_seeds_are_reproducible_and_distinct(run):
    async def seeds(name, seed, agents):
        key = run.open(name, seed=seed)
        start = len(run.engine.bodies)
        for agent in agents:
            await run.post(key=key, headers={"x-agl-tags": f'{{"agent": "{agent}"}}'})
        return [b.get("seed") for b in run.engine.bodies[start:]]

    a = await seeds("a", 3, ["x", "x", "y"])
    assert len(set(a)) == 3 and all(0 <= s < 2**63 for s in a)
    assert await seeds("b", 3, ["x", "x", "y"]) == a
    assert not set(await seeds("c", 4, ["x", "x", "y"])) & set(a)
    assert await seeds("d", 3, ["y", "x", "x"]) == [a[2], a[0], a[1]], (
        "lanes do not depend on each other's order"
    )
    assert await seeds("e", None, ["x"]) == [None]
    assert run.store.calls[0].sampling["seed"] == a[0]


async def test_a_pinned_seed_is_overruled_in_training_and_noted(run):
    """Else the samples of a group would all be the same, and nothing could be learned from them."""
    for name, seed in (("a", 1), ("b", 2)):
        await run.post({"seed": 99}, key=run.open(name, seed=seed))
    sent = [body["seed"] for body in run.engine.bodies]
    assert len({*sent, 99}) == 3
    assert [call.asked["seed"] for call in run.store.calls] == [99, 99]
    assert not any(call.masked for call in run.store.calls)


async def test_a_pinned_seed_stays_outside_of_training(run):
    await run.post({"seed": 99}, key=run.open("v", mode="val", seed=1))
    assert run.engine.bodies[0]["seed"] == 99 and run.store.calls[0].sampling["seed"] == 99


def test_settle_leaves_an_untrained_body_alone():
    body = {"temperature": 0.5, "logit_bias": {"1": 2}}
    settings = settle(body, policy=None, greedy=False, seed=None)
    assert body == {"temperature": 0.5, "logit_bias": {"1": 2}}
    assert (settings.used, settings.asked, settings.off_policy) == ({"temperature": 0.5}, {}, False)


def test_seed_is_pinned():
    assert derive_seed(1, "", 0) == derive_seed(1, "", 0) != derive_seed(1, "", 1)
    assert derive_seed(1, "a", 0) != derive_seed(1, "b", 0)


def test_bad_select_says_so(world):
    with pytest.raises(ValueError, match="not a regular expression"):
        world.open("x", select="re:(")


async def test_a_retry_keeps_its_seed(run):
    def headers(span, retry=0):
        return {"traceparent": f"00-{'a' * 32}-{span * 16}-01", "x-stainless-retry-count": str(retry)}

    for span, retry in (("1", 0), ("1", 1), ("2", 0), ("2", 1), ("2", 2), ("3", 0)):
        await run.post(headers=headers(span, retry))
    seeds = [b["seed"] for b in run.engine.bodies]
    assert seeds[0] == seeds[1] and seeds[2] == seeds[3] == seeds[4]
    assert len(set(seeds)) == 3
    assert seeds == [derive_seed(7, "", i) for i in (0, 0, 1, 1, 1, 2)]
