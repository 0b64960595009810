"""The controller at an API server that runs each Job's command: rollouts end, fail as their pods do, and
never run twice at once, whatever the API server and the controller itself go through.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from contract.running import at_work

from agentlightning.plugins.manager import build
from agentlightning.plugins.options import open_runner
from agentlightning.specs import RunnerJob
from agentlightning.store import SQLiteStore, Store
from agentlightning.train.config import from_fields
from agentlightning.types import RolloutConfig, RolloutStatus, UsageError
from agl_cluster.roles import Role
from agl_cluster.store import server
from agl_cluster.store.client import StoreClient
from agl_kubernetes import plugin
from agl_kubernetes.controller import JobController
from plugins.kubernetes.tests.api_server import ApiServer, api_server, kubeconfig

HERE = Path(__file__).parent
SECRET = "a secret of sixteen bytes or more"
WAIT = 240


class Place(NamedTuple):
    """A store's server, an API server, and what a controller is given."""

    store: Store
    api: ApiServer
    url: str


@pytest.fixture
async def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    monkeypatch.setenv("AGL_SECRET", SECRET)
    (tmp_path / "agents_in_pods.py").write_text((HERE / "agents_in_pods.py").read_text())
    served = await server.start(tmp_path / "s.sqlite", "127.0.0.1", 0)
    async with api_server(tmp_path, {}) as (api, file):
        monkeypatch.setenv("KUBECONFIG", str(file))
        yield Place(served.store, api, served.url)
    await served.close()


def controller(place: Place, agent: str = "half", **options: Any) -> JobController:
    given = {"kind": "kubernetes", "image": "tests:1", "agent": f"agents_in_pods:{agent}", **options}
    given.setdefault("env", {"AGL_PLUGINS": "cluster"})  # it has `agl runner`
    client = StoreClient(place.url)
    client.act_as(Role.TRAINER)
    made = open_runner(build([plugin], discover=False), RunnerJob(from_fields({"runner": given}), client))
    assert isinstance(made, JobController)
    return made


@asynccontextmanager
async def serving(runner: JobController) -> AsyncIterator[JobController]:
    try:
        async with at_work(runner):
            yield runner
    finally:
        await runner._store.close()


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(WAIT):
        while not true():
            await asyncio.sleep(0.05)


async def ends(place: Place, *rollout_ids: str) -> list[str]:
    done = await place.store.wait_for_rollouts(rollout_ids, timeout=WAIT)
    assert len(done) == len(rollout_ids)
    return [str(one.status) for one in done]


async def reasons(place: Place, rollout_id: str) -> list[str]:
    return [one.reason or str(one.status) for one in await place.store.query_attempts(rollout_id)]


async def test_each_rollout_runs_in_a_job_of_its_own_and_not_too_many_at_a_time(place: Place) -> None:
    made = [await place.store.enqueue_rollout(task) for task in (1, 2, 3)]
    async with serving(controller(place, parallelism=2)) as runner:
        assert await ends(place, *(one.rollout_id for one in made)) == ["succeeded"] * 3
    assert runner.counts["jobs"] == 3 and place.api.most_active <= 2
    for one in made:
        [attempt] = await place.store.query_attempts(one.rollout_id)
        assert attempt.worker_id in place.api.objects["jobs"] and attempt.worker_id.endswith("-1")


async def test_the_agent_of_a_job_reaches_its_own_rollout_alone(place: Place, tmp_path: Path) -> None:
    """Each Job has a token of its own, and its agent tries whatever a runner may do."""
    running = await place.store.start_rollout("of another", worker_id="elsewhere")
    foreign = (running.rollout.rollout_id, running.attempt.attempt_id)
    (tmp_path / f"{foreign[0]}.other").write_text(" ".join(foreign))
    made = await place.store.enqueue_rollout(foreign[0])
    async with serving(controller(place, "intrude", parallelism=1)) as runner:
        assert await ends(place, made.rollout_id) == ["succeeded"]
        waiting = [one for one in await place.store.query_rollouts() if one.status == "queuing"]
    assert (tmp_path / f"{foreign[0]}.reached").read_text() == "" and waiting == []
    assert runner.counts["jobs"] == 1
    latest = await place.store.get_latest_attempt(foreign[0])
    assert latest is not None and latest.attempt_id == foreign[1] and latest.status == "preparing"
    secrets = [*place.api.objects["secrets"].values()]
    assert [one["metadata"]["name"] for one in secrets] == [*place.api.objects["jobs"]]


