"""The examination as a whole, on real parts: what is probed, what is skipped; nothing stays behind."""

from __future__ import annotations

import getpass
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openai
import pytest
from agl_programs.commands.agent import CommandAgent
from agl_testing.doctor import Check, ConfiguredRun, ProbeSize, Report, examine
from agl_testing.doctor.checks.configuration import folder_bytes

from agentlightning import GRPO, LLM, Trainer, tagged
from agentlightning.hookspecs import hookimpl
from agentlightning.plugins.manager import build
from agentlightning.specs import DriverSpec
from agentlightning.types import UsageError

POLICY = Path(__file__).parents[4] / "examples" / "calc_x" / "policy"
THREAD = {"threads": 1, "engine": "thread", "max_len": 256}
RUN = ["configuration", "store", "engine", "gateway", "capture", "prefix", "reward", "forecast"]


async def coins(task: Mapping[str, Any], llm: LLM) -> float:
    """Rewards differ as much as answers do: by the parity of their letters."""
    client = openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "-")
    content = f"Ida has {task['n']} coins. How many are half of them?"
    try:
        answer = await client.chat.completions.create(
            model=llm.model, messages=[{"role": "user", "content": content}], max_tokens=6
        )
    finally:
        await client.close()
    return float(sum(map(ord, answer.choices[0].message.content or "")) % 2)


def trainer(folder: Path, **options: Any) -> Trainer:
    import agl_local.plugin

    defaults: dict[str, Any] = dict(
        algorithm=GRPO(group_size=4),
        policy=POLICY,
        options=THREAD,
        steps=2,
        batch_size=3,
        output=folder / "runs",
        plugins=build([agl_local.plugin, Small()], discover=False),
    )
    return Trainer(**{**defaults, **options})


class Dead:
    """A driver whose engine does not come up."""

    def __init__(self, *_: Any) -> None:
        self.version = 0

    async def start(self) -> LLM:
        raise RuntimeError("the engine process ended with status 1; its stderr ends with:\nout of memory")

    async def close(self) -> None:
        pass


class Small:
    @hookimpl
    def agl_drivers(self) -> list[DriverSpec]:
        return [DriverSpec("dead", Dead, frozenset({"group_size"}))]  # type: ignore[arg-type]


async def examined(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    agent: Any = coins,
    size: ProbeSize | None = None,
    **options: Any,
) -> dict[str, Check]:
    """The checks by name; the temporary and the run's folder must be as they were."""
    places = tmp_path / "scratch", tmp_path / "work"
    for place in places:
        place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(places[0]))
    train = [{"n": n} for n in range(40)]
    val = [{"n": -n} for n in range(1, 40)]
    before = folder_bytes(POLICY)

    def load() -> ConfiguredRun:
        return ConfiguredRun(trainer(places[1], **options), agent, train, val)

    told: list[str] = []
    report = await examine(load, size or ProbeSize(tasks=4), on_check=lambda check: told.append(check.name))
    assert told[-len(RUN) :] == RUN
    left = [path.name for place in places for path in place.iterdir()]
    assert set(left) <= {f"torchinductor_{getpass.getuser()}"}  # torch's own cache, not ours
    assert folder_bytes(POLICY) == before
    assert report.ok == all(check.status != "fail" for check in report.checks)
    return {check.name: check for check in report.checks}


def said(check: Check) -> str:
    return "\n".join([check.title, *check.detail])


@pytest.mark.slow
async def test_a_whole_run_is_looked_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = await examined(tmp_path, monkeypatch)
    assert {c.status for c in found.values()} <= {"ok", "warn"}, [
        c for c in found.values() if c.status == "fail"
    ]
    assert found["engine"].data["first_token"] > 0
    assert found["gateway"].data["durable"] is True
    assert found["capture"].data["verdicts"] == {"exact": 4} and found["capture"].data["past"] == 0
    assert "the agent's own rollouts were single calls" in found["prefix"].detail
    assert found["reward"].data["rollouts"] == 16 and found["reward"].data["calls_trained"] == 16
    forecast = found["forecast"].data
    assert 0 < forecast["logprob_gap_max"] <= 1e-4
    assert forecast["step_seconds"] > 0 and forecast["store_bytes_per_step"] > 0
    assert forecast["rollouts"] == 2 * 12 + 4 * 39


async def named(task: Mapping[str, Any], llm: LLM) -> float:
    with tagged(agent="solver"):
        return await coins(task, llm)


@pytest.mark.slow
async def test_the_doctors_own_calls_are_the_doctors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = await examined(tmp_path, monkeypatch, named, ProbeSize(tasks=1, quick=True), batch_size=64)
    assert found["capture"].data["agents"] == {"solver": 4}
    assert "has no agent's name" not in caplog.text
    assert found["configuration"].status == "warn"
    assert "a step draws 64 tasks and the dataset has 40: each is in it up to 2 times" in said(
        found["configuration"]
    )


@pytest.mark.slow
async def test_quick_makes_no_update_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from agl_local.driver import LocalDriver

    async def never(self: LocalDriver, job: Any) -> None:
        raise AssertionError("an update was made")

    monkeypatch.setattr(LocalDriver, "run", never)
    found = await examined(tmp_path, monkeypatch, size=ProbeSize(tasks=4, quick=True))
    assert found["forecast"].status in ("ok", "warn") and found["forecast"].data["logprob_gap_max"] is None
    assert "no update was measured" in said(found["forecast"])


async def raises(task: Mapping[str, Any], llm: LLM) -> float:
    raise ConnectionError("no route to the tool server")


async def always_wrong(task: Mapping[str, Any], llm: LLM) -> float:
    return 0.0 * await coins(task, llm)


