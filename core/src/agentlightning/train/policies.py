"""The policies of a run: trained ones, frozen ones, and the map of agents to policies.

Invariants: only a folder is ever trained; the key of an endpoint goes to the gateway's route and nowhere
else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentlightning.gateway import Upstream
from agentlightning.plugins.manager import Plugins
from agentlightning.redaction import redacted
from agentlightning.types import LLM
from agentlightning.types.base import ConfigError, meant
from agentlightning.types.select import selector
from agentlightning.types.work import PolicyFolder

POLICY = "policy"
"""Name of the only policy, and the model name that agents use."""
BY_AGENT = "by-agent"
"""Model name of agents in a run with named policies: the gateway picks the agent's policy."""
CATCH_ALL = "re:.*"
"""Matches every agent: the last entry of a map of agents."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


PolicySource = str | Path | PolicyFolder | LLM


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies that a run serves, and which agent talks to which."""

    trained: dict[str, PolicyFolder] = field(default_factory=dict)
    frozen: dict[str, PolicyFolder | LLM] = field(default_factory=dict)
    agents: dict[str, str] = field(default_factory=dict)
    """Name of an agent, role or node, or ``"re:…"`` → policy."""
    named: bool = False
    """Whether the policies were given by name."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all policies."""
        return (*self.trained, *self.frozen)

    @property
    def model_name(self) -> str:
        """Return the model name that agents are given."""
        return BY_AGENT if self.named else POLICY

    @property
    def routing(self) -> dict[str, str]:
        """Return ``agents``; if one policy is trained, or there is only one, all other agents talk to it."""
        others = list(self.trained or self.frozen)
        only = self.named and len(others) == 1 and CATCH_ALL not in self.agents
        return {**self.agents, CATCH_ALL: others[0]} if only else dict(self.agents)

    def replaced(self, others: Mapping[str, PolicyFolder | LLM]) -> Policies:
        """Return these policies with ``others`` in place of those of their names."""
        trained: dict[str, Any] = {name: others.get(name, given) for name, given in self.trained.items()}
        frozen = {name: others.get(name, given) for name, given in self.frozen.items()}
        return replace(self, trained=trained, frozen=frozen)

    def record(self) -> dict[str, Any]:
        """Return the policies for the run's record, without keys."""
        if not self.named:
            return {"policy": self.summary()}
        given = {name: _policy_record(one) for name, one in {**self.trained, **self.frozen}.items()}
        return {"policy": None, "policies": given, "trained": sorted(self.trained), "agents": self.routing}

    def summary(self) -> str:
        """Return the policies in one line."""
        if not self.named:
            return str(self.trained[POLICY].path) if self.trained else "None"
        return ", ".join(
            [f"{name} (trained) {folder.path}" for name, folder in self.trained.items()]
            + [f"{name} (frozen) {_location(given)}" for name, given in self.frozen.items()]
        )


def fetch_pretrained(name: str | Path, plugins: Plugins) -> Path | None:
    """Return the folder of a pretrained policy, fetched on first use; ``None`` if no plugin has ``name``."""
    given = str(name)
    for spec in plugins.policies.values():
        if spec.prefix and given.startswith(spec.name):
            return spec.fetch(given.removeprefix(spec.name)).resolve()
        if given == spec.name:
            return spec.fetch().resolve()
    return None


def with_pretrained(policies: Policies, plugins: Plugins) -> Policies:
    """Return ``policies`` with folders in place of the names of pretrained ones, which are fetched; the same
    object if there are none.
    """
    found: dict[str, PolicyFolder] = {}
    for name, given in {**policies.trained, **policies.frozen}.items():
        if isinstance(given, LLM) or Path(given.path).is_dir():
            continue
        if (fetched := fetch_pretrained(given.path, plugins)) is not None:
            found[name] = replace(given, path=fetched)
    return policies.replaced(found) if found else policies


def read_policies(
    policy: PolicySource | Mapping[str, PolicySource] | None, agents: Mapping[str, str] | None = None
) -> Policies:
    """Check ``Trainer(policy=…, policies=…)``. :class:`ConfigError` names the entry that is wrong."""
    trained: dict[str, PolicyFolder] = {}
    frozen: dict[str, PolicyFolder | LLM] = {}
    named = isinstance(policy, Mapping)
    for name, given in (policy if isinstance(policy, Mapping) else {POLICY: policy}).items():
        if given is None and not named:
            continue
        source = _folder(name, given)
        if isinstance(source, PolicyFolder) and source.train:
            trained[name] = source
        elif named:
            frozen[name] = source
        else:
            raise ConfigError("policy: the only policy is the one that is trained: give its folder")
    found = Policies(trained, frozen, dict(agents or {}), named)
    spelled: dict[str, str] = {}
    for name in found.names:  # policies have folders of their names, and not all file systems tell A from a
        if (other := spelled.setdefault(name.lower(), name)) != name:
            raise ConfigError(
                f"policy {name!r}: differs from {other!r} by its case only; choose another name"
            )
    for who, chosen in found.agents.items():
        selector(who, "policies")
        if chosen not in found.names:
            raise ConfigError(
                f"policies: {who!r} has the unknown policy {chosen!r}{meant(chosen, found.names, '')}"
            )
    return found


def _folder(name: Any, given: Any) -> PolicyFolder | LLM:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"policy {name!r}: a name has letters, digits, '-' and '_', at most 64")
    if name in (BY_AGENT, "llm"):
        raise ConfigError(f"policy {name!r}: that name is taken; choose another")
    if isinstance(given, str | Path):
        return PolicyFolder(given, name=name)
    if isinstance(given, PolicyFolder):
        return replace(given, name=name)
    if not isinstance(given, LLM):
        raise ConfigError(
            f"policy {name!r} is a {type(given).__name__}: give a folder, agl.PolicyFolder(…), or "
            "agl.LLM(endpoint=…, model=…)"
        )
    if given.sampling_parameters:
        raise ConfigError(
            f"policy {name!r}: an endpoint is asked as the agent asks; leave sampling_parameters out"
        )
    try:
        route(name, given)
    except ValueError as error:
        raise ConfigError(f"policy {name!r}: {error}") from None
    return given


def route(name: str, llm: LLM, **settings: Any) -> Upstream:
    """Return the route to ``llm``, an endpoint that is not trained unless ``settings`` say so."""
    return Upstream(
        policy=name,
        url=llm.endpoint,
        replicas=llm.replicas,
        model=llm.model,
        api_key=llm.api_key,
        vocabulary=llm.vocabulary,
        context=llm.context,
        logprobs_mode=llm.logprobs_mode,
        **{"trainable": False, **settings},
    )


def _policy_record(given: PolicyFolder | LLM) -> dict[str, Any]:
    if isinstance(given, LLM):
        more = {"replicas": [redacted(url) for url in given.replicas]} if given.replicas else {}
        return {"trained": False, "endpoint": redacted(given.endpoint), "model": given.model, **more}
    return {"trained": given.train, "path": str(given.path), "options": dict(given.options)}


def _location(given: PolicyFolder | LLM) -> str:
    if isinstance(given, LLM):
        return redacted(f"{given.model} at {', '.join([given.endpoint, *given.replicas])}")
    return str(given.path)
