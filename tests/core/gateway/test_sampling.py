"""Sampling: forced in training, kept elsewhere, masked where it could not be set."""

import msgspec
import pytest
from aiohttp import web
from core.gateway.conftest import StoreDouble, whole
from hypothesis import given, strategies as st

from agentlightning.gateway import SamplingPolicy, Upstream
from agentlightning.gateway.attempts import AttemptInfo, OpenAttempt, content_digest, derive_seed, root_seed
from agentlightning.gateway.sampling import apply_sampling
from agentlightning.gateway.settings import CallSection
from agentlightning.semconv import RESAMPLED
from agentlightning.types import Attempt, Rollout
from agentlightning.types.select import selector

NEUTRAL = msgspec.structs.asdict(SamplingPolicy())


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
    ("world", "agent", "selected"),
    [
        (None, "solver", True),
        ("solver", "solver", True),
        ("solver", "critic", False),
        ("solver", None, False),
        (["solver", "critic"], "critic", True),
        ("re:wolf_[0-9]+", "wolf_12", True),
        ("re:wolf_[0-9]+", "wolf_12b", False),
        ("unknown", None, True),
        ("unknown", "solver", False),
    ],
    indirect=["world"],
)
async def test_only_selected_calls_are_forced(run, agent, selected):
    headers = {"x-agl-tags": f'{{"agent": "{agent}"}}'} if agent else {}
    await run.post({"temperature": 0.2}, headers=headers)
    (call,) = run.store.calls
    assert call.selected is selected
    assert run.engine.bodies[0]["temperature"] == (1.0 if selected else 0.2)
    assert ("seed" in run.engine.bodies[0]) is selected


@pytest.mark.parametrize("world", ["wolf", "night", "re:ni.*", ["seer", "wolf"]], indirect=True)
async def test_roles_and_nodes_can_be_selected(run):
    tags = '{"agent": "player 3", "role": "wolf", "node": "night"}'
    await run.post(headers={"x-agl-tags": tags})
    await run.post(headers={"x-agl-tags": '{"agent": "player 4"}'})
    assert [call.selected for call in run.store.calls] == [True, False]


@pytest.mark.parametrize(("header", "world", "selected"), [
    ("0", None, False), ("0", "solver", False), ("1", "solver", True), ("1", "critic", False),
    (None, None, True),
], indirect=["world"])  # fmt: skip
async def test_a_marked_class_may_leave_a_call_out(run, header, selected):
    headers = {"x-agl-tags": '{"agent": "solver"}', **({"x-agl-selected": header} if header else {})}
    await run.post({"temperature": 0.2}, headers=headers)
    (call,) = run.store.calls
    assert call.selected is selected and call.masked is None
    assert run.engine.bodies[0]["temperature"] == (1.0 if selected else 0.2)
    assert not [name for name in run.engine.headers[0] if name.lower().startswith("x-agl")]


async def test_a_malformed_choice_is_refused(run):
    answer = await run.post(headers={"x-agl-selected": "yes"})
    assert answer.status == 400 and b"x-agl-selected is 'yes', neither 0 nor 1" in answer.raw
    assert run.store.calls == []


async def test_a_predicate_that_fails_is_said_to_the_agent(run):
    run.gateway._attempts._selects = selector(lambda tags: tags["side"] == "wolves")
    answer = await run.post(key=run.open("s"))
    assert answer.status == 500 and b"KeyError: 'side'" in answer.raw and b"tags.get" in answer.raw
    assert run.store.calls == []


async def test_whom_nobody_named_is_unknown_counted_and_said_once(run, caplog):
    for _ in range(2):
        await run.post()
    await run.post(headers={"x-agl-tags": '{"team": "salon"}'})
    await run.post(headers={"x-agl-tags": '{"node": "write"}'})
    assert [call.tags for call in run.store.calls] == [
        {"role": "unknown"}, {"role": "unknown"}, {"team": "salon", "role": "unknown"}, {"node": "write"},
    ]  # fmt: skip
    assert run.gateway.metrics.unnamed == 3 == run.gateway.metrics.as_dict()["unnamed"]
    assert len([r for r in caplog.records if "has no agent's name" in r.getMessage()]) == 1


async def test_the_attempts_tags_name_whom_the_caller_does_not(run):
    await run.post(key=run.open("s", tags={"agent": "clerk"}))
    await run.post(key=run.open("t", tags={"agent": "clerk"}), headers={"x-agl-tags": '{"role": "unknown"}'})
    clerk = {"agent": "clerk"}
    assert [call.tags for call in run.store.calls] == [clerk, {**clerk, "role": "clerk"}]


@pytest.mark.parametrize(("policies", "policy"), [
    ({"re:wolf.*": "wolves", "wolf_1": "judge"}, "wolves"),
    ({"seer": "wolves", "night": "judge"}, "judge"),
    ({"seer": "wolves"}, "default"),
])  # fmt: skip
async def test_policies_are_matched_like_select(run, policies, policy):
    for name in ("wolves", "judge"):
        run.gateway.add_route(Upstream(policy=name, url=run.engine.url, model=name))
    tags = '{"agent": "wolf_1", "node": "night"}'
    await run.post(key=run.open("s", policies=policies), headers={"x-agl-tags": tags})
    assert run.store.calls[0].policy == policy


async def test_frozen_policies_are_left_alone(run):
    run.gateway.add_route(Upstream(policy="judge", url=run.engine.url, model="big", trainable=False))
    run.gateway.policy_sampling("judge", SamplingPolicy())
    key = run.open("2", policies={"judge": "judge"})
    await run.post({"model": "judge", "temperature": 0.2}, key=key)
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
    settings = apply_sampling(body, policy=None, greedy=False, seed=None)
    assert body == {"temperature": 0.5, "logit_bias": {"1": 2}}
    assert (settings.used, settings.asked, settings.off_policy) == ({"temperature": 0.5}, {}, False)


