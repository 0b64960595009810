"""Policies of one run that have LoRA over the same base: its weights are in memory once in the trainer, and
once in each engine process.

Each policy has its own A and B, moments, versions and cache, and networks of its own whose frozen parameters
are the same memory. One process serves them all, in turn, and is sent A and B alone. Invariants: nobody
writes the base; what a policy computes does not depend on who shares its base; a process that was begun ends
with the last of its policies.
"""

from __future__ import annotations

import filecmp
import logging
import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from agentlightning.gateway.base import RunGateway
from agentlightning.types.work import PolicyFolder
from agl_local import peers
from agl_local.generation.loop import EngineLoop
from agl_local.http.engines import Engines, Serving
from agl_local.http.process import Beside, EngineProcess, Tenant
from agl_local.http.thread import EngineThread, cores_of
from agl_local.network.layout import realise
from agl_local.network.lora import LoraError, become_base, starting_point, targets_of
from agl_local.network.model import LanguageModel
from agl_local.options import Options, pick_device
from agl_local.policy.folder import DTYPES, Policy, read_tokenizer
from agl_local.policy.shared import SharedWeights
from agl_local.serving import load, make_engines

log = logging.getLogger(__name__)

ALIKE = ("quantize", "dtype", "device", "engine", "engines", "deterministic", "serving_threads")
"""Options that policies over one base have in common; others are each policy's own."""


@dataclass(frozen=True)
class Member:
    """A policy that may share its base."""

    path: Path
    name: str
    options: Options

    def shares(self, other: Member) -> bool:
        """Whether the two may share: both have LoRA, over the same files, in the same way."""
        return self.apart(other) == []

    def apart(self, other: Member) -> list[str] | None:
        """The options that keep apart two with LoRA over the same files; None: they are no such two."""
        mine, others = self.options, other.options
        if mine.lora is None or others.lora is None or not same_files(self.path, other.path):
            return None
        return [name for name in ALIKE if getattr(mine, name) != getattr(others, name)]


class Sharer(peers.PeerDriver, Protocol):
    """A driver whose policy may share its base."""

    @property
    def member(self) -> Member:
        """Its policy."""

    def share(self, base: SharedBase) -> None:
        """Take weights and engine from ``base``; before it is started."""


def train_together(
    policies: Sequence[PolicyFolder], drivers: Mapping[str, Sharer], gateway: RunGateway
) -> peers.MultiPolicyDriver:
    """``peers.train_together``, of drivers that share a base where they can."""
    together = peers.train_together(policies, drivers, gateway)
    groups: list[list[Sharer]] = []
    for driver in drivers.values():
        group = next((group for group in groups if group[0].member.shares(driver.member)), None)
        if group is None:
            for first in (group[0].member for group in groups):
                if options := first.apart(driver.member):
                    log.warning(
                        "policies %s and %s train LoRA over the same files, and each has a copy of them in "
                        "memory: of their options, %s would have to be the same",
                        first.name,
                        driver.member.name,
                        " and ".join(options).replace("serving_threads", "engine_threads"),
                    )
            groups.append([driver])
        else:
            group.append(driver)
    for group in groups:
        if len(group) > 1:
            base = SharedBase([driver.member for driver in group])
            for driver in group:
                driver.share(base)
    return together


def same_files(one: Path, other: Path) -> bool:
    """Whether two folders are one, or hold the same files: names and bytes, the smallest compared first."""
    if not (one.is_dir() and other.is_dir()):
        return False
    if one.samefile(other):
        return True
    sizes, others = ({p.name: p.stat().st_size for p in at.iterdir() if p.is_file()} for at in (one, other))
    if sizes != others:
        return False
    by_size = sorted(sizes, key=lambda name: sizes[name])
    return all(filecmp.cmp(one / name, other / name, shallow=False) for name in by_size)


