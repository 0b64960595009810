"""A policy goes back to its run, its rewards and its parents; a prompt to what it was made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from contract.runs import make_run
from typer.testing import CliRunner

from agentlightning.algorithms.provenance import ORIGIN, code_of, origin_of, origins
from agentlightning.cli import app
from agentlightning.store import SQLiteStore
from agentlightning.types.work import JsonResource, PolicyFolder, PromptTemplate
from agl_audit.history.lineage.prompts import lineage_of_prompt
from agl_audit.history.lineage.runs import lineage_of_run

BASE, NEXT = "20260101-000000-base", "20260102-000000-next"


@pytest.fixture
async def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs, the second from a checkpoint of the first, and from its rollouts and those of a lost run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    await make_run(tmp_path / "runs", name=BASE, info={"code": {"agent": "ab" * 32}, "data": {"train": "t"}})
    started = {"policy": {"run": BASE, "step": 2}}
    info = {"started_from": started, "settings": {"runs": [BASE, "lost"]}, "seed": 7}
    await make_run(tmp_path / "runs", name=NEXT, info=info)
    return tmp_path


async def test_a_run_goes_back_to_its_parents(runs: Path) -> None:
    found = (await lineage_of_run(NEXT)).shown()
    assert (found["run"], found["seed"]) == (NEXT, 7)
    policy, stored, lost = found["parents"]
    assert (policy["run"], policy["how"], policy["step"]) == (BASE, "policy policy", 2)
    assert policy["code"] == {"agent": "ab" * 32} and policy["tasks"] == {"train": "t"}
    assert (stored["run"], stored["how"]) == (BASE, "stored rollouts")
    assert lost["run"] == "lost" and "lost" in lost["missing"]
    assert found["rewards"] == policy["rewards"] and found["rewards"]["rewarded"] > 0


async def test_rewards_are_told_by_their_content(runs: Path) -> None:
    before = (await lineage_of_run(BASE)).facts["rewards"]
    await make_run(runs / "runs", name="other", rewards={0: [0.25, 1.0], 1: [1.0, 1.0]})
    after = (await lineage_of_run("other")).facts["rewards"]
    assert len(before["digest"]) == 32 and before["digest"] != after["digest"]


async def test_a_run_that_goes_back_to_itself_ends(runs: Path) -> None:
    await make_run(runs / "runs", name="loop", info={"settings": {"runs": ["loop"]}})
    found = (await lineage_of_run("loop")).shown()
    assert found["parents"][0]["run"] == "loop" and found["parents"][0]["parents"] == []


async def test_a_policys_folder_names_its_run(runs: Path) -> None:
    (runs / "tuned").mkdir()
    (runs / "tuned" / "config.json").write_text("{}")
    unknown = (await lineage_of_run("tuned")).shown()
    assert unknown["run"] == "tuned" and "rewards" not in unknown
    (runs / "tuned" / ORIGIN).write_text(json.dumps({"run": NEXT, "head": "h"}))
    known = (await lineage_of_run("tuned")).shown()
    assert (known["run"], known["how"]) == (NEXT, "policy tuned") and len(known["parents"]) == 3
    within = runs / "runs" / BASE / "checkpoints" / "step-000004" / "policy"
    within.mkdir(parents=True)
    (runs / "runs" / BASE / "run.json").write_text(json.dumps({"run_id": BASE}))
    assert origin_of(within) == {"run": BASE, "step": 4, "folder": "checkpoints/step-000004/policy"}
    assert origins({"a": PolicyFolder(path=within), "b": None}) == {"a": origin_of(within)}


def test_the_code_of_an_agent_is_its_source() -> None:
    async def agent(task: Any) -> float:
        return 1.0

    assert len(code_of(agent)["agent"]) == 64 and "agent" not in code_of(len)


async def test_a_prompt_goes_back_to_its_candidates(sqlite: SQLiteStore) -> None:
    async def add(name: str, text: str, *parents: str) -> None:
        held = {
            "prompt": PromptTemplate(template=text),
            "candidate": JsonResource(value={"parents": [*parents]}),
        }
        await sqlite.add_resources(held, resources_id=name)

    await add("first", "Be brief.")
    await add("second", "Be very brief.", "first", "deleted")
    await add("third", "Be brief and right.", "second")
    await sqlite.update_resources("third", {"prompt": PromptTemplate(template="Be right.")})
    found = await lineage_of_prompt(sqlite, "third")
    assert found["version"] == 2 and len({one["digest"] for one in found["versions"]}) == 2
    first, second = [await lineage_of_prompt(sqlite, name) for name in ("first", "second")]
    assert [one["resources"] for one in second["ancestors"]] == ["first", "deleted"]
    assert second["ancestors"][0]["digest"] == first["digest"]
    assert second["ancestors"][1]["missing"] == "the store does not have it"


@pytest.fixture
async def sqlite() -> Any:
    store = SQLiteStore(":memory:")
    yield store
    await store.close()


def test_the_command(runs: Path) -> None:
    said = CliRunner().invoke(app(), ["lineage", NEXT])
    assert said.exit_code == 0, said.output
    assert f"{BASE}  (policy policy)" in said.output and "missing" in said.output
    found = json.loads(CliRunner().invoke(app(), ["lineage", NEXT, "--json"]).output)
    assert len(found["parents"]) == 3