async def test_a_store_without_a_secret_makes_no_tokens_and_says_so(
    tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AGL_SECRET")
    served = await server.start(tmp_path / "open.sqlite", "127.0.0.1", 0)
    await served.store.enqueue_rollout(1)
    runner = controller(place._replace(url=served.url))
    with pytest.raises(UsageError, match=r"each Job gets a token for its own rollout: .* AGL_SECRET"):
        await runner.serve(asyncio.Event())
    await runner._store.close()
    await served.close()


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("OOMKilled", "agent-raised: OOMKilled: the container used more than its memory (2Gi)"),
        ("SIGSEGV", "agent-raised: the container ended with exit status 139 (SIGSEGV)"),
        ("Evicted", "cancelled: Evicted: its pod was put out: low on memory"),
        ("Deleted", "cancelled: PodDeleted: its pod was deleted: Job has reached its limit"),
    ],
)
async def test_a_pod_that_is_put_out_has_its_attempt_ended(
    place: Place, tmp_path: Path, what: str, said: str
) -> None:
    file = tmp_path / "go"
    made = await place.store.enqueue_rollout(str(file))
    async with serving(controller(place, "wait_for_file")) as runner:
        await until(lambda: Path(f"{file}.began").exists())
        await place.api.put_out(place.api.running()[0], what, "low on memory")
        retried = said.startswith("cancelled")
        file.touch()
        assert await ends(place, made.rollout_id) == ["succeeded" if retried else "failed"]
    assert (await reasons(place, made.rollout_id))[0] == said
    assert runner.counts[f"failed: {said.partition(':')[0]}"] == 1 and runner.counts["jobs"] == 1 + retried


async def test_an_agent_that_ends_its_process_fails_its_attempt(place: Place) -> None:
    made = await place.store.enqueue_rollout(1)
    async with serving(controller(place, "exits_with_7")):
        assert await ends(place, made.rollout_id) == ["failed"]
    [reason] = await reasons(place, made.rollout_id)
    assert reason.startswith("agent-raised: the container ended with exit status 7")


@pytest.mark.parametrize(
    ("image", "seconds", "said"),
    [
        ("imagepullbackoff/x:1", 0.5, "cancelled: ImagePullBackOff: the pod did not start within 0.5 s"),
        ("invalidimagename", 3600.0, "cancelled: InvalidImageName: the pod did not start"),
    ],
)
async def test_an_image_that_cannot_be_pulled_fails_attempts_until_there_are_no_more(
    place: Place, image: str, seconds: float, said: str
) -> None:
    made = await place.store.enqueue_rollout(1, config=RolloutConfig(max_attempts=2))
    async with serving(controller(place, image=image, pending_seconds=seconds)) as runner:
        assert await ends(place, made.rollout_id) == ["failed"]
    told = await reasons(place, made.rollout_id)
    assert len(told) == 2 and all(one.startswith(said) for one in told)
    assert runner.counts["not-started"] == 2 and not place.api.objects["pods"]


async def test_a_job_that_outlives_its_deadline_is_a_timeout(place: Place, tmp_path: Path) -> None:
    config = RolloutConfig(timeout_seconds=None, max_attempts=1)
    made = await place.store.enqueue_rollout(str(tmp_path / "never"), config=config)
    runner = controller(place, "wait_for_file", drain_seconds=0.0)
    making = runner._maker.job

    def with_deadline(rollout: Any) -> dict[str, Any]:
        job = making(rollout)
        job["spec"]["activeDeadlineSeconds"] = 1  # the least that Kubernetes takes
        return job

    object.__setattr__(runner, "_maker", _Maker(runner._maker, with_deadline))
    async with serving(runner):
        assert await ends(place, made.rollout_id) == ["failed"]
    [reason] = await reasons(place, made.rollout_id)
    assert reason.startswith(("timeout: DeadlineExceeded", "cancelled: the attempt was stopped from outside"))


class _Maker:
    """A maker of Jobs whose ``job`` is another."""

    def __init__(self, maker: Any, job: Any) -> None:
        self.job, self._maker = job, maker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._maker, name)


