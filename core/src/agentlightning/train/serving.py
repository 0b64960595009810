"""What is served behind the gateway: policies that are trained, policies that never are, and scripted ones.

:func:`read_policies` checks what a run was given before anything starts; :func:`serve` starts it. Invariants:
only a folder is ever trained; the key of an endpoint goes to the gateway's route and nowhere else.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec

from agentlightning.algorithms.multi_policy import MultiPolicyDriver
from agentlightning.gateway import Gateway, SamplingPolicy, Upstream
from agentlightning.plugins.manager import Plugins, pick
from agentlightning.specs import Driver, DriverSpec, PeerDriver
from agentlightning.types import LLM, Recipe, UsageError
from agentlightning.types.select import selector

POLICY = "policy"
"""Name of the only policy: what agents ask the gateway for."""
BY_AGENT = "by-agent"
"""What agents ask for in a run with named policies: the one that is theirs."""
CATCH_ALL = "re:.*"
"""Everybody that the map of agents does not name."""
SHARED_OPTIONS = ("save_every", "deterministic")
"""Options of drivers that the policies of one run have in common."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class PolicyError(UsageError, ValueError):
    """Policies, or a map of agents to them, that cannot be used; the message names the entry."""


@dataclass(frozen=True, slots=True)
class PolicyFolder:
    """A policy in Hugging Face layout. ``train=False``: served as it is, never trained. ``options``: its
    driver's, over those of the run.
    """

    path: str | Path
    train: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)


PolicySource = str | Path | PolicyFolder | LLM


@dataclass(frozen=True, slots=True)
class Policies:
    """What a run serves, and who talks to whom."""

    trained: dict[str, PolicyFolder] = field(default_factory=dict)
    frozen: dict[str, PolicyFolder | LLM] = field(default_factory=dict)
    agents: dict[str, str] = field(default_factory=dict)
    """Name of an agent, role or node, or ``"re:…"`` → policy."""
    named: bool = False
    """Whether they were given by name."""

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.trained, *self.frozen)

    @property
    def model_name(self) -> str:
        """The model name that agents are given."""
        return BY_AGENT if self.named else POLICY

    @property
    def routing(self) -> dict[str, str]:
        """``agents``, and for all others the only policy that is trained, if it is the only one."""
        only = self.named and len(self.trained) == 1 and CATCH_ALL not in self.agents
        return {**self.agents, CATCH_ALL: next(iter(self.trained))} if only else dict(self.agents)

    def record(self) -> dict[str, Any]:
        """For the run's record: no keys."""
        if not self.named:
            return {"policy": self.summary()}
        given = {name: _policy_record(one) for name, one in {**self.trained, **self.frozen}.items()}
        return {"policy": None, "policies": given, "trained": sorted(self.trained), "agents": self.routing}

    def summary(self) -> str:
        """In one line, for people."""
        if not self.named:
            return str(self.trained[POLICY].path) if self.trained else "None"
        return ", ".join(
            [f"{name} (trained) {folder.path}" for name, folder in self.trained.items()]
            + [f"{name} (frozen) {_location(given)}" for name, given in self.frozen.items()]
        )


def read_policies(
    policy: PolicySource | Mapping[str, PolicySource] | None, agents: Mapping[str, str] | None = None
) -> Policies:
    """What ``Trainer(policy=…, policies=…)`` was given, checked. :class:`PolicyError` names what is wrong."""
    if policy is None:
        found = Policies()
    elif isinstance(policy, Mapping):
        folders = {name: _folder(name, given) for name, given in policy.items()}
        _check_same_but_case(list(folders))
        trained = {n: f for n, f in folders.items() if isinstance(f, PolicyFolder) and f.train}
        frozen = {n: f for n, f in folders.items() if n not in trained}
        found = Policies(trained, frozen, named=True)
    else:
        only = _folder(POLICY, policy)
        if isinstance(only, LLM) or not only.train:
            raise PolicyError("policy: the only policy is the one that is trained: give its folder")
        found = Policies({POLICY: only})
    _check_agents(agents or {}, found)
    return Policies(found.trained, found.frozen, dict(agents or {}), found.named)


