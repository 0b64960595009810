"""The driver ``tinker``: rollouts, credit and records here, weights on a server of the Tinker API.

Invariants: the engine serves version n + 1 before step n is reported; a checkpoint counts once its position
is written here, after the server has saved weights and optimizer; so a run that goes on has made each of its
steps once, whatever was killed.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from agentlightning.credit.digest import canonical_order, rows_digest
from agentlightning.specs import Job
from agentlightning.types import LLM, Batch, Recipe, Row, StepReport, UsageError
from agentlightning.types.sections import TrainingSection
from agentlightning.types.work import PolicyFolder, missing_policy_message
from agl_local.training.batch import trained_positions
from agl_local.training.rules import Corrections, due, rows_of
from agl_tinker.client import Client, done
from agl_tinker.engine import RemoteEngine
from agl_tinker.export import export
from agl_tinker.machine import Unreachable, ask_server
from agl_tinker.options import Options, Refused, read_options
from agl_tinker.supported_fields import refuse
from agl_tinker.update import RemoteUpdater

log = logging.getLogger(__name__)

_POSITION = "position.json"


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint: where the server has its weights, and what the run needs beside them."""

    path: str
    step: int
    version: int
    optimizer_steps: int
    base_model: str
    recipe: dict[str, Any]
    job: dict[str, Any]


class Remote:
    """A policy on the server and the engine that serves it here: what a trained and a frozen one share."""

    def __init__(self, policy: PolicyFolder) -> None:
        self.path, self.name = Path(policy.path), policy.name
        self.options: Options = read_options(policy.options)
        self.client = Client(self.options)
        self._engine: RemoteEngine | None = None

    async def start(self) -> LLM:
        """Begin a session and serve the policy as version 0. Raises UsageError for what a person can mend."""
        if not (self.path / "config.json").exists():
            raise UsageError(f"policy {missing_policy_message(self.path)}")
        self._engine = RemoteEngine(self.path, self.name, self.options, self.client)
        await self.client.open()
        return await self._engine.start(await self.client.base_sampler(self.options.start_from))

    async def close(self) -> None:
        """End the session. Idempotent."""
        if self._engine is not None:
            await self._engine.close()
        await self.client.close()

    @property
    def engine(self) -> RemoteEngine:
        assert self._engine is not None, "start comes first"
        return self._engine


