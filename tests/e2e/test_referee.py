"""The referee (``make truth``): it agrees with a run, names what is changed in it, and shares no code."""

from __future__ import annotations

import ast
import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings, strategies as st
from marks import examples, sampled
from safetensors.torch import load_file, save_file

from agentlightning.algorithms.intervals import mean_interval

ROOT = Path(__file__).resolve().parents[2]
REFEREE = ROOT / "tests" / "referee"
SMALL = {
    "training.steps": 1, "training.batch_size": 4, "training.evaluate_every": 0, "environment.val.limit": 4,
}  # fmt: skip
pytestmark = pytest.mark.plugins
LIMIT = 800
"""Lines of code of the referee, as ``scripts/size.py`` counts them."""


@pytest.fixture(scope="module")
def referee() -> Any:
    """Its modules, whose names are of no package."""
    sys.path.insert(0, str(REFEREE))
    try:
        import judge
        import truth
    finally:
        sys.path.remove(str(REFEREE))
    return judge, truth


@pytest.fixture(scope="module")
def run(referee: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run made by the command itself."""
    folder = tmp_path_factory.mktemp("runs")
    made: Path = referee[1].make_run(folder, "grpo", **SMALL)
    return made


def judged(referee: Any, folder: Path) -> Any:
    found = referee[0].Judgement()
    referee[0].judge_run(folder, found)
    return found


@pytest.mark.slow
def test_a_run_is_what_the_referee_computes(referee: Any, run: Path) -> None:
    found = judged(referee, run)
    assert (found.differences, found.unjudged) == ([], [])
    kinds = {"evaluation", "reward", "logprob", "metric", "weight", "moment", "export"}
    assert kinds == found.values.keys() and found.values["weight"] > 500_000 and found.values["logprob"] > 50


# ------------------------------------------------------------------------------- one change of each kind
def change(folder: Path, table: str, column: str, where: str, edit: Callable[[Any], Any]) -> None:
    """Edit the blob of the first row in a table of the store."""
    import stored

    with closing(sqlite3.connect(folder / "store.sqlite", isolation_level=None)) as db:
        rowid, data = db.execute(f"SELECT rowid, {column} FROM {table} {where}").fetchone()
        value = stored.blob(data)
        edit(value)
        db.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (b"\0" + packed(value), rowid))


def packed(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


TRAINED = "WHERE rollout_id IN (SELECT rollout_id FROM rollouts WHERE mode = 'train')"


def reward(folder: Path) -> None:
    def edit(body: Any) -> None:
        body[6]["agl.reward.value"] = 1.0 - body[6]["agl.reward.value"]

    change(folder, "spans", "data", f"{TRAINED} AND name = 'agentlightning.reward'", edit)


def logprob(folder: Path) -> None:
    def edit(body: Any) -> None:
        values = torch.frombuffer(bytearray(body[2]), dtype=torch.float32).clone()
        values[-1] -= 1e-3
        body[2] = values.numpy().tobytes()

    change(folder, "calls", "data", TRAINED, edit)


def token(folder: Path) -> None:
    def edit(body: Any) -> None:
        ids = torch.frombuffer(bytearray(body[1]), dtype=torch.int32).clone()
        ids[0] = (ids[0] + 1) % 500
        body[1] = ids.numpy().tobytes()

    change(folder, "calls", "data", TRAINED, edit)


def metric(folder: Path) -> None:
    def edit(report: Any) -> None:
        report["metrics"]["grad_norm"] *= 1.001

    with closing(sqlite3.connect(folder / "store.sqlite", isolation_level=None)) as db:
        import stored

        ((data,),) = db.execute("SELECT report FROM steps")
        report = stored.blob(data)
        edit(report)
        db.execute("UPDATE steps SET report = ?", (b"\0" + packed(report),))


def evaluation(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "store.sqlite", isolation_level=None)) as db:
        import stored

        ((data,),) = db.execute("SELECT info FROM runs")
        info = stored.blob(data)
        next(iter(info["evaluations"].values()))["evaluation"]["reward"] += 1e-6
        db.execute("UPDATE runs SET info = ?", (b"\0" + packed(info),))


def summary(folder: Path) -> None:
    place = folder / "summary.json"
    said = json.loads(place.read_text())
    said["ci_after"][1] += 1e-6
    place.write_text(json.dumps(said))


def weight(folder: Path) -> None:
    place = folder / "checkpoints" / "step-000001" / "policy" / "model.safetensors"
    tensors = load_file(place)
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] += 1e-3
    save_file(tensors, place)


def moment(folder: Path) -> None:
    place = folder / "checkpoints" / "step-000001" / "trainer.pt"
    state = torch.load(place, weights_only=True)
    average = state["trainer"]["optimizer"]["state"][3]["exp_avg"]
    average[0, 0] += 0.01 * average.abs().max()
    torch.save(state, place)


def export(folder: Path) -> None:
    place = folder / "policy" / "model.safetensors"
    tensors = load_file(place)
    tensors["lm_head.weight"][0, 0] += 1e-6
    save_file(tensors, place)


@pytest.mark.parametrize(("edit", "named"), sampled([
    (reward, ("reward", "reward_mean")), (logprob, ("logprob", "row ro-")), (token, ("logprob", "row ro-")),
    (metric, ("metric", "grad_norm")), (evaluation, ("evaluation", "before: reward")),
    (summary, ("evaluation", "summary: ci_after")), (weight, ("weight", "model.layers.1.mlp.up_proj.weight")),
    (moment, ("moment", "first moment of model.layers.0.")), (export, ("export", "lm_head.weight")),
], 0, 6))  # fmt: skip
def test_one_changed_value_is_named(
    referee: Any, run: Path, tmp_path: Path, edit: Callable[[Path], None], named: tuple[str, str]
) -> None:
    copy = shutil.copytree(run, tmp_path / run.name)
    edit(copy)
    kind, of = named
    differences = judged(referee, copy).differences
    assert any(one["kind"] == kind and of in one["where"] for one in differences), differences


@pytest.mark.nightly
def test_changed_answers_of_compare_and_rescore_are_named(referee: Any, run: Path, tmp_path: Path) -> None:
    judge, truth = referee
    mine, twin = (shutil.copytree(run, tmp_path / name) for name in ("mine", "twin"))
    rescored = json.loads(truth.agl(tmp_path, "rescore", str(mine), *truth.RESCORING))
    compared = json.loads(truth.agl(tmp_path, "compare", str(mine), str(twin), "--json"))
    runs = [judge.read_run(folder) for folder in (mine, twin)]

    def differences() -> list[str]:
        found = judge.Judgement()
        judge.judge_comparison(compared, runs[0], runs[1], found)
        judge.judge_rescoring(rescored, runs[0], found)
        return list(map(json.dumps, found.differences))

    before = set(differences())
    rollout = next(iter(runs[0].rescored["answered"]))
    runs[0].rescored["answered"][rollout] += 0.5
    compared["evaluations"][0]["difference"] += 1e-6
    compared["curves"]["second"][0] += 1e-6
    new = [json.loads(one)["where"] for one in set(differences()) - before]
    assert sorted(new) == sorted(
        ["compare grpo grpo, before: difference", "curve of grpo[0]", f"grpo {rollout}"]
    )


def spoil_failures(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "store.sqlite", isolation_level=None)) as db:
        import stored

        ((data,),) = db.execute("SELECT info FROM runs")
        info = stored.blob(data)
        said = info["evaluations"]["eval/before/1"]["evaluation"]
        said["left_out"] += 1
        said["rewards"][said["rewards"].index(None)] = 0.0
        info["evaluations"]["eval/after/1"]["evaluation"]["ci"][0] -= 1e-6
        db.execute("UPDATE runs SET info = ?", (b"\0" + packed(info),))


@pytest.mark.nightly
@pytest.mark.plugins
def test_failures_clusters_and_rewards_of_agents_are_judged(referee: Any, tmp_path: Path) -> None:
    """Failures with a reward and without, rewards of agents alone, intervals over clusters."""
    made: Path = referee[1].make_run(tmp_path, "pair", **{"training.steps": 1})
    found = referee[0].Judgement()
    run = referee[0].judge_run(made, found)
    assert (found.differences, found.unjudged) == ([], [])
    of = run.evaluations["eval/before/1"]
    assert None in of["rewards"] and of["failed"] > of["left_out"] > 0 and "bootstrap over" in of["interval"]
    assert {"agent-raised", "no-reward"} <= {one.failure for one in run.rollouts}
    assert any(one.credit is None and one.reward is not None for one in run.rollouts), "of agents alone"
    spoil_failures(made)
    where = {one["where"] for one in judged(referee, made).differences}
    assert any("before: left_out" in one for one in where) and any("before: rewards[" in one for one in where)
    assert any("after: ci[0]" in one for one in where)


@pytest.mark.nightly
@pytest.mark.plugins
def test_a_step_that_changes_no_weights_makes_no_version(referee: Any, tmp_path: Path) -> None:
    """The mini-batches of later steps are drawn by version, not by step."""
    settings = {
        "agent": {"target": "pair:partly", "name": "partly"}, "training.steps": 4, "training.batch_size": 1,
        "environment.train.args": {"spec": "generated:train", "limit": 2, "seed": 1},
        "training.evaluate_every": 0, "environment.val.limit": 4,
        "training.recipe": {"group_size": 8, "minibatches": 2},
    }  # fmt: skip
    made: Path = referee[1].make_run(tmp_path, "grpo", **settings)
    found = referee[0].Judgement()
    run = referee[0].judge_run(made, found)
    still = [run.reports[step, "policy"]["metrics"]["optimizer_steps"] == 0 for step in range(4)]
    assert True in still and False in still[still.index(True) :], "no step after one that changed nothing"
    assert (found.differences, found.unjudged) == ([], [])


# ------------------------------------------------------------------------------------------------- intervals
@settings(max_examples=examples(200))
@given(
    rewards=st.lists(
        # values whose sums floats hold exactly: else a spread of 1e-17 is none by one order of addition only
        st.sampled_from([0.0, 1.0]) | st.sampled_from([-2.5, 0.0, 0.25, 1.0, 3.0]),
        min_size=1,
        max_size=12,
    ),
    over=st.integers(1, 12),
    cluster=st.sampled_from([None, "kind"]),
    shares=st.booleans(),
)
def test_the_referees_interval_is_the_products(
    referee: Any, rewards: list[float], over: int, cluster: str | None, shares: bool
) -> None:
    units = [str(place % over) for place in range(len(rewards))]
    theirs = mean_interval(rewards, units, cluster, shares=shares)
    ends, kind, off = referee[0].interval(rewards, units, cluster, shares)
    assert kind == theirs.kind
    assert ends == (None if theirs.ends is None else pytest.approx(list(theirs.ends), abs=max(off, 1e-9)))


@pytest.mark.nightly
@pytest.mark.plugins
def test_runs_of_every_kind_are_what_the_referee_computes(referee: Any, tmp_path: Path) -> None:
    command = [sys.executable, str(REFEREE / "truth.py"), "--folder", str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    said = json.loads(done.stdout.splitlines()[-1])
    assert (said["runs"], said["differences"], said["unjudged"]) == (len(referee[1].RUNS), 0, 0)


# ------------------------------------------------------------------------------------------ independence
def test_the_referee_shares_no_code_with_the_product_and_stays_small() -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        from size import code_lines
    finally:
        sys.path.remove(str(ROOT / "scripts"))
    total = 0
    for path in sorted(REFEREE.glob("*.py")):  # its folder programs/ holds what users write: agents, a reward
        text = path.read_text()
        for node in ast.walk(ast.parse(text)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert not name.startswith(("agentlightning", "agl", "_agl")), f"{path.name}: {name}"
        total += code_lines(text)
    assert 300 < total < LIMIT
