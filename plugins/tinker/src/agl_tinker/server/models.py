"""The models that clients train: their calls in order, and a folder that outlives the process.

A call is written into its model's journal before the client is told its number. After each change of the
weights the model is written whole, with the answers to its last calls, and the journal up to there is
removed. Invariants: calls run in the order of their numbers, each once, whatever order they arrive in and
however often they are sent; a process that is killed at any moment and started again on the same folder
answers every call that was taken as if it had never ended.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import re
import shutil
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import msgspec
import torch

from agentlightning.types.base import RequestRefused
from agl_local.network.sampling import random_bits
from agl_local.policy.adapters import save_adapters
from agl_local.policy.folder import Policy
from agl_tinker.server.adapter import AdamParams, Adapter, LoraConfig
from agl_tinker.server.wire import read_training_call

KEPT = 256
"""Answers of a model that are kept for clients that ask for them, or ask again."""
EPHEMERAL = 16
"""Weights saved for sampling without a name that are kept of a model, the newest."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MODEL_ID = re.compile(r"(s-[0-9a-f]{16}):train:([0-9]{1,9})")
_PATH = re.compile(r"tinker://(?P<model>[^/]+)/(?P<kind>weights|sampler_weights)/(?P<name>[^/]+)")
_REFUSALS = (RequestRefused, msgspec.ValidationError)
_log = logging.getLogger(__name__)


class Answer(msgspec.Struct, frozen=True):
    """The result of a call: JSON, or protobuf."""

    body: bytes
    proto: bool = False


def answer(**fields: Any) -> Answer:
    return Answer(msgspec.json.encode(fields))


def failed(error: BaseException) -> Answer:
    """The answer to a call that could not be carried out: whose mistake it was, and what it is."""
    known = isinstance(error, _REFUSALS)
    text = str(error) if known else f"{type(error).__name__}: {error}"
    return answer(error=text, category="user" if known else "server")


def write(path: Path, body: bytes) -> None:
    """Write a file whole or not at all."""
    draft = path.with_name(f"{path.name}.draft")
    draft.write_bytes(body)
    os.replace(draft, path)


