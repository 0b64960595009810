"""``agl rescore``: another reward function over stored rollouts, and who reads what it gives."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contract.runs import RUN, make_run, plugins

from agentlightning.plugins.stores import open_store
from agentlightning.store.base import Conflict, Store
from agentlightning.types import UsageError
from agl_audit.history.rescoring.function import RescoreFunction
from agl_audit.history.rescoring.rescore import rescore
from agl_audit.run import open_run
from agl_cluster.store.server import start
from plugins.audit.tests.conftest import Agl

GRADING = '''
import asyncio

def length(task, result):
    """2 calls, and the answer's digits."""
    assert task == {"q": "2 + 3"}
    return len(result.calls) + int(result.answer)

def fails(task, result):
    if result.rollout_id.endswith("-1"):
        raise ValueError(f"cannot grade {result.answer}")
    return None if result.rollout_id.endswith("-2") else 0.5

async def judged(result):
    await asyncio.sleep(0)
    tool = next(span for span in result.spans if "calculate" in span.name)
    return float(tool.attributes["gen_ai.tool.call.result"]) / 10

def by_call(call):
    return 1.0 if call.answer["choices"][0]["message"].get("tool_calls") else None

def of_call(call, result):
    assert call.agent == "solver" and call.request["messages"]
    return result.calls.index(call) / 4

def nan(result):
    return float("nan")

def wrong(question):
    return {"reward": 1}

def odd(first, second):
    return 1
