"""A quickstart's agent with the pretrained model: calls with tools are exact, and a step is trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentlightning.cli.config_options import read
from agentlightning.train.configured import configure
from agl_local.policy.fetch import FetchError, fetch
from quickstart.policy import HERE

CONFIG = HERE / "smollm2.yaml"


def test_the_file_describes_a_run_of_any_of_the_three() -> None:
    config = read(CONFIG, [])
    assert config.backend.policy == "smollm2"
    assert config.agent.target == "quickstart_autogen:solve"
    _, _, train, val = configure(read(CONFIG, [f"backend.policy={HERE / 'policy'}"]))
    assert (len(train), len(val)) == (96, 32)
    asked = [{task["question"].strip("What is?").replace("-", "+") for task in of} for of in (train, val)]
    assert not asked[0] & asked[1]


@pytest.mark.nightly
@pytest.mark.plugins
def test_a_step_of_the_pretrained_model(tmp_path: Path) -> None:
    try:
        fetch("smollm2")
    except FetchError as error:
        pytest.skip(f"the weights of smollm2 are neither here nor to be fetched: {error}")
    short = ["training.steps=1", "environment.val.args.limit=4", f"output={tmp_path}", "trackers=[]"]
    trainer, agent, train, val = configure(read(CONFIG, short))
    summary = trainer.fit(agent, train, val)
    totals = summary["totals"]
    refused = summary["accounts"].get("over-length", {}).get("refused", 0)
    assert totals["calls"] - refused == totals["calls_exact"] >= 4 + 32 + 4
    assert totals["rows"] > 0 and totals["tokens_trained"] > 0
    assert totals["logprob_gap_max"] < 1e-4
