"""A quickstart's agent with the pretrained model: calls with tools are exact, and a step is trained."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentlightning.cli.options import read
from agentlightning.train.configured import configure
from agl_audit.run import open_run
from agl_local.policy.fetch import FetchError, fetch
from quickstart.policy import HERE

CONFIG = HERE / "smollm2.yaml"


def test_the_file_trains_on_no_pair_of_numbers_that_is_held_out() -> None:
    config = read(CONFIG, [])
    assert config.backend.policy == "smollm2"
    assert config.agent.target == "quickstart_autogen:solve"
    _, _, train, val = configure(read(CONFIG, [f"backend.policy={HERE / 'policy'}"]))
    assert (len(train), len(val)) == (96, 32)
    trained, held_out = ({tuple(task["question"].split()[2::2]) for task in of} for of in (train, val))
    assert not trained & held_out


@pytest.mark.nightly
@pytest.mark.plugins
def test_a_step_of_the_pretrained_model(tmp_path: Path) -> None:
    try:
        fetch("smollm2")
    except FetchError as error:
        pytest.skip(f"the weights of smollm2 are neither here nor to be fetched: {error}")
    short = ["training.steps=1", "environment.val.args.limit=4", f"output={tmp_path}", "trackers=[]"]
    trainer, agent, train, val = configure(read(CONFIG, short))
    totals = trainer.fit(agent, train, val)["totals"]
    assert totals["calls"] == totals["calls_exact"] >= 6 * 8
    assert totals["rollouts_failed"] == 0
    assert totals["tokens_trained"] > 0
    assert totals["logprob_gap_max"] < 1e-3
    assert asyncio.run(offered_tools(next(tmp_path.iterdir()))) == {"calculate"}


async def offered_tools(folder: Path) -> set[str]:
    """The names of the tools in a run's recorded requests."""
    async with open_run(str(folder)) as run:
        rollouts = await run.store.query_rollouts(run_id=run.run_id)
        records = await run.store.records([rollout.rollout_id for rollout in rollouts])
    requests = [call.request or {} for record in records for call in record.calls]
    return {tool["function"]["name"] for request in requests for tool in request["tools"]}
