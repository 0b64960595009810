"""A cluster of somebody else's is asked before it gets work, and learns the channel's secret from nobody."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl has an environment of its own: make test-verl-inside")

from omegaconf import OmegaConf
from transfer_queue import interface

import agentlightning as agl
from agl_verl.config.options import overrides, read_options
from agl_verl.inside import cluster
from agl_verl.inside.cluster import Kept, NotThis, check, joins, told
from agl_verl.inside.main import configuration
from agl_verl.process.channel import SECRET


def ray_has(monkeypatch: pytest.MonkeyPatch, nodes: list[dict[str, float]], queues: list[bool]) -> None:
    """A cluster with these resources, in which another run's queue is there as ``queues`` says, in turn."""
    states = iter(queues)
    alive = [{"Alive": True, "Resources": resources} for resources in nodes]
    dead = {"Alive": False, "Resources": {"GPU": 9, "CPU": 999}}
    monkeypatch.setattr(cluster.ray, "nodes", lambda: [*alive, dead])
    monkeypatch.setattr(cluster, "taken", lambda: next(states))
    monkeypatch.setattr(cluster.time, "sleep", lambda seconds: None)


BIG = {"GPU": 1.0, "CPU": 24.0}


@pytest.mark.parametrize(("nodes", "why"), [
    ([BIG], "2 nodes with 1 GPUs each are wanted .* 1 nodes 1 have them"),
    ([BIG, {"CPU": 24.0}], "2 nodes 1 have them"),
    ([BIG, {"GPU": 1.0, "CPU": 4.0}], "has 28 logical CPUs; 32 are wanted"),
])  # fmt: skip
def test_too_small(nodes: list[dict[str, float]], why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ray_has(monkeypatch, nodes, [False])
    with pytest.raises(NotThis, match=why):
        check(2, 1)


def test_a_run_that_was_killed_is_waited_for_and_another_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ray_has(monkeypatch, [BIG, BIG], [True, True, False])
    check(2, 1)
    ray_has(monkeypatch, [BIG, BIG], [True])
    monkeypatch.setattr(cluster, "PATIENCE", -1.0)
    with pytest.raises(NotThis, match="one at a time"):
        check(2, 1)


def test_the_queue_has_the_name_that_is_asked_for() -> None:
    source = inspect.getsource(interface)
    name, namespace = cluster.QUEUE
    assert f'name="{name}", namespace="{namespace}"' in source
    assert f'get_actor("{name}", namespace="{namespace}")' in source  # a second run would take the first's


class Runner:
    """Stands for verl's task runner."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}

    def options(self, **given: Any) -> Runner:
        self.given |= given
        return self

    def remote(self, *args: Any) -> Runner:
        return self

    @property
    def __ray_call__(self) -> Runner:
        return self


def test_the_runner_is_kept_whatever_options_verl_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "here", lambda: "here")
    monkeypatch.setattr(cluster.ray, "get", lambda reference: None)
    kept = Kept(Runner(), OmegaConf.create({"ray_kwargs": {"ray_init": {}}}))
    runner = kept.options(runtime_env={"nsight": {}}).remote()
    assert kept.handle is runner
    assert runner.given == {"scheduling_strategy": "here", "runtime_env": {"nsight": {}}}


def composed(monkeypatch: pytest.MonkeyPatch, policy: str, **given: object) -> Any:
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    monkeypatch.setenv(SECRET, "a secret of this run")
    return told(configuration(overrides(policy, agl.GRPO(), 1, read_options(given), "/nowhere")))


@pytest.mark.filterwarnings("ignore:Disabled critic")  # verl says that there is none
def test_verl_takes_our_configuration_and_the_secret_is_not_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    own = composed(monkeypatch, "/policy", ranks=2, lora={"rank": 4})
    assert not joins(own) and own.ray_kwargs.ray_init.num_cpus == 32
    assert own.actor_rollout_ref.model.lora_rank == 4
    other = composed(monkeypatch, "/policy", ranks=2, nodes=2, ray_address="127.0.0.1:6379")
    assert joins(other) and other.ray_kwargs.ray_init.num_cpus is None
    assert other.ray_kwargs.ray_init.runtime_env.env_vars == {"VERL_PLATFORM": "cpu"}
    assert (other.trainer.nnodes, other.trainer.n_gpus_per_node) == (2, 1)
    assert "a secret" not in OmegaConf.to_yaml(other)