class TinkerDriver(Remote):
    """Runs ``recipe`` on the server's model ``base_model``, served under the policy's name; its options:
    :class:`Options`. Of ``training`` the seed counts.

    Raises Refused for a recipe it would not carry out as written, and OptionError for an unknown option.
    """

    def __init__(
        self, policy: PolicyFolder, recipe: Recipe, training: TrainingSection = TrainingSection()
    ) -> None:
        super().__init__(policy)
        refuse(recipe, self.options)
        self.recipe, self.seed = recipe, training.seed
        self._updates: RemoteUpdater | None = None
        self._reference: Any = None
        self._corrections = Corrections(policy.name, recipe)

    async def start(self) -> LLM:
        """As :meth:`Remote.start`; a model that the server does not train is refused before."""
        try:
            await asyncio.to_thread(ask_server, self.options)
        except Unreachable as error:  # it may be starting, and the client tries again by itself
            log.warning("%s. The run waits for it", error)
        return await super().start()

    @property
    def version(self) -> int:
        """The version that new calls are asked of: the number of steps that changed the weights."""
        return self._engine.version if self._engine is not None else 0

    async def checkpoints(self, folder: Path) -> list[int]:
        """Finished steps of which the run in ``folder`` has a checkpoint."""
        return _steps(folder)

    async def resume(self, folder: Path, step: int | None = None) -> tuple[int, dict[str, Any]]:
        """Go on from the last checkpoint, or that of ``step``, whose later ones are forgotten."""
        steps = _steps(folder)
        if step and step not in steps:
            raise UsageError(f"{folder}: there is no checkpoint of step {step}; there is {steps}")
        chosen = (steps[-1] if steps else 0) if step is None else step
        for later in [n for n in steps if n > chosen]:
            shutil.rmtree(_place(folder, later))
        if not chosen:
            return 0, {}
        file = _place(folder, chosen) / _POSITION
        try:
            position = msgspec.json.decode(file.read_bytes(), type=Position)
        except msgspec.DecodeError as error:
            raise Refused(f"{file} cannot be read as the position of a checkpoint: {error}") from None
        if msgspec.convert(position.recipe, Recipe) != self.recipe:
            raise Refused(f"{file}: the checkpoint was trained with another recipe: {position.recipe}")
        if position.base_model != self.options.base_model:
            raise Refused(
                f"{file}: the checkpoint was trained on {position.base_model!r}, and "
                f"backend.options.base_model is {self.options.base_model!r}"
            )
        await self.client.restore(position.path)
        updates = self._updates = self._updater()
        updates.steps = position.optimizer_steps
        self.engine.publish(await done(self.client.sampler()), position.version)
        return chosen, position.job

    async def run(self, job: Job) -> None:
        """Steps ``job.first_step`` to ``job.steps``."""
        await self._begin()
        step, every = job.first_step, self.options.save_every
        while step < job.steps:  # it may fall while an evaluation is looked at
            began = time.perf_counter()
            batch = await job.collect(step)
            collected = time.perf_counter()
            metrics, updated, synced = await self._update(batch)
            seconds = {"rollout": collected - began, "update": updated - collected, "sync": synced - updated}
            await job.report(await asyncio.to_thread(self._report, job, step, batch, metrics, seconds))
            step += 1
            saved = due(every, step, job.steps)
            if saved:
                await self._checkpoint(job, step)
            await job.evaluate(step - 1)
            if not saved and due(every, step, job.steps):  # training ends here
                await self._checkpoint(job, step)

    async def logprobs(self, rows: Sequence[Row]) -> list[float]:
        """The sum of the log-probabilities of each row's trained tokens under the present weights."""
        updates = await self._begin()
        parts = torch.split(await updates.logprobs(rows), [row.trained_tokens for row in rows])
        return [float(part.sum()) for part in parts]

    async def export(self, folder: Path) -> Path:
        """Write the present policy as a Hugging Face model folder, where ``backend.policy`` has the base's
        weights; else its adapter in PEFT's format, with the tokenizer.
        """
        await self._begin()
        files = await self.client.adapter_files(f"export-{secrets.token_hex(4)}")
        return await asyncio.to_thread(export, self.path, files, folder, self.options.url)

    # ------------------------------------------------------------------------------------------------- a step
    async def _begin(self) -> RemoteUpdater:
        """The updater; the first time, a new adapter is made on the server."""
        if self._updates is None:
            await self.client.create(self.seed)
            self._updates = self._updater()
        return self._updates

    def _updater(self) -> RemoteUpdater:
        return RemoteUpdater(
            self.client,
            self.recipe,
            self.options,
            vocab_size=self.engine.vocab_size,
            seed=self.seed,
            reference=self._reference_logprobs,
        )

    async def _update(self, batch: Batch) -> tuple[dict[str, float], float, float]:
        """Train on a batch and serve the result; metrics, and when each of the two was done."""
        assert self._updates is not None
        rows = rows_of(batch, self.name)
        metrics, sampler = await self._updates.update(rows, self.version, self.client.sampler)
        updated = time.perf_counter()
        if sampler is not None:
            self.engine.publish(await done(sampler), self.version + 1)
        self._corrections.say(metrics)
        if not math.isfinite(metrics.get("grad_norm", 0.0)):
            # The server tells none, or the gradient was not finite, which `steps_skipped` counts.
            del metrics["grad_norm"]
        metrics["skipped"] = float(not metrics["tokens_trained"])
        return metrics | self._used(self._updates), updated, time.perf_counter()

    def _used(self, updates: RemoteUpdater) -> dict[str, float]:
        """What the server was asked for since the run began or went on."""
        counts = self.engine.counts
        return {
            "service/prefill_tokens": float(counts["prefill_tokens"]),
            "service/sampled_tokens": float(counts["sampled_tokens"]),
            "service/forward_tokens": float(updates.counts["forward_tokens"]),
            "service/trained_tokens": float(updates.counts["trained_tokens"]),
            "tinker/answers_unended": float(counts["unended"]),
        }

    async def _reference_logprobs(self, rows: Sequence[Row]) -> Tensor:
        """Of the weights that the run started from."""
        if self._reference is None:
            self._reference = await self.client.base_sampler(self.options.start_from)
        ends = [trained_positions(row)[-1] + 1 for row in rows]
        assert self._updates is not None
        self._updates.counts["forward_tokens"] += sum(ends)
        asked = [
            self.client.prompt_logprobs(self._reference, row.token_ids[:end])
            for row, end in zip(rows, ends, strict=True)
        ]
        parts = []
        for row, end, one in zip(rows, ends, asked, strict=True):
            known = await done(one)
            first = end - len(known)  # 0, or 1 where the first token is left out
            parts += [known[t - first] for t in trained_positions(row)]
        return torch.tensor(parts, dtype=torch.float64)

    def _report(
        self, job: Job, step: int, batch: Batch, metrics: Mapping[str, float], seconds: dict[str, float]
    ) -> StepReport:
        return StepReport(
            run_id=job.run_id,
            step=step,
            policy=self.name,
            policy_version=self.version,
            metrics={**batch.metrics, **metrics},
            seconds=seconds,
            rows_digest=rows_digest(canonical_order(batch.rows)),
        )

    async def _checkpoint(self, job: Job, step: int) -> None:
        """Save on the server, then write the position here, and forget older ones."""
        assert self._updates is not None
        path = await self.client.save(f"step-{step}-{secrets.token_hex(4)}")
        position = Position(
            path=path,
            step=step,
            version=self.version,
            optimizer_steps=self._updates.steps,
            base_model=self.options.base_model,
            recipe=self.recipe.model_dump(),
            job=job.state(),
        )
        place = _place(job.folder, step)
        place.mkdir(parents=True, exist_ok=True)
        draft = place / f".{_POSITION}"
        draft.write_bytes(msgspec.json.encode(position))
        os.replace(draft, place / _POSITION)
        await job.saved(place, step)  # of several policies, all have one of this step by then
        for old in _steps(job.folder)[: -self.options.keep_checkpoints]:
            shutil.rmtree(_place(job.folder, old))


def _place(folder: Path, step: int) -> Path:
    return folder / "checkpoints" / f"step_{step:06d}"


def _steps(folder: Path) -> list[int]:
    """Finished steps of the complete checkpoints of the run in ``folder``, oldest first."""
    found = (
        path.parent.name.rpartition("_")[2] for path in (folder / "checkpoints").glob(f"step_*/{_POSITION}")
    )
    return sorted(int(name) for name in found if name.isdecimal())