class SharedBase:
    """The base of ``members``, which share it. Used by their drivers, each from a thread of its own."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = {member.name: member for member in members}
        self._options = members[0].options
        self._lock = threading.Lock()
        self._trained: Policy | None = None
        self._served: LanguageModel | None = None
        self._loop = EngineLoop("engines", cores_of(self._options.deterministic))
        self._token = secrets.token_urlsafe(32)
        self._processes: list[EngineProcess] = []
        self._weights: dict[str, SharedWeights] = {}
        self._asking: set[str] = set()
        """Policies whose engines are not closed."""

    def policy(self, name: str) -> Policy:
        """A policy for the trainer, in float32 and without adapters. Raises UsageError for a folder that
        cannot be used, and LoraError for any member's adapters that do not go with it.
        """
        member, o = self._members[name], self._options
        with self._lock:
            if self._trained is None:
                loaded = load(member.path, pick_device(o.device), "float32", o.quantize)
                self._refuse_misfit(loaded.model)
                become_base(loaded.model)
                self._trained = loaded
            base = self._trained
        tokenizer = read_tokenizer(member.path)
        return replace(base, model=starting_point(base.model), tokenizer=tokenizer, path=member.path)

    def engines(self, name: str, loaded: Policy) -> Engines:
        """The engines of a policy, not started. ``loaded``: what :meth:`policy` gave."""
        member = self._members[name]
        if self._options.engine == "vllm":
            return make_engines(member.path, name, member.options, loaded)
        if self._options.engine == "process":
            return self._tenants(name)
        with self._lock:
            return self._thread(member, loaded)

    def _refuse_misfit(self, model: LanguageModel) -> None:
        """One process serves all, so what is wrong with one policy is said before it starts for another."""
        for one in self._members.values():
            assert one.options.lora is not None  # else it would not share
            try:
                targets_of(model, one.options.lora)
            except LoraError as error:
                raise LoraError(f"policy {one.name!r}: {error}") from None

    # ------------------------------------------------------------------------------------- in this process
    def _thread(self, member: Member, loaded: Policy) -> Engines:
        o = member.options
        if self._served is None:
            assert self._trained is not None  # it was loaded before
            base = self._trained.model
            other = o.dtype != "float32"
            served = realise(base, DTYPES[o.dtype], base.device) if other else starting_point(base)
            served.pack()
            self._served = become_base(served)
        weights = SharedWeights(o.dtype)
        engine = EngineThread(
            replace(loaded, model=starting_point(self._served)),
            keep=False,
            lora=o.lora,
            loop=self._loop,
            name=member.name,
            slots=o.max_num_seqs,
            max_len=o.max_len,
            deterministic=o.deterministic,
            weights=weights,
            token=self._token,
        )
        return Engines([engine], weights, self._token)

    # ---------------------------------------------------------------------------- in processes of their own
    def _tenants(self, name: str) -> Engines:
        with self._lock:
            if not self._asking:
                self._weights = {one: SharedWeights(self._options.dtype) for one in self._members}
                self._processes = [self._process() for _ in range(self._options.engines)]
            self._asking.add(name)
            tenants: list[Serving] = [Tenant(process, name, self._leave) for process in self._processes]
            return Engines(tenants, self._weights[name], self._token)

    def _process(self) -> EngineProcess:
        first, *others = self._members.values()
        o = first.options
        return EngineProcess(
            first.path,
            name=first.name,
            lora=o.lora,
            slots=o.max_num_seqs,
            max_len=o.max_len,
            weights=self._weights[first.name],
            beside=[self._beside(member) for member in others],
            quantize=o.quantize,
            threads=o.serving_threads,
            device=pick_device(o.device),
            dtype=o.dtype,
            deterministic=o.deterministic,
            token=self._token,
        )

    def _beside(self, member: Member) -> Beside:
        o = member.options
        return Beside(
            path=str(member.path),
            name=member.name,
            lora=o.lora,
            slots=o.max_num_seqs,
            max_len=o.max_len,
            files=self._weights[member.name].files,
        )

    def _leave(self, name: str) -> None:
        """End the processes when the last policy leaves them."""
        with self._lock:
            self._asking.discard(name)
            if self._asking:
                return
            processes, self._processes = self._processes, []
            weights, self._weights = self._weights, {}
        for process in processes:
            process.close()
        for one in weights.values():
            one.close()