def checked_name(name: object) -> str:
    """A name that a client gave to weights. Raises RequestRefused."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise RequestRefused(
            400, "name", f"{name!r} is no name for weights: letters, digits, dot, dash, underscore"
        )
    return name


class Model:
    """One model in its ``folder``. ``submit`` and ``result`` are called on the event loop; everything that
    computes, the rest, runs in ``worker``, whose one thread all models share.
    """

    def __init__(self, model_id: str, folder: Path, base: Policy, worker: Executor) -> None:
        self.id, self.folder = model_id, folder
        self._base, self._worker = base, worker
        self._adapter: Adapter | None = None
        self._done = 0
        """The number of the last call that is answered."""
        self._sent = 0
        """The number of the last call that the worker has."""
        self._waiting: dict[int, tuple[str, bytes]] = {}
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self._kept: dict[int, Answer] = {}
        self._loop = asyncio.get_running_loop()

    @property
    def adapter(self) -> Adapter:
        assert self._adapter is not None, "a model is used after it was made or opened"
        return self._adapter

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._waiting and self._sent == self._done

    async def make(self, config: LoraConfig, source: Path | None = None, optimizer: bool = False) -> None:
        """Write a new model, with the weights of ``source`` if there is one."""

        def do() -> None:
            self._adapter = Adapter(self._base, config)
            if source is not None:
                self._adapter.load(read_state(source), optimizer)
            self._snapshot()

        await self._loop.run_in_executor(self._worker, do)

    async def open(self) -> None:
        """The model as its folder has it: the calls in the journal are carried out again."""

        def do() -> tuple[int, dict[int, Answer]]:
            state = read_state(self.folder / "model.pt")
            self._adapter = Adapter(self._base, msgspec.json.decode(state["config"], type=LoraConfig))
            self._adapter.load(state, optimizer=True)
            answers = bytes(state["answers"].numpy())
            return int(state["seq"]), msgspec.msgpack.decode(answers, type=dict[int, Answer])

        self._done, self._kept = await self._loop.run_in_executor(self._worker, do)
        self._sent = self._done
        for seq, kept in self._kept.items():
            self._answers[seq] = self._loop.create_future()
            self._answers[seq].set_result(kept)
        for file in sorted((self.folder / "journal").iterdir()):
            number, _, kind = file.name.partition(".")
            if int(number) > self._done and kind in _KINDS:  # else a draft
                self._take(int(number), kind, file.read_bytes())
        self._pump()

    def submit(self, seq: int, kind: str, body: bytes) -> None:
        """Take call number ``seq``; one that was taken before is not taken again."""
        if seq < 1:
            raise RequestRefused(400, "seq_id", f"seq_id must be at least 1, got {seq}")
        if seq <= self._done or seq in self._answers:
            return
        write(self.folder / "journal" / f"{seq:09d}.{kind}", body)
        self._take(seq, kind, body)
        self._pump()

    async def result(self, seq: int, seconds: float) -> Answer | None:
        """The answer to call ``seq``; ``None``: it is not there after ``seconds``. Raises RequestRefused for
        a call that was never taken, or whose answer is no longer kept.
        """
        if seq not in self._answers:
            raise RequestRefused(
                404, "future", f"model {self.id} has no answer to call {seq}: it keeps {KEPT}"
            )
        done, _ = await asyncio.wait({self._answers[seq]}, timeout=seconds)
        return self._answers[seq].result() if done else None

    def _take(self, seq: int, kind: str, body: bytes) -> None:
        self._waiting[seq] = (kind, body)
        self._answers[seq] = self._loop.create_future()

    def _pump(self) -> None:
        """Give the worker the calls that are next, in order."""
        while self._sent + 1 in self._waiting:
            self._sent += 1
            kind, body = self._waiting.pop(self._sent)
            self._worker.submit(self._carry_out, self._sent, kind, body)

    # ----------------------------------------------------------------------------------- in the worker thread
    def _carry_out(self, seq: int, kind: str, body: bytes) -> None:
        try:
            found = self._kept[seq] = _KINDS[kind](self, seq, body)
            while len(self._kept) > KEPT:
                self._kept.pop(next(iter(self._kept)))
            if kind in ("optim_step", "load_weights"):
                self._snapshot(seq)
        except Exception as error:
            if not isinstance(error, _REFUSALS):
                _log.exception("model %s: call %d (%s) failed", self.id, seq, kind)
            found = self._kept[seq] = failed(error)
        self._loop.call_soon_threadsafe(self._settle, seq, found)

    def _settle(self, seq: int, found: Answer) -> None:
        self._done = seq
        self._answers[seq].set_result(found)
        for old in [n for n in self._answers if n <= seq - KEPT]:
            del self._answers[old]

    def _snapshot(self, seq: int = 0) -> None:
        """Write the model whole, after call ``seq``, and remove the journal up to there."""
        answers = msgspec.msgpack.encode(self._kept)
        state = {
            **self.adapter.state(optimizer=True),
            "config": msgspec.json.encode(self.adapter.config).decode(),
            "answers": torch.frombuffer(bytearray(answers), dtype=torch.uint8),
            "seq": seq,
        }
        write_state(self.folder / "model.pt", state)
        for file in (self.folder / "journal").iterdir():
            if int(file.name.partition(".")[0]) <= seq:
                file.unlink()

    def _forward_backward(self, seq: int, body: bytes) -> Answer:
        return Answer(self.adapter.forward_backward(read_training_call(body)), proto=True)

    def _optim_step(self, seq: int, body: bytes) -> Answer:
        given = msgspec.json.decode(body)
        if "adam_params" not in given:
            raise RequestRefused(400, "optimizer", "this server has AdamW only: give adam_params")
        params = msgspec.convert(given["adam_params"], AdamParams)
        return answer(metrics=self.adapter.optim_step(params), type="optim_step")

    def _save_weights(self, seq: int, body: bytes) -> Answer:
        given = msgspec.json.decode(body)
        name = checked_name(given.get("path") or f"step-{seq}")
        path = self.folder / "weights" / f"{name}.pt"
        if path.exists() and not given.get("overwrite") and read_state(path)["seq"] != seq:
            raise RequestRefused(
                409, "exists", f"weights named {name!r} exist already: give another name, or set overwrite"
            )
        write_state(path, {**self._saved(), **self.adapter.state(optimizer=True), "seq": seq})
        return answer(path=f"tinker://{self.id}/weights/{name}", type="save_weights")

    def _save_weights_for_sampler(self, seq: int, body: bytes) -> Answer:
        given = msgspec.json.decode(body)
        number = given.get("sampling_session_seq_id")
        name = checked_name(given.get("path") or f"ephemeral.{seq:09d}")
        write_state(
            self.folder / "sampler_weights" / f"{name}.pt",
            {**self._saved(), **self.adapter.state(optimizer=False), "seq": seq},
        )
        path = f"tinker://{self.id}/sampler_weights/{name}"
        if given.get("path"):
            return answer(path=path, type="save_weights_for_sampler")
        for old in sorted((self.folder / "sampler_weights").glob("ephemeral.*.pt"))[:-EPHEMERAL]:
            old.unlink()
        session = f"{self.id.partition(':')[0]}:sample:{int(number)}"
        write(self.folder.parents[2] / "samplers" / session, path.encode())
        return answer(sampling_session_id=session, type="save_weights_for_sampler")

    def _save_weights_external(self, seq: int, body: bytes) -> Answer:
        given = msgspec.json.decode(body)
        if given.get("age_encryption_recipients"):
            raise RequestRefused(400, "encryption", "this server encrypts nothing: leave the recipients out")
        name = checked_name(given.get("path"))
        folder, draft = self.folder / "external_weights" / name, self.folder / "external_weights" / f".{seq}"
        for old in (draft, folder):
            shutil.rmtree(old, ignore_errors=True)
        save_adapters(self.adapter.network, draft)
        draft.rename(folder)
        return answer(path=f"tinker://{self.id}/external_weights/{name}", type="save_weights_external")

    def _load_weights(self, seq: int, body: bytes) -> Answer:
        given = msgspec.json.decode(body)
        source = saved_at(self.folder.parents[2], given["path"])
        self.adapter.load(read_state(source), bool(given.get("optimizer")))
        return answer(path=given["path"], model_id=self.id, type="load_weights")

    def _saved(self) -> dict[str, Any]:
        return {"config": msgspec.json.encode(self.adapter.config).decode()}


_KINDS: dict[str, Callable[[Model, int, bytes], Answer]] = {
    "forward_backward": Model._forward_backward,
    "optim_step": Model._optim_step,
    "save_weights": Model._save_weights,
    "save_weights_for_sampler": Model._save_weights_for_sampler,
    "save_weights_external": Model._save_weights_external,
    "load_weights": Model._load_weights,
}
"""What the journal holds, by the route that it came by."""


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """How a model was made, written before the client is told its id."""

    config: LoraConfig
    source: str | None = None
    """Saved weights that it begins with."""
    optimizer: bool = False
    """Whether it also begins with their optimizer."""


class Models:
    """All models in ``root``; those that are in use are in memory."""

    def __init__(self, root: Path, base: Policy, worker: Executor) -> None:
        self.root, self.base, self.worker = root, base, worker
        self._open: dict[str, asyncio.Task[Model]] = {}
        for name in ("sessions", "models", "samplers"):
            (root / name).mkdir(parents=True, exist_ok=True)

    def create(
        self,
        session: str,
        number: int,
        config: LoraConfig,
        source: str | None = None,
        optimizer: bool = False,
    ) -> str:
        """Begin to make model ``number`` of a session, and return its id; :meth:`get` waits for it. A model
        that was made before stays as it is.
        """
        model_id = f"{session}:train:{number}"
        folder = folder_of(self.root, model_id)
        if not (folder / "recipe.json").exists():
            if source is not None:
                saved = read_state(saved_at(self.root, source))
                config = msgspec.json.decode(saved["config"], type=LoraConfig)
            config.lora()
            if config.seed is None:
                config = msgspec.structs.replace(config, seed=random_bits(63))
            for name in ("journal", "weights", "sampler_weights"):
                (folder / name).mkdir(parents=True, exist_ok=True)
            recipe = Recipe(config=config, source=source, optimizer=optimizer)
            write(folder / "recipe.json", msgspec.json.encode(recipe))
        self._begin(model_id)
        return model_id

    async def get(self, model_id: str) -> Model:
        """The model, from its folder if it is not in memory. Raises RequestRefused for one that is not."""
        task = self._begin(model_id)
        try:
            return await asyncio.shield(task)
        except Exception:
            self._open.pop(model_id, None)
            raise

    def unload(self, session: str) -> bool:
        """Take the models of a session that has ended from memory, but for those that are busy; their folders
        stay. Returns whether none is left.
        """
        mine = {name: task for name, task in self._open.items() if name.startswith(f"{session}:")}
        for model_id, task in mine.items():
            if task.done() and (task.exception() is not None or task.result().idle):
                del self._open[model_id]
        return not any(model_id in self._open for model_id in mine)

    def _begin(self, model_id: str) -> asyncio.Task[Model]:
        if model_id not in self._open:
            folder = folder_of(self.root, model_id)
            if not (folder / "recipe.json").exists():
                raise RequestRefused(404, "model", f"there is no model {model_id!r}")
            self._open[model_id] = asyncio.ensure_future(self._opened(model_id, folder))
        return self._open[model_id]

    async def _opened(self, model_id: str, folder: Path) -> Model:
        model = Model(model_id, folder, self.base, self.worker)
        if not (folder / "model.pt").exists():
            recipe = msgspec.json.decode((folder / "recipe.json").read_bytes(), type=Recipe)
            source = None if recipe.source is None else saved_at(self.root, recipe.source)
            await model.make(recipe.config, source, recipe.optimizer)
        await model.open()
        return model


def folder_of(root: Path, model_id: str) -> Path:
    """Where a model is. Raises RequestRefused for what is no model's id."""
    found = _MODEL_ID.fullmatch(model_id)
    if found is None:
        raise RequestRefused(404, "model", f"there is no model {model_id!r}")
    return root / "models" / found[1] / found[2]


def saved_at(root: Path, path: str) -> Path:
    """The file of weights with the address ``path``. Raises RequestRefused."""
    found = _PATH.fullmatch(path)
    place = None
    if found is not None and NAME.fullmatch(found["name"]):
        place = folder_of(root, found["model"]) / found["kind"] / f"{found['name']}.pt"
    if place is None or not place.exists():
        raise RequestRefused(404, "weights", f"there are no weights {path!r}")
    return place


def read_state(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(path, weights_only=True)
    return found


def write_state(path: Path, state: dict[str, Any]) -> None:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write(path, buffer.getvalue())
