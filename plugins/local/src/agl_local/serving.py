"""A policy folder behind an engine: how it is loaded, where the engine runs, and serving without training.

Invariant: an engine that was begun is closed, also one whose start was given up.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch

from agentlightning.types import LLM, UsageError
from agentlightning.types.work import PolicyFolder, missing_policy_message
from agl_local.generation.request import EngineError
from agl_local.http.engines import Engines, Serving
from agl_local.http.process import EngineProcess
from agl_local.http.thread import EngineThread
from agl_local.http.vllm_engine import Vllm, VllmEngine
from agl_local.network.config import ELSEWHERE, ConfigError, ModelConfig, UnsupportedModel, read_json
from agl_local.network.layout import realise
from agl_local.network.lora import peft_settings, targets_of
from agl_local.network.quantized import Kind
from agl_local.options import Options, pick_device, read_options
from agl_local.policy.folder import DEQUANTISED, DTYPES, Policy, load_policy, read_tokenizer
from agl_local.policy.shared import SharedWeights
from agl_local.text.rendering import TemplateError
from agl_local.text.tokenizer import ChatTokenizer

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


class Refused(UsageError, ValueError):
    """A recipe or a policy that this driver cannot work with, and why."""


def load(path: Path, device: str | torch.device, dtype: str, quantize: Kind | None = None) -> Policy:
    """``load_policy``, whose complaints about the folder are ones that a person can mend."""
    try:
        return load_policy(path, device, dtype, quantize=quantize)
    except UsageError:
        raise
    except (ValueError, OSError) as error:
        where = "" if str(path) in str(error) else f"{path}: "
        raise Refused(f"{where}{error}") from error


def refuse_without_template(tokenizer: ChatTokenizer, path: Path) -> None:
    """Raise Refused for a policy that no agent can talk to: each of its calls would be an error. Warn of one
    that agents with tools cannot use.
    """
    if tokenizer.template is None:
        raise Refused(
            f"{path}: the policy has no chat template, so no agent could talk to it (a base model has none): "
            "put one into the folder as chat_template.jinja, or into tokenizer_config.json (chat_template), "
            "e.g. that of the same family's instruct model"
        )
    try:
        tokenizer.apply([{"role": "user", "content": "Hello"}])
    except TemplateError as error:
        raise Refused(f"{path}: the policy's chat template cannot be used: {error}") from None
    if tokenizer.form.syntax is None:
        _LOG.warning(
            "%s: agents with tools cannot use this policy: %s (`agl policy check` tries all cases)",
            path,
            tokenizer.form.problem,
        )


def make_engines(path: Path, name: str, o: Options, loaded: Policy | None = None) -> Engines:
    """The engines of a policy folder, not started. ``loaded``: the policy in float32, if it is in memory; its
    quantised matrices are those of an engine in this process, too.

    Their key is told by :meth:`.Engines.llm` alone, to the gateway: no agent asks them directly.
    """
    weights, token = SharedWeights(o.dtype), secrets.token_urlsafe(32)
    each = [_make_engine(path, name, o, loaded, weights, token) for _ in range(o.engines)]
    return Engines(each, weights, token)


def _make_engine(
    path: Path, name: str, o: Options, loaded: Policy | None, weights: SharedWeights, token: str
) -> Serving:
    device = pick_device(o.device)
    # Other engines get the sums, which are faster to compute with than three matrices; or their base is not
    # theirs alone, and they are made in ``bases``.
    lora = None if o.quantize is None else o.lora
    if o.engine == "vllm":
        return _make_vllm(path, name, o, loaded, weights, token)
    if o.engine == "thread":
        served = load(path, device, o.dtype, o.quantize) if loaded is None else loaded
        if o.dtype != "float32" and loaded is not None:
            served = replace(loaded, model=realise(loaded.model, DTYPES[o.dtype], loaded.model.device))
        return EngineThread(
            served,
            lora=lora,
            name=name,
            slots=o.max_num_seqs,
            max_len=o.max_len,
            deterministic=o.deterministic,
            weights=weights,
            token=token,
        )
    return EngineProcess(
        path,
        name=name,
        quantize=o.quantize,
        lora=lora,
        threads=o.serving_threads,
        slots=o.max_num_seqs,
        max_len=o.max_len,
        device=device,
        dtype=o.dtype,
        deterministic=o.deterministic,
        weights=weights,
        token=token,
    )


def _make_vllm(
    path: Path, name: str, o: Options, loaded: Policy | None, weights: SharedWeights, token: str
) -> VllmEngine:
    try:
        config = ModelConfig.from_hf(read_json(path / "config.json"))
        if config.arch not in ELSEWHERE:
            raise UnsupportedModel(f"model_type {config.arch!r} was not tried there")
    except UnsupportedModel as error:
        raise Refused(
            f"{path}: engine: vllm serves models of the Qwen2, Qwen3 and Llama families: {error}"
        ) from None
    settings = o.vllm or Vllm()
    tokenizer = read_tokenizer(path) if loaded is None else loaded.tokenizer
    syntax, parser = tokenizer.form.syntax, settings.args.get("tool-call-parser")
    if parser is None and syntax is not None:
        if not any("<tool_call>" in mark for mark in syntax.opens):
            raise Refused(
                f"{path}: engine: vllm: the template writes tool calls in a syntax for which vLLM's name is "
                "not known here: give it as backend.options.vllm.args.tool-call-parser, such as llama3_json"
            )
        parser = "hermes"
    adapter = None
    if loaded is not None and o.lora is not None:
        adapter = peft_settings(o.lora, targets_of(loaded.model, o.lora))
    return VllmEngine(
        path.absolute(),
        name=name,
        settings=settings,
        slots=o.max_num_seqs,
        max_len=min(o.max_len or 2048, config.max_positions),
        device=pick_device(o.device),
        dtype=o.dtype,
        threads=o.serving_threads,
        weights=weights,
        token=token,
        trained=loaded is not None,
        eos_ids=tokenizer.eos_ids,
        parser=parser,
        adapter=adapter,
    )


def as_served(path: Path, options: Options) -> Options:
    """The options for a folder that nobody trains: a run's sums over a quantised base are what it computed
    with, and quantised again they would be another policy.
    """
    file = path / "config.json"
    summed = options.quantize and file.is_file() and DEQUANTISED in read_json(file)
    return msgspec.structs.replace(options, quantize=None) if summed else options


class LocalServer:
    """Serves a model folder under its name, as it is. Of its options those of the engine count, but for
    ``quantize``: what a run has trained beside quantised matrices is in the folder's sums.
    """

    def __init__(self, policy: PolicyFolder) -> None:
        self.path = Path(policy.path)
        self.name = policy.name
        self.options: Options = msgspec.structs.replace(read_options(policy.options), quantize=None)
        self._engines: Engines | None = None
        self._closed = False
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="local-server")

    async def start(self) -> LLM:
        """Serve it. Raises UsageError for a folder that cannot be used."""
        try:
            return await self._call(self._open)
        except (ConfigError, EngineError, OSError) as error:
            if isinstance(error, UsageError):
                raise
            raise Refused(f"policy {self.name!r} ({self.path}) cannot be served: {error}") from error

    async def close(self) -> None:
        """Stop the engine, also one that is still starting. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._engines is not None:
            await asyncio.to_thread(self._engines.close)
        last = self._worker.submit(self._shut)
        self._worker.shutdown(wait=False)
        await asyncio.shield(asyncio.wrap_future(last))

    async def _call(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, function, *args)

    def _open(self) -> LLM:
        if self._engines is not None or self._closed:
            raise RuntimeError(f"the server of policy {self.name!r} has been started or closed already")
        if not self.path.is_dir():  # what is no policy's folder is said here, not by a child
            raise Refused(missing_policy_message(self.path))
        read_json(self.path / "config.json")
        refuse_without_template(read_tokenizer(self.path), self.path)
        engines = self._engines = make_engines(self.path, self.name, self.options)
        if self._closed:  # while the policy was loaded
            raise RuntimeError(f"the server of policy {self.name!r} has been closed")
        engines.start()
        return engines.llm(self.name)

    def _shut(self) -> None:
        engines, self._engines = self._engines, None
        if engines is not None:
            engines.close()
