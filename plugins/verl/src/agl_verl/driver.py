"""The verl driver: the seat of verl's trainer in a run. It imports no verl.

verl owns its loop and asks for each step's rows; the job collects them as for any driver. So what reaches the
loss is what core's credit made, the order of tasks and the seeds are those of a run with the local driver,
and store, gateway and runner know nothing of Ray. Invariants: the engine serves version n + 1 before step n
is reported; a checkpoint counts once the algorithm's own state lies beside it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from agentlightning.credit.digest import canonical_order, rows_digest
from agentlightning.redaction import say
from agentlightning.specs import Job
from agentlightning.types import LLM, Batch, Recipe, StepReport, UsageError
from agentlightning.types.sections import TrainingSection
from agentlightning.types.work import PolicyFolder, missing_policy_message
from agl_verl.checkpoints import Checkpoints
from agl_verl.config import critic
from agl_verl.config.attention import resolved
from agl_verl.config.engines import LOGPROBS_MODES, key_of
from agl_verl.config.options import data_parallel, overrides, read_options
from agl_verl.config.settings import Options
from agl_verl.process.channel import ADDRESS, SECRET, ChannelServer
from agl_verl.process.child import Child
from agl_verl.rows import Step, pieces, step as rows_of
from agl_verl.shape import Shape
from agl_verl.supported_fields import plain, refuse

log = logging.getLogger(__name__)


class VerlFailed(UsageError, RuntimeError):
    """verl ended before it should have; with the end of what it wrote."""


@dataclass(frozen=True, slots=True)
class Collected:
    """The step that verl is at."""

    step: int
    batch: Batch
    optimizer_steps: int
    empty_steps: int
    """Of mini-batches without a gradient, which are not made."""
    stale: int
    """Trained tokens of older versions."""
    seconds: float
    """That its rollouts took."""
    since: float
    """When verl got the rows."""


class VerlDriver:
    """Runs ``recipe`` on the model folder ``policy``, served under its name; its options:
    :class:`Options`. Of ``training`` the seed and the number of steps count.
    """

    def __init__(
        self,
        policy: PolicyFolder,
        recipe: Recipe,
        training: TrainingSection = TrainingSection(),
    ) -> None:
        refuse(recipe)
        self.path = Path(policy.path).resolve()
        self.name = policy.name
        self.recipe = recipe
        self.seed, self._steps = training.seed, training.steps
        self.options: Options = read_options(policy.options)
        critic.check(recipe, self.options)
        self._scratch: Path | None = None
        """What verl writes before the run has a folder; there from start to close."""
        self._orders: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: ChannelServer | None = None
        self._child: Child | None = None
        self._version = 0
        self._job: Job | None = None
        self._checkpoints: Checkpoints | None = None
        self._step: Collected | None = None
        self._measured: dict[str, float] = {}
        self._corrects = 0.0
        """Whether the last step weighed fresh tokens by importance."""
        self._failure: BaseException | None = None
        self._paused = False
        """verl's servers take no calls."""
        self._began = 0.0
        """When verl was started."""

    # ------------------------------------------------------------------------------------------ the driver
    async def start(self) -> LLM:
        """Start verl and its engine, which serves the policy as version 0. Tens of seconds: Ray."""
        if not self.path.is_dir():
            raise UsageError(f"policy {missing_policy_message(self.path)}")
        if not (self.path / "config.json").exists():
            raise UsageError(f"policy {self.path}: there is no config.json; give a model folder")
        loop = asyncio.get_running_loop()
        self._ready, self._loaded, self._finished, self._lost = (loop.create_future() for _ in range(4))
        secret = secrets.token_urlsafe(32)
        self._server = ChannelServer(
            secret,
            {
                "stage": self._on_stage,
                "ready": self._on_ready,
                "next": self._on_next,
                "loaded": self._on_loaded,
                "collect": self._on_collect,
                "measured": self._on_measured,
                "pause": self._on_pause,
                "resume": self._on_resume,
                "lost": self._on_lost,
                "finished": self._on_finished,
            },
        )
        address = await self._server.start()
        scratch = self._scratch = Path(tempfile.mkdtemp(prefix="agl-verl-"))
        attention = await asyncio.to_thread(resolved, self.options)
        self.options = msgspec.structs.replace(self.options, attention=attention)
        given = overrides(
            str(self.path), self.recipe, self.seed, self.options, str(scratch), self.name, self._steps
        )
        environment = {
            ADDRESS: address,
            SECRET: secret,
            "VERL_FILE_LOGGER_PATH": str(scratch / "metrics.jsonl"),
            **({"VERL_PLATFORM": "cpu"} if self.options.device == "cpu" else {}),
        }
        self._child = Child(self.options.python, given, environment, scratch / "verl.log")
        self._began = time.monotonic()
        say(f"verl starts, which takes up to a minute; its output: {self._child.output}", file=sys.stderr)
        try:
            self._child.start()
        except OSError as error:
            raise VerlFailed(
                f"backend.options.python: {self.options.python} does not start: {error}"
            ) from None
        ready = await self._alive(self._ready, self.options.start_seconds)
        self._say_stage("ready")
        first, *others = (f"{address}/v1" for address in ready["addresses"])
        key = None if self.options.engine == "sglang" else key_of(secret)  # verl gives SGLang none
        mode = LOGPROBS_MODES[self.options.engine]
        return LLM(endpoint=first, replicas=others, model=self.name, api_key=key, logprobs_mode=mode)

    @property
    def version(self) -> int:
        """The version that the engine serves now: finished steps."""
        return self._version

    async def checkpoints(self, folder: Path) -> list[int]:
        """Finished steps of which the run in ``folder`` has a whole checkpoint."""
        return self._kept(folder).steps()

    def _kept(self, folder: Path) -> Checkpoints:
        shape = Shape(self.options.ranks, self.recipe.critic, self.options.lora)
        return Checkpoints(folder / "checkpoints", shape)

    async def resume(self, folder: Path, step: int | None = None) -> tuple[int, dict[str, Any]]:
        """Go on from the last whole checkpoint (or that of ``step``); ``(0, {})`` if there is none."""
        checkpoints = self._kept(folder)
        found = checkpoints.back_to(step)
        if found is None:
            return 0, {}
        await self._orders.put({"do": "load", "path": str(checkpoints.place(found))})
        await self._alive(self._loaded, self.options.start_seconds)
        self._version = found
        return found, checkpoints.state(found)

    async def run(self, job: Job) -> None:
        """Let verl train steps ``job.first_step`` to ``job.steps``."""
        if job.first_step >= job.steps:
            return
        self._job = job
        self._checkpoints = self._kept(job.folder)
        every = self.options.save_every or job.steps
        await self._orders.put(
            {
                "do": "fit",
                "steps": job.steps,
                "checkpoints": str(self._checkpoints.folder),
                "save_every": every,
                "recipe": self.recipe.model_dump(),
                "plain": plain(self.recipe),
            }
        )
        try:
            await self._alive(self._finished)
        except BaseException:
            await self._release()
            raise
        await self._settle()

    async def export(self, folder: Path) -> Path:
        """Write the policy of the last checkpoint as a Hugging Face model folder."""
        if self._checkpoints is None or not (steps := self._checkpoints.steps()):
            shutil.copytree(self.path, folder, dirs_exist_ok=True)
            return folder
        return self._checkpoints.export(steps[-1], self.path, folder)

    async def close(self) -> None:
        """End verl, Ray and the engine. Idempotent."""
        child, self._child = self._child, None
        if child is not None:
            await asyncio.to_thread(child.close)
            if self._job is not None:
                await asyncio.to_thread(keep_output, child.output, self._job.folder)
        server, self._server = self._server, None
        if server is not None:
            await server.stop()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    # ------------------------------------------------------------------------------------- verl's questions
    async def _on_stage(self, said: dict[str, Any]) -> dict[str, Any]:
        self._say_stage(str(said["what"]))
        return {}

    def _say_stage(self, what: str) -> None:
        """Print how far verl's start is, on stderr: stdout has what the run prints as its result."""
        say(f"verl, after {time.monotonic() - self._began:.0f} s: {what}", file=sys.stderr)

    async def _on_ready(self, said: dict[str, Any]) -> dict[str, Any]:
        self._ready.set_result(said)
        return {}

    async def _on_next(self, said: dict[str, Any]) -> dict[str, Any]:
        return await self._orders.get()

    async def _on_loaded(self, said: dict[str, Any]) -> dict[str, Any]:
        self._loaded.set_result(said)
        return {}

    async def _on_collect(self, said: dict[str, Any]) -> Iterator[bytes]:
        """The rows of a step; what became of the one before is reported first."""
        try:
            assert self._job is not None
            await self._settle()
            step = int(said["step"]) - 1  # verl counts from one
            began = time.perf_counter()
            batch = await self._job.collect(step)
            rows, stale = await asyncio.to_thread(self._rows, batch)
            if step < self.options.critic_warmup:
                rows.optimizer_steps = rows.empty_steps = 0
            self._measured = {}
            self._step = Collected(
                step,
                batch,
                rows.optimizer_steps,
                rows.empty_steps,
                stale,
                time.perf_counter() - began,
                time.perf_counter(),
            )
            return pieces(rows)
        except BaseException as error:
            self._failure = error
            await self._on_lost({"what": f"got no rows ({type(error).__name__})"})
            raise

    def _rows(self, batch: Batch) -> tuple[Step, int]:
        """Make verl's rows of a batch; return them with the number of their stale tokens."""
        rows = rows_of(batch.rows, self.recipe, data_parallel(self.options), self._version, self.seed)
        return rows, sum(row.stale_tokens for row in rows.rows)

    async def _on_pause(self, said: dict[str, Any]) -> dict[str, Any]:
        """verl's servers are about to give up what they were asked, or to sleep."""
        self._paused = True
        if self._job is not None:
            await self._job.hold()
        return {}

    async def _on_resume(self, said: dict[str, Any]) -> dict[str, Any]:
        """They serve the weights of the step that verl is at."""
        if self._step is not None:
            self._version = self._step.step + 1
        await self._release()
        return {}

    async def _release(self) -> None:
        """Let calls pass, if they were held."""
        held, self._paused = self._paused, False
        if held and self._job is not None:
            await self._job.release()

    async def _on_measured(self, said: dict[str, Any]) -> dict[str, Any]:
        self._measured = said
        if said.get("correction/corrected", self._corrects) != self._corrects:
            self._corrects = said["correction/corrected"]
            assert self.recipe.correction is not None
            log.warning("policy %r: %s", self.name, self.recipe.correction.reason(said["correction/gap"]))
        return {}

    async def _on_lost(self, said: dict[str, Any]) -> dict[str, Any]:
        if not self._lost.done():
            self._lost.set_result(said)
        return {}

    async def _on_finished(self, said: dict[str, Any]) -> dict[str, Any]:
        self._finished.set_result(said)
        return {}

    async def _settle(self) -> None:
        """Report, save and evaluate the step that verl has finished, if there is one."""
        if self._step is None:
            return
        assert self._job is not None and self._checkpoints is not None
        done, self._step = self._step, None
        step, batch = done.step, done.batch
        self._version = step + 1
        await self._release()  # its synchronous trainer wakes servers without a word; they are awake now
        found = self._metrics(done)
        updating = time.perf_counter() - done.since
        digest = await asyncio.to_thread(lambda: rows_digest(canonical_order(batch.rows)))
        await self._job.report(
            StepReport(
                run_id=self._job.run_id,
                step=step,
                policy=self.name,
                policy_version=self._version,
                metrics={**batch.metrics, **found},
                seconds={"rollout": done.seconds, "update": updating},
                rows_digest=digest,
            )
        )
        if self._checkpoints.complete(step + 1, self._job.state()):
            await self._job.saved(self._checkpoints.place(step + 1), step + 1)
            await asyncio.to_thread(self._checkpoints.prune, self.options.keep_checkpoints)
        await self._job.evaluate(step)

    def _metrics(self, done: Collected) -> dict[str, float]:
        """What verl logged of a step, under our names, and its own as ``verl/…``."""
        step, tokens = done.step + 1, sum(row.trained_tokens for row in done.batch.rows)
        assert self._scratch is not None
        lines = (self._scratch / "metrics.jsonl").read_text(encoding="utf-8").rstrip("\n").split("\n")
        logged = next((line for line in map(json.loads, reversed(lines)) if line["step"] == step), None)
        if logged is None:
            log.warning("verl logged nothing of step %d", step)
            return {}
        said = {k: float(v) for k, v in logged["data"].items() if isinstance(v, int | float)}
        numbers = {k: v for k, v in said.items() if math.isfinite(v)}  # absent, where there was nothing
        # verl makes no step of a gradient that is not finite, and says so by its norm alone.
        failed = "actor/grad_norm" in said.keys() - numbers.keys()
        if failed:
            log.warning("step %d: the gradient is not finite; verl made no optimizer step of it", done.step)
        ours = {OURS[name]: value for name, value in numbers.items() if name in OURS}
        for name in ("grad_norm", "loss"):  # verl's means count mini-batches without a gradient, as 0
            if name in ours and done.optimizer_steps:
                ours[name] *= 1 + done.empty_steps / done.optimizer_steps
        if tokens and "actor/entropy" in numbers:  # verl sums it, as it does the loss
            ours["entropy"] = numbers["actor/entropy"] / tokens
        ours["tokens_stale"] = float(done.stale)
        ours["optimizer_steps"] = float(done.optimizer_steps - failed)
        ours["steps_skipped"] = float(failed)
        ours["steps_empty"] = float(done.empty_steps)
        ours["skipped"] = float(not tokens)
        return {**ours, **self._measured, **{f"verl/{name}": value for name, value in numbers.items()}}

    # --------------------------------------------------------------------------------------------- watching
    async def _alive(
        self, answer: asyncio.Future[dict[str, Any]], seconds: float | None = None
    ) -> dict[str, Any]:
        """``answer``, unless something of verl ends or the time is over before it comes."""
        assert self._child is not None
        ended = asyncio.ensure_future(asyncio.to_thread(self._child.wait))
        either: set[asyncio.Future[Any]] = {answer, ended, self._lost}
        try:
            await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
        if answer.done():
            return answer.result()
        if self._failure is not None:
            raise self._failure
        raise VerlFailed(self._what_failed(self._child))

    def _what_failed(self, child: Child) -> str:
        """What ended verl, and where its output is."""
        if self._lost.done():
            what = f"its {self._lost.result()['what']}"
        elif child.alive():
            what = f"did not get ready in {self.options.start_seconds:g} s (start_seconds)"
        else:
            what = f"ended with status {child.status}"
        if self._job is None:
            return f"verl: {what}; its output ends with:\n{child.tail()}"
        kept = keep_output(child.output, self._job.folder)
        again = "--resume goes on from the last checkpoint"
        return f"verl: {what}; its output: {kept}; {again}{child.error()}"


def keep_output(output: Path, folder: Path) -> Path:
    """Copy what verl printed into the run's folder, as ``verl.log``; return the copy's path."""
    kept = folder / "verl.log"
    try:
        shutil.copyfile(output, kept)
    except OSError as error:
        log.warning("verl's output %s was not kept in %s: %s", output, kept, error)
    return kept


OURS = {
    "actor/grad_norm": "grad_norm",
    "actor/pg_loss": "loss",
    "actor/pg_clipfrac": "clip_fraction",
    "actor/ppo_kl": "approx_kl",
    "actor/kl_reference": "kl_reference",
    "actor/lr": "lr",
    "critic/vf_loss": "value_loss",
    "critic/vf_explained_var": "value_explained",
    "critic/vf_clipfrac": "value_clip_fraction",
    "critic/grad_norm": "value_grad_norm",
}
"""verl's name of a metric → the one that the local driver uses."""
