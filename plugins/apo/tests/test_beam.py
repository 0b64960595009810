"""Textual gradients with beam search: what is found, stored, counted and limited."""

from __future__ import annotations

import pytest
from agl_testing import Reply

import agentlightning as agl
from agl_apo.beam import APO
from agl_apo.candidates import stored_candidates

from .conftest import FIRST, TASKS, World

SMALL = {"beam_width": 2, "branch_factor": 2, "beam_rounds": 4, "prompts": {"prompt_template": FIRST}}


@pytest.mark.slow
async def test_the_search_finds_a_better_prompt(world: World) -> None:
    summary = await world.fit(APO(critic=world.critic, **SMALL))
    assert (summary["reward_before"], summary["reward_after"]) == (0.0, 1.0)
    assert all(word in summary["prompts"]["prompt_template"] for word in ("please", "truly"))
    assert summary["ci_after"][0] > summary["ci_before"][1]
    assert summary["gain"] == 1.0
    assert (world.folder / "search" / "prompts" / "prompt_template.txt").read_text().startswith(FIRST)


@pytest.mark.slow
async def test_candidates_have_parents_critiques_and_rewards_in_the_store(world: World) -> None:
    await world.fit(APO(critic=world.critic, **SMALL))
    async with world.stored() as store:
        found = await stored_candidates(store, "search")
        assert found[0].origin.step == "first" and not found[0].origin.parents
        by_id = {one.candidate_id: one for one in found}
        for one in found[1:]:
            assert one.origin.parents[0] in by_id and one.origin.edited == ["prompt_template"]
            calls = await store.query_calls(one.origin.critique)
            assert calls[-1].response["content"].startswith("It lacks")
            rollouts = [
                r
                for r in await store.query_rollouts(run_id="search")
                if r.metadata.get("candidate") == one.candidate_id
            ]
            assert len({r.task_id for r in rollouts}) == len(rollouts) >= 8
        assert len(found) == len({tuple(one.texts.values()) for one in found})


@pytest.mark.slow
async def test_the_ledger_sums_and_keeps_agent_and_assistants_apart(world: World) -> None:
    summary = await world.fit(
        APO(critic=world.critic, prices={"helper": {"prompt": 1, "completion": 2}}, **SMALL)
    )
    roles = summary["spent"]["by_role"]
    assert roles["agent"]["calls"] == len(world.model.log)
    assert roles["critic"]["calls"] + roles["editor"]["calls"] == len(world.served.log)
    assert summary["spent"]["calls"] == len(world.model.log) + len(world.served.log)
    assert summary["spent"]["money"] > 0 and summary["spent"]["by_role"]["agent"]["money"] == 0
    assert summary["spent"]["unpriced"] == {"agent": len(world.model.log)}, "by the policy's name"


@pytest.mark.slow
@pytest.mark.parametrize("calls", [20, 33, 40, 61])
async def test_a_budget_of_calls_is_never_exceeded(world: World, calls: int) -> None:
    summary = await world.fit(APO(critic=world.critic, budget={"calls": calls}, **SMALL))
    assert summary["spent"]["calls"] == len(world.model.log) + len(world.served.log) <= calls
    assert "budget" in summary["stopped"]
    assert summary["reward_after"] is not None, "the winner's evaluation was paid for"


async def test_a_budget_below_the_first_evaluation_keeps_what_there_is(world: World) -> None:
    summary = await world.fit(APO(critic=world.critic, budget={"calls": 5}, **SMALL))
    assert len(world.model.log) <= 5 and summary["reward_before"] is None
    assert summary["prompts"] == {"prompt_template": FIRST}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("no tags at all", "editor: no-prompt"),
        ("<prompt>Answer!</prompt>", "editor: placeholder-lost"),
        ("<prompt>{question} {question.__class__}</prompt>", "editor: placeholder-unknown"),
        ("<prompt>{question} {</prompt>", "editor: unreadable-template"),
        (f"<prompt>{FIRST}</prompt>", "editor: unchanged"),
        ("<prompt></prompt>", "editor: empty"),
        (Reply(status=400, message="no"), "editor: http-400"),
        (Reply(status=503, message="busy"), "editor: http-503"),
    ],
)
async def test_bad_answers_are_counted_and_end_no_run(world: World, answer, reason: str) -> None:
    world.helper.spoil = lambda n, role: answer if role == "editor" else None
    summary = await world.fit(APO(critic=world.critic, retry_wait=0.0, **{**SMALL, "beam_rounds": 1}))
    assert summary["failures"] == {reason: 2}
    assert summary["prompts"] == {"prompt_template": FIRST} and summary["candidates"] == 1


@pytest.mark.slow
async def test_a_server_that_recovers_is_asked_again(world: World) -> None:
    world.helper.spoil = lambda n, role: Reply(status=500) if n % 3 else None
    summary = await world.fit(APO(critic=world.critic, retry_wait=0.0, concurrency=1, **SMALL))
    assert summary["failures"].keys() <= {"duplicate"} and summary["reward_after"] == 1.0
    assert summary["spent"]["calls"] == len(world.model.log) + len(world.served.log), "failed calls count too"


@pytest.mark.slow
async def test_without_held_out_tasks_a_share_is_held_out(world: World) -> None:
    summary = await world.fit(APO(critic=world.critic, held_out=0.25, **SMALL), held_out=())
    assert summary["eval_tasks"] == 2


@pytest.mark.slow
async def test_the_prompts_of_initial_resources_are_searched(world: World) -> None:
    settings = {k: v for k, v in SMALL.items() if k != "prompts"}
    algorithm = APO(critic=world.critic, **settings)
    await world.fit(algorithm, initial_resources={"prompt_template": agl.PromptTemplate(template=FIRST)})
    assert "please" in algorithm.get_best_prompt().template


@pytest.mark.slow
async def test_without_prompts_the_error_says_what_to_give(world: World) -> None:
    with pytest.raises(agl.UsageError, match="there is no prompt to search"):
        await world.fit(APO(critic=world.critic))


def test_settings_are_checked() -> None:
    for settings, said in [
        ({}, "give critic"),
        ({"critic": {"endpoint": "http://x"}}, "endpoint and model"),
        ({"critic": "policy", "beam_width": 0}, "beam_width"),
        ({"critic": "policy", "budget": {"cents": 1}}, "budget"),
        ({"critic": "policy", "budget": {"calls": -1}}, "budget.calls"),
        ({"critic": "policy", "prices": {"m": {"in": 1}}}, "prices.m"),
        ({"critic": "policy", "held_out": 1.0}, "held_out"),
        ({"critic": "policy", "prompts": {"a": ""}}, "prompts.a"),
    ]:
        with pytest.raises(agl.UsageError, match=said):
            APO(**settings)


@pytest.mark.slow
async def test_the_same_task_has_the_same_seed_with_each_candidate(world: World) -> None:
    await world.fit(APO(critic=world.critic, **SMALL))
    async with world.stored() as store:
        rollouts = [r for r in await store.query_rollouts(run_id="search") if "candidate" in r.metadata]
    seeds: dict[tuple[str, str], set[int]] = {}
    for one in rollouts:
        seeds.setdefault((one.metadata["split"], one.task_id), set()).add(one.seed)
    assert len(seeds) == len(TASKS) and all(len(found) == 1 for found in seeds.values())