'''


@pytest.fixture(autouse=True)
def grading(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "agentlightning-lab" / "grading_of_test.py"
    path.parent.mkdir()
    path.write_text(GRADING)
    monkeypatch.setattr(sys, "path", [str(path.parent), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield path
    sys.modules.pop("grading_of_test", None)


def named(function: str, **given: Any) -> RescoreFunction:
    return RescoreFunction(f"grading_of_test:{function}", **given)


def test_new_rewards_stand_beside_the_old_and_the_run_still_verifies(agl: Agl, folder: Path) -> None:
    status, out, _ = agl("rescore", RUN, "--reward", "grading_of_test:length", "--json")
    found = json.loads(out)
    assert status == 0 and found["name"] == f"length@{found['digest'][:8]}" and found["per"] == "rollout"
    # seven rollouts of training that ended well, and one of an evaluation; one agent raised
    assert (found["rollouts"], found["scored"], found["left_out"]) == (9, 8, {"agent-raised": 1})
    assert found["changed"] == 8 and found["mean_after"] == 7.0 and found["errors"] == 0
    status, out, _ = agl("verify", RUN)
    assert status == 0 and out.startswith("verified: 2 steps")
    for asked, reward in (((), 1.0), (("--rewards", "length"), 7.0), (("--rewards", "original"), 1.0)):
        status, out, _ = agl("rollouts", RUN, "--json", *asked)
        assert next(json.loads(line)["reward"] for line in out.splitlines()) == reward
    status, out, _ = agl("rollouts", RUN, "--json", "--rewards", "length", "--reward", ">=7")
    assert len(out.splitlines()) == 8
    status, out, _ = agl("trace", "ro-0-0", "--rewards", "length")
    assert "★ reward 7.0" in out and "reward 1.0" not in out and f"rewards of {found['name']}" in out
    status, out, _ = agl("trace", "ro-1-3", "--rewards", "length")
    assert f"{found['name']}: not scored" in out
    status, _, err = agl("rollouts", RUN, "--rewards", "other")
    assert status == 2 and f"no rewards 'other'; it has {found['name']}" in err


def test_compare_makes_evaluations_and_curves_again(agl: Agl, folder: Path) -> None:
    asyncio.run(make_run(folder.parent, name="other"))
    for run in (RUN, "other"):
        agl("rescore", run, "--reward", "grading_of_test:length", "--name", "longer", "--json")
    _, out, _ = agl("compare", RUN, "other", "--rewards", "longer", "--json")
    found = json.loads(out)
    assert found["curves"]["first"] == [7.0, 7.0] and found["rewards"] == "longer"
    assert [one["first"]["reward"] for one in found["evaluations"]] == [7.0]
    _, out, _ = agl("compare", RUN, "other", "--json")
    assert json.loads(out)["curves"]["first"] == [0.5, pytest.approx(1 / 3)]


def test_what_the_function_returned_wrongly_is_said_without_a_traceback(agl: Agl, folder: Path) -> None:
    status, out, _ = agl("rescore", RUN, "--reward", "grading_of_test:nan")
    assert status == 2 and "returned nan (float): return a finite number" in " ".join(out.split())
    assert "None" not in out.replace("or None if", "") and 'File "' not in out


def test_errors_are_kept_with_their_traceback_and_end_nothing(agl: Agl, folder: Path) -> None:
    status, out, _ = agl("rescore", RUN, "--reward", "grading_of_test:fails", "--name", "v", "--json")
    found = json.loads(out)
    assert status == 0 and (found["errors"], found["no_reward"], found["scored"]) == (2, 2, 6)
    first = found["first_errors"][0]
    assert "ValueError: cannot grade 5" in first["error"] and "grading_of_test.py" in first["traceback"]
    assert "raise ValueError" in first["traceback"] and "reward_function.py" not in first["traceback"]
    status, out, _ = agl("rescore", RUN, "--reward", "grading_of_test:fails", "--name", "v", "--json")
    again = json.loads(out)
    assert (again["errors"], again["already"], again["scored"]) == (2, 6, 0), "only errors are tried again"
    _, out, _ = agl("rollouts", RUN, "--rewards", "v", "--json", "--reward", "none")
    assert {json.loads(line)["rollout"] for line in out.splitlines()} == {
        *("ro-0-1", "ro-0-2", "ro-1-1", "ro-1-2", "ro-1-3")
    }
    status, out, err = agl("rescore", RUN, "--reward", "grading_of_test:nan")
    assert status == 2 and "failed for all of 8 rollouts" in err and "not" in out


def test_a_dry_run_stores_nothing(agl: Agl, folder: Path) -> None:
    status, out, _ = agl("rescore", RUN, "--reward", "grading_of_test:judged", "--dry-run")
    assert status == 0 and "8 of 9 rollouts scored" in out and "nothing was stored" in out

    async def versions() -> list[Any]:
        async with open_run(str(folder), plugins=plugins()) as run:
            return await run.store.query_reward_versions(RUN)

    assert asyncio.run(versions()) == []


def test_calls_get_rewards_of_their_own(agl: Agl, folder: Path) -> None:
    given = ("--per", "call", "--name")
    agl("rescore", RUN, "--reward", "grading_of_test:by_call", *given, "tools", "--json")
    _, out, _ = agl("rollouts", RUN, "--rewards", "tools", "--json", "--limit", "1")
    line = json.loads(out)
    assert line["reward"] == 1.0 and [call["reward"] for call in line["calls"]] == [1.0, None]
    agl("rescore", RUN, "--reward", "grading_of_test:of_call", *given, "place", "--agent", "solver", "--json")
    _, out, _ = agl("rollouts", RUN, "--rewards", "place", "--json", "--limit", "1")
    assert [call["reward"] for call in json.loads(out)["calls"]] == [0.0, 0.25]
    _, out, _ = agl(
        "rescore", RUN, "--reward", "grading_of_test:of_call", *given, "p2", "--agent", "x", "--json"
    )
    assert json.loads(out)["no_reward"] == 8


def test_a_changed_function_is_another_version(agl: Agl, folder: Path, grading: Path) -> None:
    line = ("rescore", RUN, "--reward", "grading_of_test:length", "--json")
    names = {json.loads(agl(*line)[1])["name"]}
    status, out, _ = agl(*line)
    assert json.loads(out)["already"] == 8 and json.loads(out)["scored"] == 0
    agl(*line, "--name", "mine")
    grading.write_text(GRADING.replace("len(result.calls) +", "2 * len(result.calls) +"))
    sys.modules.pop("grading_of_test")
    import linecache

    linecache.checkcache()
    names.add(json.loads(agl(*line)[1])["name"])
    assert len(names) == 2
    status, _, err = agl(*line, "--name", "mine")
    assert status == 2 and "has rewards mine already, whose digest" in err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (("--reward", "grading_of_test:nothing"), "has no 'nothing'"),
        (("--reward", "no_such_module:f"), "cannot import 'no_such_module'"),
        (("--reward", "grading_of_test"), "must be written module:object"),
        (("--reward", "grading_of_test:odd"), "it may take task, result by name"),
        (("--reward", "grading_of_test:length", "--per", "token"), "it is rollout or call"),
        (("--reward", "grading_of_test:length", "--agent", "a"), "give it with --per call"),
        (("--reward", "math:sqrt"), "its source cannot be read"),
        (("--reward", "grading_of_test:length", "--name", "original"), "ended with"),
    ],
)
def test_what_cannot_be_done_is_said(agl: Agl, folder: Path, line: tuple[str, ...], message: str) -> None:
    status, _, err = agl("rescore", RUN, *line)
    assert status == 2 and message in err


class Dying:
    """A store that stops in the middle, as a killed process does."""

    def __init__(self, store: Store, entries: int) -> None:
        self.store, self.left = store, entries

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def add_rescored(self, *args: Any) -> int:
        if not self.left:
            raise ConnectionError("killed")
        self.left -= 1
        return await self.store.add_rescored(*args)


async def test_an_interrupted_rescoring_goes_on_and_gives_no_reward_twice(tmp_path: Path) -> None:
    folder = await make_run(tmp_path / "runs")
    store = open_store(str(folder), plugins=plugins())
    async with open_run(str(folder), plugins=plugins()) as run:
        run.store = Dying(store, 3)  # type: ignore[assignment]
        with pytest.raises(ConnectionError):
            await rescore(run, named("length"), name="v")
        run.store = store
        ids = [one.rollout_id for one in await store.query_rollouts(run_id=RUN)]
        kept = await store.rescored(ids, "v")
        assert len(kept) == 3
        found = await rescore(run, named("length"), name="v", order=1)
        assert (found.already, found.scored) == (3, 5)
        assert (await store.rescored([one.rollout_id for one in kept], "v")) == kept
    await store.close()


async def test_two_processes_share_a_run_through_a_server(tmp_path: Path) -> None:
    folder = await make_run(tmp_path / "runs")
    store = open_store(str(folder), plugins=plugins())
    served = await start(store, port=0)  # type: ignore[arg-type]
    try:

        async def work(order: int) -> Any:
            async with open_run(served.url, plugins=None, read_only=False) as run:
                return await rescore(run, named("judged"), name="v", order=order, concurrency=4)

        one, other = await asyncio.gather(work(1), work(2))
        assert one.scored + other.scored == 8 and one.scored + one.already == 8
        async with open_run(served.url, plugins=None) as run:
            with pytest.raises(Conflict):
                await rescore(run, named("length"), name="v")
    finally:
        await served.close()
        await store.close()


def test_names_of_parameters_choose_what_a_function_gets() -> None:
    with pytest.raises(UsageError, match="may take task, result, call by name"):
        named("odd", per="call")
    assert named("by_call", per="call").version("r", None).per == "call"