async def mute(task: Mapping[str, Any], llm: LLM) -> None:
    await coins(task, llm)


async def idle(task: Mapping[str, Any], llm: LLM) -> float:
    return 1.0


FAULTS: list[tuple[Any, dict[str, Any], str, str]] = [
    (raises, {}, "capture", "4 of 4 rollouts failed: 4 × agent-raised: ConnectionError: no route"),
    (mute, {}, "capture", "4 of 4 rollouts returned without a reward"),
    (idle, {}, "capture", "the agent made no model call"),
    (
        coins,
        {"select": "planner"},
        "capture",
        "`select` (planner) matches nobody: calls came from unknown",
    ),
    (always_wrong, {}, "reward", "training would be pointless: all 16 rewards are 0"),
    (coins, {"policy": "nowhere"}, "configuration", "the policy's folder nowhere does not exist"),
    (coins, {"policy": None}, "configuration", "no policy is named"),
    (coins, {"driver": "verl"}, "configuration", "the driver 'verl' is not installed"),
    (coins, {"driver": "dead"}, "engine", "RuntimeError: the engine process ended with status 1"),
    (coins, {"options": {"thread": 1}}, "configuration", "the local driver has no option 'thread'"),
    (coins, {"algorithm": GRPO(credit="magic")}, "configuration", "recipe.credit: no rule 'magic'"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("agent", "options", "name", "title"), FAULTS)
async def test_what_makes_a_run_pointless_is_said_and_the_rest_is_skipped(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    agent: Any,
    options: dict[str, Any],
    name: str,
    title: str,
) -> None:
    found = await examined(tmp_path, monkeypatch, agent, **options)
    assert [c.name for c in found.values() if c.status == "fail"] == [name]
    assert title in said(found[name]) and found[name].advice, found[name]
    assert found["forecast"].status == "skipped" and "because" in found["forecast"].title


@pytest.mark.slow
async def test_an_agent_that_hangs_ends_at_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    async def hangs(task: Mapping[str, Any], llm: LLM) -> float:
        await asyncio.Event().wait()
        return 1.0

    found = await examined(tmp_path, monkeypatch, hangs, timeout_seconds=0.2)
    assert "4 × timeout: the attempt took longer than 0.2 s" in said(found["capture"])


@pytest.mark.slow
async def test_a_package_that_an_agent_lacks_is_named_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lacking(task: Mapping[str, Any], llm: LLM) -> float:
        import no_such_sdk.client

        return float(no_such_sdk.client.ask(llm))

    found = await examined(tmp_path, monkeypatch, lacking)
    assert "`pip install no_such_sdk` where it runs" in " ".join(found["capture"].advice)


@pytest.mark.slow
async def test_a_reward_event_of_another_form_is_told_with_the_right_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    post = (
        "import os, urllib.request as r; key = 'Bearer ' + os.environ['AGL_KEY']\n"
        'body = b\'{"type": "reward", "value": 0.5}\'\n'
        "r.urlopen(r.Request(os.environ['AGL_EVENT_URL'], body, {'Authorization': key}))"
    )
    agent = CommandAgent(["sh", "-c", f'{sys.executable} -c "$0" 2> /dev/null || true', post])
    found = await examined(tmp_path, monkeypatch, agent)
    assert "4 of 4 rollouts returned without a reward" in said(found["capture"])
    assert "4 events posted to AGL_EVENT_URL refused as malformed" in said(found["capture"])
    assert '{"event_type": "reward", "data": {"value": 1.0}}' in " ".join(found["capture"].advice)


@pytest.mark.slow
async def test_an_agent_without_a_limit_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    from agl_testing.doctor import probe

    from agentlightning.runner import runner

    async def hangs(task: Mapping[str, Any], llm: LLM) -> float:
        await asyncio.Event().wait()
        return 1.0

    monkeypatch.setattr(probe, "DEFAULT_SECONDS", 0.3)
    monkeypatch.setattr(runner, "FINISH_SECONDS", 0.3)
    found = await examined(tmp_path, monkeypatch, hangs, timeout_seconds=None)
    assert "4 of 4 rollouts still ran after 0.3 s" in said(found["capture"])


@pytest.mark.slow
async def test_a_store_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from agl_testing.doctor.checks import store

    monkeypatch.setattr(store, "ANSWER", 0.2)
    found = await examined(tmp_path, monkeypatch, store="http://127.0.0.1:9")
    assert found["store"].title == (
        "no store answers at http://127.0.0.1:9 within 0.2 s; start one with `agl store`"
    )
    assert found["engine"].title == "skipped: because store failed"


@pytest.mark.slow
async def test_writes_that_are_not_in_the_files_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agl_testing.doctor.checks import store

    def empty(file: Path, folder: Path) -> Path:
        folder.mkdir()
        return folder / file.name

    monkeypatch.setattr(store, "copy_as_if_killed", empty)
    found = await examined(tmp_path, monkeypatch)
    assert found["store"].status == "fail" and "is not in its files" in found["store"].title


async def test_without_a_configuration_only_the_machine_is_looked_at() -> None:
    report: Report = await examine()
    assert [check.name for check in report.checks] == ["environment", "plugins", "packages"]


async def test_a_configuration_that_cannot_be_read_is_a_check(tmp_path: Path) -> None:
    def load() -> ConfiguredRun:
        raise UsageError("run.yaml: agent.target: Field required")

    report = await examine(load)
    check = next(c for c in report.checks if c.name == "configuration")
    assert check.title == "run.yaml: agent.target: Field required" and not report.ok
    assert report.verdict == "Do not train yet: run.yaml: agent.target: Field required"
