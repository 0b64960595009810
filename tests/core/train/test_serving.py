"""What a run is given to serve, and who talks to whom: read, checked, told without keys."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentlightning import GRPO, LLM, PolicyFolder, Trainer
from agentlightning.gateway import Gateway
from agentlightning.keys import Keys
from agentlightning.plugins.manager import build
from agentlightning.plugins.stores import open_store
from agentlightning.specs import DriverSpec
from agentlightning.train.config import from_fields
from agentlightning.train.policies import BY_AGENT, CATCH_ALL, Policies, read_policies
from agentlightning.train.serving import driver_spec, serve
from agentlightning.train.trainer import algorithm_of
from agentlightning.types import UsageError
from agentlightning.types.base import ConfigError
from agentlightning.types.select import BadSelect

JUDGE = LLM(endpoint="http://127.0.0.1:9/v1", model="m", api_key="sk-secret")
THREE: dict[str, Any] = {"wolves": "w", "town": Path("t"), "judge": JUDGE}


def test_one_policy_is_what_it_was() -> None:
    for given in ("folder", Path("folder"), PolicyFolder("folder")):
        found = read_policies(given)
        assert (found.names, found.model_name, found.routing, found.named) == (
            ("policy",),
            "policy",
            {},
            False,
        )
        assert found.record() == {"policy": "folder"} and found.summary() == "folder"
    assert read_policies(None) == Policies() and read_policies(None).summary() == "None"


def test_several_by_name() -> None:
    found = read_policies(
        {**THREE, "old": PolicyFolder("o", train=False)}, {"wolf": "wolves", "re:.*": "town"}
    )
    assert list(found.trained) == ["wolves", "town"] and list(found.frozen) == ["judge", "old"]
    assert found.model_name == BY_AGENT and found.routing == {"wolf": "wolves", "re:.*": "town"}
    assert "sk-secret" not in f"{found}{found.record()}{found.summary()}"
    assert found.record()["trained"] == ["town", "wolves"] and found.record()["agents"] == found.routing
    assert found.record()["policies"]["judge"] == {
        "trained": False,
        "endpoint": "http://127.0.0.1:9/v1",
        "model": "m",
    }


def test_all_others_talk_to_the_only_policy_that_is_trained() -> None:
    assert read_policies({"a": "a", "judge": JUDGE}, {"x": "judge"}).routing == {"x": "judge", CATCH_ALL: "a"}
    assert read_policies({"a": "a", "b": "b"}, {"x": "a"}).routing == {"x": "a"}
    assert read_policies({"a": "a", "j": JUDGE}, {CATCH_ALL: "j"}).routing == {CATCH_ALL: "j"}


@pytest.mark.parametrize(
    ("policy", "agents", "match"),
    [
        (THREE, {"wolf": "wolvs"}, r"policies: 'wolf' has the unknown policy 'wolvs'. Did you mean 'wolves'"),
        ("folder", {"wolf": "wolves"}, r"unknown policy 'wolves'. Known here: policy"),
        (None, {"wolf": "wolves"}, r"unknown policy 'wolves'"),
        ({"a/b": "x"}, {}, r"policy 'a/b': a name has letters"),
        ({BY_AGENT: "x"}, {}, r"that name is taken"),
        ({"a": 3}, {}, r"policy 'a' is a int: give a folder"),
        ({"a": LLM(endpoint="nowhere", model="m")}, {}, r"policy 'a': .*url is 'nowhere'"),
        ({"a": LLM(endpoint="http://u:p@h/v1", model="m")}, {}, r"carries credentials"),
        (
            {"a": LLM(endpoint="http://h/v1", model="m", sampling_parameters={"temperature": 0})},
            {},
            r"policy 'a': .*leave sampling_parameters out",
        ),
        ({"Wolves": "x", "wolves": "y"}, {}, r"policy 'wolves': differs from 'Wolves' by its case only"),
        (JUDGE, {}, r"the only policy is the one that is trained"),
        (PolicyFolder("x", train=False), {}, r"the only policy is the one that is trained"),
    ],
)
def test_what_cannot_be_is_refused_by_name(policy: Any, agents: dict[str, str], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Trainer(policy=policy, policies=agents, plugins=build([], discover=False))


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(BadSelect, match=r"policies: '\(' is not a regular expression"):
        read_policies(THREE, {"re:(": "wolves"})


class Fake:
    """A driver, or a server, that says what was done with it."""

    supported_fields: frozenset[str] = frozenset()
    version = 3

    def __init__(self, log: list[str], name: str, options: dict[str, Any]) -> None:
        self.log, self.name, self.options = log, name, options

    async def start(self) -> LLM:
        self.log.append(f"start {self.name} {self.options}")
        return LLM(endpoint="http://127.0.0.1:1/v1", model=f"{self.name}-model")

    async def close(self) -> None:
        self.log.append(f"close {self.name}")


class Together:
    """Drivers as one."""

    def __init__(self, policies: Any, drivers: Any, gateway: Any) -> None:
        self.names, self.drivers, self.gateway = [one.name for one in policies], drivers, gateway


def spec(log: list[str], **fields: Any) -> DriverSpec:
    def make(policy: PolicyFolder, *_: Any) -> Any:
        return Fake(log, policy.name, dict(policy.options))

    known: dict[str, Any] = {"together": Together, "serve": make, **fields}
    return DriverSpec("fake", make, **known)


async def test_what_is_served_and_closed() -> None:
    log: list[str] = []
    given = {**THREE, "town": PolicyFolder("t", options={"lr": 2}), "old": PolicyFolder("o", train=False)}
    config = from_fields({"policy": given, "options": {"lr": 1}, "driver": "fake", "max_requests": 7})
    plugins = build([], discover=False)
    plugins.drivers["fake"] = spec(log)
    gateway = Gateway(open_store(":memory:"), Keys())
    async with AsyncExitStack() as stack:
        together = await serve(config, GRPO(), plugins, gateway, stack)
        assert isinstance(together, Together) and together.gateway is gateway
        assert together.names == list(together.drivers) == ["wolves", "town"]
        routes = dict(gateway.routes)
        assert {
            n: (r.trainable, r.seeded, r.settings and r.settings.max_requests, r.model)
            for n, r in routes.items()
        } == {
            "wolves": (True, True, 7, "wolves-model"),
            "town": (True, True, 7, "town-model"),
            "judge": (False, False, None, "m"),
            "old": (False, True, 7, "old-model"),
        }
        assert routes["judge"].api_key == "sk-secret" and "sk-secret" not in repr(routes)
        assert set(gateway.sampling) == {"wolves", "town"}
    assert log[:3] == ["start wolves {'lr': 1}", "start town {'lr': 2}", "start old {'lr': 1}"]
    assert log[3:] == ["close old", "close town", "close wolves"]


def test_drivers_that_cannot_are_refused() -> None:
    log: list[str] = []
    plugins = build([], discover=False)
    one, two = read_policies("x"), read_policies(THREE)
    frozen = read_policies({"a": "a", "old": PolicyFolder("o", train=False)})
    plugins.drivers["fake"] = spec(log, together=None)
    assert driver_spec(plugins, "fake", one) and driver_spec(plugins, "fake", read_policies({"j": JUDGE}))
    with pytest.raises(ConfigError, match="'fake' trains one policy a run"):
        driver_spec(plugins, "fake", two)
    plugins.drivers["fake"] = replace(spec(log), serve=None)
    with pytest.raises(ConfigError, match="policy 'old': driver 'fake' serves no policy that it does not"):
        driver_spec(plugins, "fake", frozen)
    with pytest.raises(UsageError, match="nothing is trained: judge are frozen"):
        algorithm_of(from_fields({"policy": {"judge": JUDGE}}), plugins, None)