def test_seed_is_pinned():
    assert derive_seed(1, "", b"x", 0) == derive_seed(1, "", b"x", 0) != derive_seed(1, "", b"x", 1)
    assert len({derive_seed(1, *one, 0) for one in (("a", b"x"), ("b", b"x"), ("a", b"y"))}) == 3


def test_bad_select_says_so():
    with pytest.raises(ValueError, match="not a regular expression"):
        CallSection(select="re:(")


async def test_a_retry_keeps_its_seed(run):
    def headers(span, retry=0):
        return {"traceparent": f"00-{'a' * 32}-{span * 16}-01", "x-stainless-retry-count": str(retry)}

    for span, retry in (("1", 0), ("1", 1), ("2", 0), ("2", 1), ("2", 2), ("3", 0)):
        await run.post(headers=headers(span, retry))
    seeds = [b["seed"] for b in run.engine.bodies]
    assert seeds[0] == seeds[1] and seeds[2] == seeds[3] == seeds[4]
    assert len(set(seeds)) == 3
    asked = content_digest(run.store.calls[0].request)
    assert seeds == [derive_seed(7, "", asked, i) for i in (0, 0, 1, 1, 1, 2)]


def opened(seed: int | None = 7) -> OpenAttempt:
    info = AttemptInfo(rollout_id="ro", attempt_id="at", seed=seed)
    return OpenAttempt(info, lambda _: True, StoreDouble())


def chat(text: str, **fields):
    return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}


@given(st.permutations(["x", "x", "y", "z", "z", "z"]))
def test_seeds_do_not_depend_on_the_order_of_parallel_calls(order):
    """Of those that ask the same, it is open who gets which of the same seeds."""

    def seeds(texts):
        attempt = opened()
        return sorted((text, attempt.seeds.next("", chat(text), str(i))) for i, text in enumerate(texts))

    assert seeds(order) == seeds(sorted(order))
    assert len({seed for _, seed in seeds(order)}) == 6


def test_parallel_calls_that_ask_the_same_and_are_tried_again_keep_their_seeds():
    attempt = opened()
    first, second = (attempt.seeds.next("", chat("x"), span) for span in "ab")
    assert first != second
    assert [attempt.seeds.next("", chat("x"), span, 1) for span in "ba"] == [second, first]
    assert attempt.seeds.next("", chat("x"), "c", 1) not in (first, second)  # its first try never came here
    assert attempt.seeds.next("", chat("x"), "c", 2) == opened_after("x", 3)


def opened_after(text: str, n: int) -> int | None:
    attempt = opened()
    return [attempt.seeds.next("", chat(text), str(i)) for i in range(n)][-1]


def test_what_is_drawn_at_random_is_no_part_of_what_is_asked():
    def turn(name: str, **fields):
        call = {"id": name, "type": "function", "function": {"name": "add", "arguments": "{}"}}
        said = {"role": "assistant", "content": None, "tool_calls": [call]}
        return chat("x", **fields) | {
            "messages": [said, {"role": "tool", "tool_call_id": name, "content": "3"}]
        }

    assert content_digest(turn("a", user="u1")) == content_digest(turn("b", user="u2", stream=True))
    assert content_digest(chat("x")) != content_digest(chat("y"))
    assert content_digest(chat("x", max_tokens=3)) != content_digest(chat("x"))
    assert content_digest({"prompt": "x"}) != content_digest({"prompt": ["x"]})
    for odd in ({"messages": 3}, {"messages": ["x", {"tool_calls": 3}, {"tool_calls": [1]}]}, {}):
        assert len(content_digest(odd)) == 16  # what the engine will refuse has a seed all the same


def test_an_attempt_after_a_failure_of_its_own_samples_anew():
    rollout = Rollout(rollout_id="ro", seed=5)
    roots = [
        root_seed(rollout, Attempt(attempt_id="a", rollout_id="ro", metadata=m))
        for m in ({}, {RESAMPLED: 1}, {RESAMPLED: 2}, {RESAMPLED: 1})
    ]
    assert roots[0] == 5 and roots[1] == roots[3] and len(set(roots)) == 3
    unseeded = Rollout(rollout_id="ro")
    assert root_seed(unseeded, Attempt(attempt_id="a", rollout_id="ro", metadata={RESAMPLED: 1})) is None


@pytest.mark.parametrize("cut", [1, 3, 5])
async def test_a_gateway_that_starts_anew_gives_the_seeds_it_would_have_given(world, cut):
    """It finds the attempt in the store, with what it has asked so far; the last answer was lost."""
    questions = ["x", "x", "y", "x", "z", "y"]

    async def ask(i, retry=0):
        headers = {"traceparent": f"00-{'a' * 32}-{i + 1:016x}-01", "x-stainless-retry-count": str(retry)}
        await world.post(
            chat(questions[i], n=2), key=world.keys.mint("ro-9", "at-9", fence=1), headers=headers
        )
        return world.engine.bodies[-1]["seed"]

    world.store.put("ro-9", "at-9", seed=5)
    expected = [await ask(i) for i in range(6)]
    assert len(set(expected)) == 6
    world.gateway._attempts._loaded.clear()
    world.store.calls.clear()
    assert [await ask(i) for i in range(cut)] == expected[:cut]
    world.gateway._attempts._loaded.clear()
    assert await ask(cut - 1, retry=1) == expected[cut - 1]
    assert [await ask(i) for i in range(cut, 6)] == expected[cut:]
    assert world.store.lookups == 3