async def test_the_job_of_a_cancelled_rollout_is_deleted(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "never"
    made = await place.store.enqueue_rollout(str(file))
    async with serving(controller(place, "wait_for_file")) as runner:
        await until(lambda: Path(f"{file}.began").exists())
        await place.store.update_rollout(made.rollout_id, RolloutStatus.CANCELLED, reason="cancelled: enough")
        await until(lambda: not place.api.objects["jobs"] and not place.api.objects["pods"])
    assert runner.counts["cancelled-jobs"] == 1
    assert (await place.store.get_rollout_by_id(made.rollout_id)).reason == "cancelled: enough"


async def test_a_controller_that_starts_again_finds_its_jobs(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "go"
    made = await place.store.enqueue_rollout(str(file))
    async with serving(controller(place, "wait_for_file")):
        await until(lambda: Path(f"{file}.began").exists())
    assert len(place.api.running()) == 1  # the Job goes on without its controller
    async with (
        serving(controller(place, "wait_for_file")) as second,
        serving(controller(place, "wait_for_file")) as third,
    ):
        file.touch()
        assert await ends(place, made.rollout_id) == ["succeeded"]
    assert len(Path(f"{file}.began").read_text().split()) == 1
    assert second.counts["jobs"] + third.counts["jobs"] == 0
    assert len(await place.store.query_attempts(made.rollout_id)) == 1


async def test_a_pod_that_was_killed_while_no_controller_ran_is_seen_to(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "go"
    config = RolloutConfig(unresponsive_seconds=3600.0, max_attempts=1)
    made = await place.store.enqueue_rollout(str(file), config=config)
    async with serving(controller(place, "wait_for_file")):
        await until(lambda: Path(f"{file}.began").exists())
    await place.api.put_out(place.api.running()[0], "OOMKilled")
    async with serving(controller(place, "wait_for_file")):
        assert await ends(place, made.rollout_id) == ["failed"]
    assert (await reasons(place, made.rollout_id))[0].startswith("agent-raised: OOMKilled")


async def test_a_pod_that_is_started_twice_runs_its_rollout_once(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "go"
    made = await place.store.enqueue_rollout(str(file))
    async with serving(controller(place, "wait_for_file")):
        await until(lambda: Path(f"{file}.began").exists())
        [name] = place.api.objects["jobs"]
        assert await place.api.start_again(name) == 0
        file.touch()
        assert await ends(place, made.rollout_id) == ["succeeded"]
    assert len(Path(f"{file}.began").read_text().split()) == 1
    assert len(await place.store.query_attempts(made.rollout_id)) == 1


async def test_two_controllers_at_once_make_one_job_for_each_rollout(place: Place) -> None:
    made = [await place.store.enqueue_rollout(task) for task in (1, 2)]
    async with serving(controller(place)) as one, serving(controller(place)) as other:
        assert await ends(place, *(one.rollout_id for one in made)) == ["succeeded"] * 2
    assert one.counts["jobs"] + other.counts["jobs"] == 2 == len(place.api.objects["jobs"])


async def test_a_busy_forgetful_and_broken_api_server_costs_nothing(place: Place, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a", "b")]
    made = [await place.store.enqueue_rollout(str(file)) for file in files]
    place.api.busy = 3
    async with serving(controller(place, "wait_for_file", parallelism=1)) as runner:
        await until(lambda: Path(f"{files[0]}.began").exists())
        place.api.busy = 2
        await place.api.drop_watches()
        files[0].touch()
        await until(lambda: Path(f"{files[1]}.began").exists())
        await place.api.forget()
        files[1].touch()
        assert await ends(place, *(one.rollout_id for one in made)) == ["succeeded"] * 2
        await until(lambda: runner.counts["watch-relisted"])
    assert runner.counts["api-retried"] >= 3 and runner.counts["watch-lost"] >= 2
    assert place.api.requests["429"] == 5 and runner.counts["jobs"] == 2


async def test_a_quota_is_waited_for(place: Place) -> None:
    made = [await place.store.enqueue_rollout(task) for task in (1, 2)]
    place.api.quota = 1
    async with serving(controller(place)) as runner:
        await until(lambda: runner.counts["no-quota"])
        place.api.quota = None
        assert await ends(place, *(one.rollout_id for one in made)) == ["succeeded"] * 2


async def test_a_runner_that_cannot_run_anything_ends_the_controller_with_its_message(place: Place) -> None:
    made = await place.store.enqueue_rollout(1)
    runner = controller(place, "no_such_agent")
    with pytest.raises(UsageError, match=r"cannot run any rollout.*no_such_agent"):
        await asyncio.wait_for(runner.serve(asyncio.Event()), WAIT)
    await runner._store.close()
    assert not place.api.objects["jobs"]  # whoever mends it does not meet it again
    assert (await place.store.get_rollout_by_id(made.rollout_id)).status is RolloutStatus.QUEUING


async def test_what_the_cluster_refuses_is_told(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "other"
    described = kubeconfig(place.api.url)
    described["users"][0]["user"]["token"] = "another"
    file.write_text(yaml.safe_dump(described))
    monkeypatch.setenv("KUBECONFIG", str(file))
    runner = controller(place)
    with pytest.raises(UsageError, match=r"refuses GET (jobs|pods) .*\(401\).*manifests --mode jobs"):
        await asyncio.wait_for(runner.serve(asyncio.Event()), WAIT)
    await runner._store.close()


async def test_no_cluster_is_an_error_that_says_where_it_was_looked_for(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    runner = controller(place)
    with pytest.raises(UsageError, match=r"no cluster: .*set KUBECONFIG"):
        await runner.serve(asyncio.Event())
    await runner._store.close()


async def test_addresses_that_pods_do_not_reach_are_refused(place: Place) -> None:
    runner = controller(place)
    with pytest.raises(UsageError, match=r"pods cannot reach http://127.0.0.1.*runner.store"):
        runner._check_addresses("api.cluster.example")
    await runner._store.close()
    job = RunnerJob(from_fields({"runner": {"kind": "kubernetes", "image": "x"}}), SQLiteStore(":memory:"))
    with pytest.raises(UsageError, match=r"serve it with `agl store`"):
        open_runner(build([plugin], discover=False), job)
    with pytest.raises(UsageError, match=r"which agent do the pods run"):
        config = from_fields({"runner": {"kind": "kubernetes", "image": "x"}})
        open_runner(
            build([plugin], discover=False), RunnerJob(config, StoreClient("http://s:1"), agent=lambda x: 1)
        )
