"""verl's servers before the gateway: announced, keyed, and held while they finish no call.

Neither vLLM nor SGLang is here: the classes of ours go before stand-ins for verl's, which launch as verl's
do, and what ours rely on is looked up in verl's own source.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl has an environment of its own: make test-verl-inside")

import aiohttp
import ray
from aiohttp import web
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry

from agl_verl.config.engines import key_of
from agl_verl.inside import sources
from agl_verl.inside.serving import servers
from agl_verl.inside.serving.replica import ENGINES
from agl_verl.inside.serving.servers import KEY, STILL, Announced, Keeping, Server
from agl_verl.process.channel import ADDRESS, SECRET, ChannelServer


class HttpServer:
    """Launches as verl's server actors do: an HTTP server in the actor, at a port of its choice."""

    def __init__(self, name: str) -> None:
        self.node_rank, self.name = 0, name
        self._server_task: asyncio.Task[Any] = None  # type: ignore[assignment]

    async def launch_server(self) -> str:
        import os

        async def models(request: web.Request) -> web.Response:
            if request.headers.get("Authorization") != f"Bearer {os.environ[KEY]}":
                raise web.HTTPUnauthorized
            return web.json_response({"data": [{"id": self.name}]})

        app = web.Application()
        app.router.add_get("/v1/models", models)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self._server_task = asyncio.create_task(asyncio.Event().wait())
        return f"127.0.0.1:{runner.addresses[0][1]}"

    async def end(self) -> None:
        self._server_task.cancel()
        await asyncio.wait([self._server_task])


class Replica(RolloutReplica):  # type: ignore[misc]
    """Launches as verl's replicas do; ``log``: what was asked of it, in order."""

    log: list[str] = []

    def __init__(
        self, replica_rank: int, is_reward_model: bool = False, is_teacher_model: bool = False
    ) -> None:
        self.replica_rank, self.servers = replica_rank, []
        self.is_reward_model, self.is_teacher_model = is_reward_model, is_teacher_model
        self.server_class = ray.remote(HttpServer)

    async def launch_servers(self) -> None:
        variables = {"env_vars": {"OTHER": "1"}}
        server = self.server_class.options(runtime_env=variables, num_cpus=0).remote("policy")
        self.servers, self._server_handle = [server], server
        self._server_address = await server.launch_server.remote()

    async def sleep(self) -> None:
        self.log.append(f"sleep {self.replica_rank}")

    async def abort_all_requests(self, reject_request: bool = False) -> dict[str, int]:
        self.log.append(f"abort {self.replica_rank}")
        return {"aborted_count": 3}

    async def resume_generation(self) -> None:
        self.log.append(f"resume {self.replica_rank}")

    async def wake_up(self) -> None:
        self.log.append(f"wake {self.replica_rank}")


class OurServer(Server, HttpServer):
    """As ``inside/vllm.py`` does it."""


class OurReplica(Announced, Replica):
    """As ``inside/vllm.py`` does it."""

    server, keyed = OurServer, True


@pytest.fixture
async def told(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[str]]:
    """A driver's channel, and what was said and done, in order."""
    log: list[str] = []

    def heard(what: str) -> Any:
        async def handler(said: dict[str, Any]) -> dict[str, Any]:
            log.append(what)
            return {}

        return handler

    channel = ChannelServer("secret", {what: heard(what) for what in ("pause", "resume")})
    monkeypatch.setenv(ADDRESS, await channel.start())
    monkeypatch.setenv(SECRET, "secret")
    monkeypatch.setattr(Replica, "log", log)
    yield log
    await channel.stop()
    STILL.clear()
    ENGINES.clear()


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A Ray for one actor, which finds none of these tests where it runs."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.filterwarnings("ignore")  # Ray's own
async def test_a_launched_server_is_announced_keyed_and_watched(told: list[str], cluster: None) -> None:
    replica = OurReplica(0)
    await replica.launch_servers()
    ((address, server),) = ENGINES.items()
    assert address == f"http://{replica._server_address}"
    async with aiohttp.ClientSession() as session:
        url, key = f"{address}/v1/models", key_of("secret")
        async with session.get(url, headers={"Authorization": f"Bearer {key}"}) as answer:
            assert (await answer.json())["data"] == [{"id": "policy"}]
        async with session.get(url) as answer:
            assert answer.status == 401
    logs = Path(ray._private.worker._global_node.get_logs_dir_path())
    written = b"".join(file.read_bytes() for file in logs.rglob("*") if file.is_file())
    assert b"OTHER" in written and key.encode() not in written, "Ray logs the variables of an actor"
    await server.well.remote()
    await server.end.remote()
    with pytest.raises(RuntimeError, match="the server has ended"):
        await server.well.remote()
    ray.kill(server)