async def serve(
    policies: Policies,
    gateway: Gateway,
    stack: AsyncExitStack,
    *,
    spec: DriverSpec,
    recipe: Recipe,
    seed: int,
    options: Mapping[str, Any],
    routes: Mapping[str, Any],
) -> Driver | MultiPolicyDriver | None:
    """Start engines and open the routes to them; the driver of what is trained, ``None`` if nothing is.

    ``routes``: settings of the routes to folders. What was started is closed by ``stack``.
    """
    merged = {name: {**options, **folder.options} for name, folder in policies.trained.items()}
    _check_shared_options(merged, spec)
    drivers: dict[str, Driver] = {}
    for name, folder in policies.trained.items():
        driver = drivers[name] = spec.factory(
            policy=Path(folder.path), name=name, recipe=recipe, seed=seed, options=merged[name]
        )
        stack.push_async_callback(driver.close)
        llm = with_limits(await driver.start(), Path(folder.path))
        gateway.add_route(_trained_route(name, llm, driver, policies.named, routes))
        gateway.policy_sampling(
            name, SamplingPolicy(temperature=recipe.temperature, top_p=recipe.top_p, top_k=recipe.top_k)
        )
    for name, given in policies.frozen.items():
        frozen, own = given, {}
        if isinstance(given, PolicyFolder):
            served = await _serve_frozen(name, given, spec, options, stack)
            frozen, own = with_limits(served, Path(given.path)), {"seeded": True, **routes}
        gateway.add_route(_frozen_route(name, cast(LLM, frozen), own))
    if not policies.named:
        return drivers.get(POLICY)
    return MultiPolicyDriver(cast(Mapping[str, PeerDriver], drivers), gateway) if drivers else None


def with_limits(llm: LLM, folder: Path) -> LLM:
    """``llm`` with the sizes of its vocabulary and context: what its driver says, else the folder's
    ``config.json``.
    """
    try:
        config = msgspec.json.decode((folder / "config.json").read_bytes())
    except (OSError, ValueError):  # no folder in Hugging Face layout: nobody has said
        return llm
    return msgspec.structs.replace(
        llm,
        vocabulary=llm.vocabulary or _size(config, "vocab_size"),
        context=llm.context or _size(config, "max_position_embeddings"),
    )


def _size(config: Any, name: str) -> int | None:
    """A size of a model's configuration, which may stand in that of its text part."""
    for part in (config, config.get("text_config")) if isinstance(config, dict) else ():
        if isinstance(part, dict) and type(size := part.get(name)) is int and size > 0:
            return int(size)
    return None


async def serve_scripted(
    headroom: Mapping[str, Callable[..., Any]],
    tasks: Sequence[Any],
    gateway: Gateway,
    stack: AsyncExitStack,
    taken: Sequence[str] = (),
) -> None:
    """Scripted policies (oracle, random) answer through the same gateway as the real ones."""
    if clash := sorted(set(headroom) & set(taken)):
        raise PolicyError(f"headroom: {clash[0]!r} is the name of a policy; choose another")
    if not headroom or not tasks:
        return
    from agentlightning.testing.scripted import ScriptedModelServer

    for name, script_for in headroom.items():
        server = ScriptedModelServer(script_for(tasks), model=name, ids="always")
        await server.start()
        stack.push_async_callback(server.stop)
        gateway.add_route(Upstream(policy=name, url=server.url, model=name, trainable=False))


def driver_spec(plugins: Plugins, driver: str, policies: Policies) -> DriverSpec:
    """The driver's spec, if it can do what ``policies`` asks. :class:`PolicyError` if not."""
    spec = pick(plugins.drivers, "driver", driver)
    if policies.named and policies.trained and not spec.multi_policy:
        able = ", ".join(sorted(name for name, other in plugins.drivers.items() if other.multi_policy))
        raise PolicyError(
            f"driver {driver!r} trains one policy a run: give policy the folder of one, not a mapping "
            f"(several are for: {able})"
        )
    folders = [name for name, given in policies.frozen.items() if isinstance(given, PolicyFolder)]
    if folders and spec.serve is None:
        raise PolicyError(
            f"policy {folders[0]!r}: driver {driver!r} serves no policy that it does not train; serve it "
            "yourself and give its endpoint"
        )
    return spec


