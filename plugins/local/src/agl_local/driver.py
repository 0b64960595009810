"""The local driver: serves the policy, and for each step collects rows, updates the weights and publishes
them.

``run`` is the loop, top to bottom. Invariants: the engine serves version n + 1 before step n is reported, and
serves all the while (calls under way when new weights come stand still for as long as these are loaded); the
rows of a step were sampled by the version that is served while they are collected, or by one before it, as
far as the recipe's ``max_staleness`` goes; a step that is reported is in the next checkpoint; everything that
computes runs in one worker thread, so the event loop stays free for gateway and runner.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch
from safetensors import SafetensorError

from agentlightning.credit.digest import canonical_order, rows_digest
from agentlightning.specs import Job
from agentlightning.types import LLM, Batch, Recipe, Row, StepReport
from agentlightning.types.sections import TrainingSection
from agentlightning.types.work import PolicyFolder
from agl_local.bases import Member, SharedBase
from agl_local.generation.invariance import network_of
from agl_local.generation.orders import PauseMode
from agl_local.http.engines import Engines
from agl_local.network.config import OWN
from agl_local.network.linear import pick_backward_dtype
from agl_local.network.lora import starting_point
from agl_local.network.model import CausalLM, LanguageModel
from agl_local.options import Options, pick_device, read_options
from agl_local.policy.checkpoint import (
    Checkpoint,
    CheckpointError,
    back_to,
    latest,
    load_checkpoint,
    prune,
    save_checkpoint,
    saved_steps,
)
from agl_local.policy.export import export_policy
from agl_local.policy.folder import Policy, constant, fingerprint
from agl_local.progress import Tell, teller
from agl_local.serving import Refused, as_served, load, make_engines, refuse_without_template
from agl_local.supported_fields import refuse
from agl_local.text.grammar import GrammarCompiler
from agl_local.training.rules import Corrections, due, rows_of
from agl_local.training.score import row_logprobs
from agl_local.training.trainable import Trainable
from agl_local.training.update import Updater

log = logging.getLogger(__name__)
T = TypeVar("T")


class LocalDriver:
    """Runs ``recipe`` on the model folder ``policy``, served under its name; its options: see
    ``options.Options``. Of ``training`` the seed counts.

    Raises Refused for a recipe it would not carry out as written, OptionError for an unknown option.
    """

    def __init__(
        self,
        policy: PolicyFolder,
        recipe: Recipe,
        training: TrainingSection = TrainingSection(),
    ) -> None:
        _check(recipe)
        self.path = Path(policy.path)
        self.name = policy.name
        self.recipe = recipe
        self.seed = training.seed
        options = read_options(policy.options)
        self.options: Options = options if training.steps else as_served(self.path, options)
        self._version = 0
        self._policy: Policy | None = None
        self._trainable: Trainable | None = None
        self._reference: LanguageModel | None = None
        self._updates: Updater | None = None
        self._engines: Engines | None = None
        self._closed = False
        self._saved = 0
        """Finished steps of the last checkpoint that was saved."""
        self._base: SharedBase | None = None
        self._corrections = Corrections(policy.name, recipe)
        self._algorithms_before: bool | None = None
        """Torch's setting before we changed it."""
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="local-driver")

    @property
    def member(self) -> Member:
        """The policy, as one that may share its base with others of the run."""
        return Member(self.path, self.name, self.options)

    def share(self, base: SharedBase) -> None:
        """Take weights and engine from ``base``; before :meth:`start`."""
        self._base = base

    async def start(self) -> LLM:
        """Load the policy and serve it as version 0. Raises UsageError for a folder that cannot be used."""
        await self._call(self._open)
        assert self._engines is not None  # else _open has raised
        return self._engines.llm(self.name)

    @property
    def version(self) -> int:
        """The version that the engine serves now: the number of steps that changed the weights."""
        return self._version

    def engine_died(self) -> str | None:
        """How an engine ended by itself; ``None``: all run, or the driver is closed."""
        engines = self._engines
        return None if engines is None or self._closed else engines.died()

    async def checkpoints(self, folder: Path) -> list[int]:
        """Finished steps of which the run in ``folder`` has a checkpoint."""
        return await self._call(saved_steps, folder / "checkpoints")

    async def resume(self, folder: Path, step: int | None = None) -> tuple[int, dict[str, Any]]:
        """Go on from the last complete checkpoint of the run in ``folder``: weights, optimizer and random
        states are those of its last finished step, bit for bit. ``(0, {})`` if there is none.

        ``step``: from the checkpoint of that many finished steps; later ones are deleted.
        """
        checkpoint = await self._call(self._last, folder, step)
        if checkpoint is None:
            return 0, {}
        await self._call(self._restore, checkpoint)
        return checkpoint.step, dict(checkpoint.driver.get("job", {}))

    async def run(self, job: Job) -> None:
        """Steps ``job.first_step`` to ``job.steps``; a first step above 0 is that of :meth:`resume`."""
        try:
            await self._train(job)
        finally:
            if self._engines is not None:
                self._engines.copy_log(job.folder)

    async def _train(self, job: Job) -> None:
        updater = await self._call(self._updater)
        step = job.first_step
        while step < job.steps:  # it may fall while an evaluation is looked at
            began = time.perf_counter()
            batch = await self._or_save(job.collect(step), updater, job, step)
            collected = time.perf_counter()
            tell = teller(job.progress, step, self._processes)
            metrics = await self._call(self._update, updater, batch, tell)
            updated = time.perf_counter()
            if metrics["optimizer_steps"]:
                await self._call(self._publish, self._version + 1)
            seconds = {
                "rollout": collected - began,
                "update": updated - collected,
                "sync": time.perf_counter() - updated,
            }
            await job.report(await self._call(self._report, job, step, batch, metrics, seconds))
            step += 1
            every = self.options.save_every
            saved = due(every, step, job.steps)
            if saved:
                await self._checkpoint(updater, job, step)
            await self._or_save(job.evaluate(step - 1), updater, job, step)
            if not saved and due(every, step, job.steps):  # training ends here
                await self._checkpoint(updater, job, step)

    async def _or_save(self, work: Awaitable[T], updater: Updater, job: Job, step: int) -> T:
        """Await work that changes no weights. If it is cancelled, as by Ctrl-C, save the ``step`` finished
        steps first, unless there is a checkpoint of them.
        """
        state = deepcopy(job.state())
        try:
            return await work
        except asyncio.CancelledError:
            if self.options.save_every and job.alone and step > max(self._saved, job.first_step):
                try:
                    await self._checkpoint(updater, job, step, state)
                except Exception as error:  # the run ends by what cancelled it
                    log.warning("no checkpoint of the %d finished steps: %s", step, error)
            raise

    async def _checkpoint(
        self, updater: Updater, job: Job, step: int, state: dict[str, Any] | None = None
    ) -> None:
        """Save a checkpoint and remove those that are older than the last ones to keep. ``state``: the
        job's; default: its present one.
        """
        state = job.state() if state is None else state
        folder = await self._call(self._save, updater, job, step, state)
        self._saved = step
        await job.saved(folder, step)  # of several policies, all have one of this step by then
        await self._call(prune, folder.parent, step, self.options.keep_checkpoints)

    async def logprobs(self, rows: Sequence[Row]) -> list[float]:
        """The sum of the log-probabilities of each row's trained tokens under the present weights. Raises
        RowError for a row that does not fit the policy.
        """
        return await self._call(self._scores, list(rows))

    async def export(self, folder: Path) -> Path:
        """Write the present policy as a Hugging Face model folder."""
        return await self._call(export_policy, self._loaded(), folder)

    async def close(self) -> None:
        """Stop the engine, also one that the worker is still starting. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._engines is not None:  # it ends what the worker may be waiting for: a start, new weights
            await asyncio.to_thread(self._engines.close)
        last = self._worker.submit(self._shut)
        self._worker.shutdown(wait=False)
        await asyncio.shield(asyncio.wrap_future(last))

    # ----------------------------------------------------------------------------- all in the worker thread
    async def _call(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, function, *args)

    def _open(self) -> None:
        if self._engines is not None:
            raise RuntimeError(f"the driver of policy {self.name!r} has been started already")
        o = self.options
        self._still_open()
        if o.deterministic:
            self._algorithms_before = torch.are_deterministic_algorithms_enabled()
            torch.use_deterministic_algorithms(True)
        torch.set_num_threads(o.update_threads)
        device = pick_device(o.device)
        if o.offload_optimizer and torch.device(device).type == "cpu":
            raise Refused(
                f"offload_optimizer is for a device with its own memory; device: {o.device} is the CPU here: "
                "leave it out"
            )
        # The trainer's weights are float32 whatever the engine's are: a step of 1e-6 would vanish in
        # bfloat16.
        base = self._base
        self._policy = (
            load(self.path, device, "float32", o.quantize) if base is None else base.policy(self.name)
        )
        refuse_without_template(self._policy.tokenizer, self.path)
        if (o.max_len or 0) > (positions := self._policy.config.max_positions):
            log.warning(
                "policy %r has %d positions, so prompt and answer have at most these tokens; max_len is %d",
                self.name,
                positions,
                o.max_len,
            )
        if o.deterministic:
            network_of(self._policy.model)
        _refuse_foreign(self._policy, o)
        self._trainable = Trainable.of(self._policy.model, o.freeze, o.lora)
        engines = self._engines = (
            make_engines(self.path, self.name, o, self._policy)
            if base is None
            else base.engines(self.name, self._policy)
        )
        self._still_open()
        engines.start()
        self._still_open()
        self._trainable.adapt(self._policy.model, self.seed)  # an engine in this process has its copy by now
        if o.engine == "vllm":
            self._publish(0)

    def _still_open(self) -> None:
        """Nobody waits for an engine whose driver was closed while the policy was loaded."""
        if self._closed:
            raise RuntimeError(f"the driver of policy {self.name!r} has been closed")

    def _shut(self) -> None:
        """The worker's last job: whatever it started before is there now, and ends here."""
        engines, self._engines = self._engines, None
        if engines is not None:
            engines.close()
        if self._algorithms_before is not None:
            torch.use_deterministic_algorithms(self._algorithms_before)

    def _updater(self) -> Updater:
        if self._updates is None:
            self._updates = self._new_updater()
        return self._updates

    def _new_updater(self) -> Updater:
        policy, o = self._loaded(), self.options
        torch.manual_seed(self.seed)
        return Updater(
            policy.model,
            self.recipe,
            lr=o.lr,
            weight_decay=o.weight_decay,
            betas=o.betas,
            eps=o.eps,
            clip_norm=o.max_grad_norm,
            warmup=o.warmup_steps,
            seed=self.seed,
            threads=o.update_threads,
            micro_tokens=o.micro_batch_tokens,
            reference=self._reference_model(policy),
            eos_ids=policy.tokenizer.eos_ids,
            grammars=GrammarCompiler(policy.tokenizer, policy.config.vocab_size),
            verify=o.verify,
            share=o.share_prefixes,
            recompute=o.activation_checkpointing,
            offload=o.offload_optimizer,
            backward_dtype=pick_backward_dtype(o.backward_dtype, policy.model),
            tf32=o.dtype != "float32",
        )

    def _reference_model(self, policy: Policy) -> LanguageModel | None:
        """The weights that the run started from, also after a resume: it is taken before a checkpoint is
        loaded.
        """
        if not self.recipe.kl:
            return None
        if self._reference is None:
            other = self.options.reference
            self._reference = (
                starting_point(policy.model)
                if other is None
                else load(Path(other), policy.model.device, "float32").model
            )
        return self._reference

    def _update(self, updater: Updater, batch: Batch, tell: Tell | None = None) -> dict[str, float]:
        """One update; a batch that nothing can be learned from is counted as ``skipped``, and changes
        nothing.
        """
        assert self._engines is not None
        # Calls of later steps want an answer meanwhile.
        rests = nullcontext() if self.recipe.max_staleness else self._engines.resting()
        with rests:
            metrics = updater.update(rows_of(batch, self.name), self._version, tell)
        del metrics["seconds"]  # the report has the phase's own
        self._corrections.say(metrics)
        metrics["skipped"] = float(not metrics["tokens_trained"])
        if metrics["skipped"] and not metrics["tokens_zero_advantage"]:
            log.warning(
                "no trainable row of policy %r in this step: its weights stay as they are (version %d)",
                self.name,
                self._version,
            )
        return metrics

    def _scores(self, rows: Sequence[Row]) -> list[float]:
        policy = self._loaded()
        return row_logprobs(
            policy.model,
            rows,
            eos_ids=policy.tokenizer.eos_ids,
            micro_tokens=self.options.micro_batch_tokens,
            grammars=GrammarCompiler(policy.tokenizer, policy.config.vocab_size),
        )

    def _processes(self) -> dict[str, int]:
        """Ids of the processes whose memory is of interest, by name."""
        return {"trainer": os.getpid(), **(self._engines.pids() if self._engines is not None else {})}

    def _publish(self, version: int) -> None:
        assert self._engines is not None
        model = self._loaded().model
        # Calls of later steps may be under way, and one that straddles an update counts as its older version.
        # Where tokens may be stale, nobody waits until the longest of these answers is complete.
        mode: PauseMode = "hold" if self.recipe.max_staleness else "drain"
        tensors = self._engines.wanted(model)
        self._version = self._engines.update(tensors, version, mode, constant(model) & tensors.keys())

    def _report(
        self, job: Job, step: int, batch: Batch, metrics: Mapping[str, float], seconds: dict[str, float]
    ) -> StepReport:
        every = 1 if self.options.deterministic else self.options.digest_every
        digest = bool(every) and (step + 1) % every == 0
        rows: list[Row] = canonical_order(batch.rows)
        return StepReport(
            run_id=job.run_id,
            step=step,
            policy=self.name,
            policy_version=self._version,
            metrics={**batch.metrics, **metrics},
            seconds=seconds,
            rows_digest=rows_digest(rows),
            params_digest=fingerprint(self._loaded().model) if digest else None,
        )

    def _save(self, updater: Updater, job: Job, step: int, state: dict[str, Any]) -> Path:
        try:
            return save_checkpoint(
                job.folder / "checkpoints",
                step=step,
                version=self._version,
                policy=self._loaded(),
                trainer=updater.state_dict(self.options.save_optimizer),
                driver={
                    "run_id": job.run_id,
                    "seed": self.seed,
                    "recipe": self.recipe.model_dump(),
                    "machine": self._machine(),
                    "trainable": self._what_is_trained().record(),
                    "job": state,
                },
            ).folder
        except (OSError, SafetensorError, RuntimeError) as error:  # torch calls a full disk the last
            raise Refused(
                f"the checkpoint of step {step} cannot be written to {job.folder / 'checkpoints'}: {error}; "
                "earlier ones are whole, so when there is room go on with --resume"
            ) from error

    def _machine(self) -> dict[str, Any]:
        """What the last bits of a sum depend on."""
        return {"torch": torch.__version__, "threads": self.options.update_threads}

    def _same_machine(self, checkpoint: Checkpoint) -> None:
        """Deterministic mode promises the bits of a run that was never interrupted, or refuses."""
        before = checkpoint.driver.get("machine", {})
        for name, value in self._machine().items() if self.options.deterministic else ():
            if before.get(name) != value:
                raise Refused(
                    f"{checkpoint.folder}: {name} was {before.get(name)} and is {value}: sums get other last "
                    "bits, which deterministic mode excludes; use the same, or leave deterministic out"
                )

    def _check_moments(self, checkpoint: Checkpoint, saved: Mapping[str, Any]) -> None:
        """Say that a checkpoint was saved without those of the optimizer, or refuse it."""
        if "optimizer" in saved:
            return
        if self.options.deterministic:
            raise ValueError(
                "it was saved without the optimizer (save_optimizer), as deterministic mode needs it"
            )
        log.warning(
            "%s was saved without the optimizer: AdamW's moments begin anew after step %d",
            checkpoint.folder,
            checkpoint.step,
        )

    def _last(self, folder: Path, step: int | None) -> Checkpoint | None:
        try:
            at = folder / "checkpoints"
            return latest(at) if step is None else back_to(at, step)
        except CheckpointError as error:
            before = "remove the folder to go on from the checkpoint before it, or without one from the start"
            raise Refused(f"{error}; {before}") from None

    def _restore(self, checkpoint: Checkpoint) -> None:
        saved = checkpoint.driver.get("recipe")
        if saved is None or msgspec.convert(saved, Recipe) != self.recipe:
            raise Refused(f"{checkpoint.folder} was trained with another recipe: {saved}")
        self._same_machine(checkpoint)
        if differs := self._what_is_trained().differs(checkpoint.driver.get("trainable", {})):
            raise Refused(
                f"{checkpoint.folder} cannot be gone on from: {differs}; use what the run began with"
            )
        updater = self._updater()  # first: a reference policy is the one that the run started from
        try:
            saved = load_checkpoint(checkpoint, self._loaded())
            self._check_moments(checkpoint, saved)
            updater.load_state_dict(saved)
        except ValueError as error:
            raise Refused(f"{checkpoint.folder} cannot be gone on from: {error}") from None
        self._publish(checkpoint.version)

    def _loaded(self) -> Policy:
        if self._policy is None:
            raise RuntimeError(f"the driver of policy {self.name!r} has not been started")
        return self._policy

    def _what_is_trained(self) -> Trainable:
        assert self._trainable is not None  # it comes with the policy
        return self._trainable


def _check(recipe: Recipe) -> None:
    try:
        refuse(recipe)
    except ValueError as error:
        raise Refused(str(error)) from None


def _refuse_foreign(policy: Policy, o: Options) -> None:
    """Raise Refused for options that only the own forward has, where the network is transformers'."""
    given = {
        "activation_checkpointing": o.activation_checkpointing,
        "backward_dtype": o.backward_dtype == "bfloat16",
    }
    asked = [name for name, on in given.items() if on]
    if asked and not isinstance(policy.model, CausalLM):
        raise Refused(
            f"{policy.path}: {asked[0]}: it needs one of the {OWN}; this model runs through transformers "
            f"({type(policy.model).__name__}): leave it out"
        )
