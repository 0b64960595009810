"""Guided choice: trainable where the engine says the allowed ids, masked where it does not."""

import pytest
from aiohttp import web
from core.gateway.conftest import chunks, tokens_of, whole

from agentlightning.gateway import SamplingPolicy, Upstream
from agentlightning.gateway.sampling import is_allowed, is_constraint

YES, NO = tokens_of("yes")[0], tokens_of("no way")[0]
END = 2


@pytest.fixture
def run(world):
    world.gateway.policy_sampling("default", SamplingPolicy())
    return world


@pytest.mark.parametrize(
    ("shaping", "want"),
    [
        ({"guided_choice": ["a"]}, True),
        ({"structured_outputs": {"choice": ["a"]}}, True),
        ({"structured_outputs": {"choice": ["a"], "regex": None}}, True),
        ({"guided_regex": "a"}, True),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, True),
        ({"guided_choice": ["a"], "logit_bias": {"1": 1}}, False),
        ({"ignore_eos": True}, False),
        ({}, False),
    ],
)
def test_what_only_constrains(shaping, want):
    assert is_constraint(shaping) is want


@pytest.mark.parametrize(
    ("response", "want"),
    [([1, 2], True), ([1, 2, END], True), ([1], True), ([3, END], True), ([2], False),
     ([1, 2, END, END], False), ([], False), (None, False)],
)  # fmt: skip
def test_what_the_allowed_hold(response, want):
    assert is_allowed([[1, 2], [3]], response) is want


@pytest.mark.parametrize(
    "extra", [{"guided_choice": ["yes", "no way"]}, {"structured_outputs": {"choice": ["yes", "no way"]}}]
)
@pytest.mark.parametrize("way", ["whole", "passed", "replayed"])
async def test_known_ids_are_recorded_and_trainable(run, extra, way):
    run.gateway.add_route(Upstream(url=run.engine.url, model="tiny", stream_ids=way == "passed"))

    async def answer(request, body):
        if not body.get("stream"):
            return web.json_response(whole(body, "yes", guided_choice_ids=[YES, NO]))
        first, *rest = chunks(body, "yes")
        return await run.engine.stream(request, [first | {"guided_choice_ids": [YES, NO]}, *rest])

    run.engine.answer = answer
    assert (await run.post(extra | {"stream": way != "whole"})).status == 200
    (call,) = run.store.calls
    assert (call.allowed, call.masked, call.asked) == ([YES, NO], None, extra)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"guided_choice": ["yes"]}, {}),
        ({"guided_choice": ["yes"]}, {"guided_choice_ids": [NO]}),
        ({"guided_choice": ["yes"]}, {"guided_choice_ids": []}),
        ({"guided_choice": ["yes"], "logit_bias": {"5": 1}}, {"guided_choice_ids": [YES]}),
        ({"guided_choice": ["yes"]}, {"guided_choice_ids": [YES], "sampling": {"temperature": 0.5}}),
    ],
    ids=["not said", "another answer", "none", "shaped besides", "sampled otherwise"],
)
async def test_otherwise_it_is_masked(run, extra, said):
    async def answer(request, body):
        return web.json_response(whole(body, "yes", **said))

    run.engine.answer = answer
    assert (await run.post(extra)).status == 200
    assert run.store.calls[0].masked == "off-policy-sampling"


async def test_several_choices_share_the_allowed(run):
    async def answer(request, body):
        return web.json_response(whole(body, "yes", guided_choice_ids=[YES]))

    run.engine.answer = answer
    await run.post({"n": 2, "guided_choice": ["yes"]})
    assert [(call.allowed, call.masked) for call in run.store.calls] == [([YES], None)] * 2