# ---------------------------------------------------------------------------------------------------- reading
def _folder(name: str, given: PolicySource) -> PolicyFolder | LLM:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise PolicyError(f"policy {name!r}: a name has letters, digits, '-' and '_', at most 64")
    if name in (BY_AGENT, "llm"):
        raise PolicyError(f"policy {name!r}: that name is taken; choose another")
    if isinstance(given, str | Path):
        return PolicyFolder(given)
    if isinstance(given, LLM):
        if given.sampling_parameters:
            raise PolicyError(
                f"policy {name!r}: an endpoint is asked as the agent asks; leave sampling_parameters out"
            )
        try:
            _frozen_route(name, given, {})
        except ValueError as error:
            raise PolicyError(f"policy {name!r}: {error}") from None
    elif not isinstance(given, PolicyFolder):
        raise PolicyError(
            f"policy {name!r} is a {type(given).__name__}: give a folder, agl.PolicyFolder(…), or "
            "agl.LLM(endpoint=…, model=…)"
        )
    return given


def _check_same_but_case(names: Sequence[str]) -> None:
    """Policies have folders of their names, and not all file systems tell ``A`` from ``a``."""
    known: dict[str, str] = {}
    for name in names:
        if (other := known.setdefault(name.lower(), name)) != name:
            raise PolicyError(
                f"policy {name!r}: differs from {other!r} by its case only; choose another name"
            )


def _check_agents(agents: Mapping[str, str], found: Policies) -> None:
    for who, policy in agents.items():
        selector(who, "policies")
        if policy not in found.names:
            near = difflib.get_close_matches(str(policy), found.names, n=1)
            hint = f"Did you mean {near[0]!r}? " if near else ""
            known = ", ".join(found.names) or "none"
            raise PolicyError(f"policies: {who!r} has the unknown policy {policy!r}. {hint}Known: {known}")


def _check_shared_options(options: Mapping[str, Mapping[str, Any]], spec: DriverSpec) -> None:
    for key in SHARED_OPTIONS:
        values = {name: of.get(key) for name, of in options.items()}
        if len({repr(value) for value in values.values()}) > 1:
            listed = ", ".join(f"{name}: {value}" for name, value in values.items())
            raise PolicyError(
                f"options.{key}: driver {spec.name!r} needs one value for all policies of a run ({listed}); "
                "set it in the options of the run"
            )


# ---------------------------------------------------------------------------------------------------- serving
def _trained_route(name: str, llm: LLM, driver: Driver, named: bool, routes: Mapping[str, Any]) -> Upstream:
    return Upstream(
        policy=name,
        url=llm.endpoint,
        replicas=llm.replicas,
        model=llm.model,
        api_key=llm.api_key,
        trainable=True,
        seeded=named,
        vocabulary=llm.vocabulary,
        context=llm.context,
        version=lambda: driver.version,
        **routes,
    )


def _frozen_route(name: str, llm: LLM, own: Mapping[str, Any]) -> Upstream:
    return Upstream(
        policy=name,
        url=llm.endpoint,
        replicas=llm.replicas,
        model=llm.model,
        api_key=llm.api_key,
        trainable=False,
        vocabulary=llm.vocabulary,
        context=llm.context,
        **own,
    )


async def _serve_frozen(
    name: str, folder: PolicyFolder, spec: DriverSpec, options: Mapping[str, Any], stack: AsyncExitStack
) -> LLM:
    assert spec.serve is not None
    server = spec.serve(policy=Path(folder.path), name=name, options={**options, **folder.options})
    stack.push_async_callback(server.close)
    return await server.start()


def _policy_record(given: PolicyFolder | LLM) -> dict[str, Any]:
    if isinstance(given, LLM):
        more = {"replicas": list(given.replicas)} if given.replicas else {}
        return {"trained": False, "endpoint": given.endpoint, "model": given.model, **more}
    return {"trained": given.train, "path": str(given.path), "options": dict(given.options)}


def _location(given: PolicyFolder | LLM) -> str:
    if isinstance(given, LLM):
        return f"{given.model} at {', '.join([given.endpoint, *given.replicas])}"
    return str(given.path)