async def test_calls_are_held_before_a_replica_stops_and_let_go_after_the_last_resumes(
    told: list[str],
) -> None:
    """As verl's asynchronous trainer does it: abort, sleep, new weights, resume, each for all replicas."""
    one, other = OurReplica(0), OurReplica(1)
    assert await one.abort_all_requests() == {"aborted_count": 3}
    await other.abort_all_requests(reject_request=True)
    await asyncio.gather(one.sleep(), other.sleep())
    assert told[:4] == ["pause", "abort 0", "pause", "abort 1"]
    assert sorted(told[4:]) == ["pause", "pause", "sleep 0", "sleep 1"]
    told.clear()
    await one.resume_generation()
    assert told == ["resume 0"]
    await other.resume_generation()
    assert told == ["resume 0", "resume 1", "resume"]
    told.clear()
    await one.resume_generation()  # nothing was held
    assert told == ["resume 0"]
    await one.sleep()
    await one.wake_up()
    assert told[1:] == ["pause", "sleep 0", "wake 0", "resume"]


class VllmStandIn:
    """What verl's class of vLLM servers does at an update; as its own engine it notes how it is paused."""

    def __init__(self, node_rank: int = 0) -> None:
        self.node_rank, self.engine, self.log = node_rank, self, list[Any]()

    def _preprocess_engine_kwargs(self, engine_kwargs: dict[str, Any]) -> None:
        self.log.append(dict(engine_kwargs))

    async def abort_all_requests(self, reset_prefix_cache: bool = True, reject_request: bool = False) -> Any:
        self.log.append(("abort", reset_prefix_cache, reject_request))
        return {"aborted_count": 2}

    async def pause_generation(self, **how: Any) -> None:
        self.log.append(how)


class KeepingServer(Keeping, VllmStandIn):
    """As ``inside/vllm.py`` does it."""


async def test_vllm_keeps_its_calls_at_an_update_if_it_is_told_to() -> None:
    server = KeepingServer()
    server._preprocess_engine_kwargs({"in_flight": "keep", "max_num_seqs": 4})
    assert await server.abort_all_requests() == {"aborted_count": 0, "request_ids": []}
    assert server.log == [{"max_num_seqs": 4}, {"mode": "keep", "clear_cache": True}]
    assert await server.abort_all_requests(reject_request=True) == {"aborted_count": 2}
    other = KeepingServer(node_rank=1)
    other._preprocess_engine_kwargs({"in_flight": "keep"})
    await other.abort_all_requests()
    assert other.log == [{}], "only the first node has the engine"


async def test_vllm_aborts_its_calls_otherwise() -> None:
    server = KeepingServer()
    server._preprocess_engine_kwargs({})
    assert await server.abort_all_requests(False, reject_request=False) == {"aborted_count": 2}
    assert server.log == [{}, ("abort", False, False)]


@pytest.mark.parametrize("other", [{"is_reward_model": True}, {"is_teacher_model": True}])
async def test_replicas_of_other_models_are_verls_own_affair(told: list[str], other: dict[str, bool]) -> None:
    replica = OurReplica(0, **other)
    assert type(replica.server_class).__name__ != "Keyed"
    await replica.abort_all_requests()
    await replica.sleep()
    await replica.resume_generation()
    assert told == ["abort 0", "sleep 0", "resume 0"] and not ENGINES


def test_verls_names_give_our_replicas_in_runs_of_our_driver_only(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = type("Theirs", (), {}), type("Ours", (), {})
    monkeypatch.setattr(RolloutReplicaRegistry, "_registry", {"vllm": lambda: theirs})
    servers.register("vllm", lambda: ours)
    monkeypatch.delenv(ADDRESS, raising=False)
    assert RolloutReplicaRegistry.get("vllm") is theirs
    monkeypatch.setenv(ADDRESS, "http://127.0.0.1:1")
    assert RolloutReplicaRegistry.get("vllm") is ours


def test_what_ours_rely_on_is_in_verls_source(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sources.missing() == []
    wanted = {
        f"{sources.VLLM}:vLLMReplica": {"nap": (), "sleep": ("deep",), "self.servers_class": ()},
        f"{sources.VLLM}:NoSuch": {},
        "workers/none.py:Any": {},
    }
    monkeypatch.setattr(sources, "SERVERS", wanted)
    found = sources.missing()
    assert found[:3] == [
        f"{sources.VLLM}:vLLMReplica has no nap",
        f"{sources.VLLM}:vLLMReplica.sleep takes no 'deep'",
        f"{sources.VLLM}:vLLMReplica has no self.servers_class",
    ]
    assert "there is no such class" in found[3] and "FileNotFoundError" in found[4]
