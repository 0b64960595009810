"""vLLM as the engine: a child process that serves the policy, and takes new weights where it is.

The trainer's shared memory holds a whole safetensors file (``policy.shared``), which a link in a folder names
for vLLM: nothing is copied on the way. Without LoRA it loads all weights in place; with LoRA it keeps the
base that it loaded at its start, and each version is an adapter of the same name, A and B alone. Calls that
come meanwhile wait at the door (``vllm_child``), those under way are finished first. Invariant: what
:meth:`VllmEngine.update` returned is what every later answer is sampled from, and says.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentlightning.child_environment import child_environment
from agl_local.generation.orders import PauseMode
from agl_local.generation.request import EngineError
from agl_local.http.child import Child
from agl_local.network.lora import adapted, matrices
from agl_local.network.model import LanguageModel
from agl_local.policy.folder import state
from agl_local.policy.shared import Handover, SharedWeights
from agl_local.policy.weights import State

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Of adapters, which vLLM makes room for."""
OURS = frozenset(
    {
        "model", "served-model-name", "host", "port", "uds", "api-key", "middleware", "root-path", "headless",
        "api-server-count", "data-parallel-size", "dtype", "max-model-len", "max-num-seqs", "load-format",
        "quantization", "logprobs-mode", "generation-config", "override-generation-config", "hf-overrides",
        "enable-sleep-mode", "enable-lora", "max-lora-rank", "max-loras", "max-cpu-loras", "lora-modules",
        "lora-dtype", "speculative-config", "config", "ssl-keyfile", "ssl-certfile",
    }
)  # fmt: skip
"""Flags that the driver gives by itself, or that would make answers which cannot be trained."""
SETTINGS = {
    "VLLM_SERVER_DEV_MODE": "1",  # /collective_rpc, /reset_prefix_cache, /sleep: behind the door
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_USE_RUST_FRONTEND": "0",  # the door stands in Python's
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "600",  # seconds: the gateway closes idle connections, sooner
    # On, a tool call that the model begins of itself is finished under a grammar that no request names.
    "VLLM_ENFORCE_STRICT_TOOL_CALLING": "0",
}
DEFAULTS = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING", "HF_HUB_OFFLINE": "1"}
"""Unless the environment says otherwise."""


class Vllm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``backend.options.vllm``."""

    python: str = sys.executable
    """The interpreter that has vLLM; of an environment of its own, since vLLM pins its torch."""
    args: dict[str, Any] = {}
    """Flags of vLLM's server without dashes, such as ``{gpu-memory-utilization: 0.5}``; ``true`` is the bare
    flag, ``false`` its ``--no-`` form. Those that the driver gives are refused.
    """

    def __post_init__(self) -> None:
        for name in self.args:
            if name.replace("_", "-") in OURS or name.startswith("-"):
                raise ValueError(
                    f"vllm.args: {name!r} is not for you to set: the driver gives it, or answers could "
                    "not be trained with it"
                )

    def flags(self) -> list[str]:
        """``args`` as words of a command line."""
        words: list[str] = []
        for name, value in self.args.items():
            flag = name.replace("_", "-")
            if isinstance(value, bool):
                words.append(f"--{flag}" if value else f"--no-{flag}")
            elif isinstance(value, list):
                words += [f"--{flag}", *map(str, value)]
            else:
                words += [f"--{flag}", json.dumps(value) if isinstance(value, dict) else str(value)]
        return words


def for_vllm(model: LanguageModel) -> State:
    """What vLLM is sent of ``model``: A and B by the names of PEFT, or all weights. The output layer is among
    them where it is tied, too: vLLM does not load a tied one in place.
    """
    if layers := adapted(model.weights):
        return matrices(layers)
    tensors = state(model)
    return {"lm_head.weight": tensors["model.embed_tokens.weight"], **tensors}


class VllmEngine(Child):
    """vLLM's server of the policy folder ``path``, not started. ``trained``: whether weights come by
    :meth:`update` before it is asked anything; with ``adapter``, PEFT's configuration, these are A and B.

    ``threads``: on a CPU. ``parser``: the name that vLLM has for the policy's syntax of tool calls; None: its
    template has none. ``eos_ids``: what ends an answer.
    """

    tail = 12_000  # behind its cause vLLM prints the stacks of two processes
    patience = 30.0
    """Seconds until it is an error that vLLM keeps a cache of older weights."""

    def __init__(
        self, path: Path, *, name: str, settings: Vllm, slots: int, max_len: int, device: str, dtype: str,
        threads: int, weights: SharedWeights, token: str, trained: bool, eos_ids: Sequence[int],
        parser: str | None, adapter: Mapping[str, Any] | None = None, timeout: float = 900.0,
    ) -> None:  # fmt: skip
        super().__init__(name, timeout)
        self.weights = weights
        self.sleeps = device.startswith("cuda")
        """Whether it gives the memory of its device back while the trainer computes."""
        self._device, self._threads = device, threads
        self._api_key = token
        self._adapter = adapter
        self._loaded = False
        """Whether vLLM has an adapter of ours."""
        self._home: tempfile.TemporaryDirectory[str] | None = None
        self._eos_ids = list(eos_ids)
        self._whole = trained and adapter is None
        child = Path(__file__).with_name("vllm_child.py")
        self._command = [settings.python, "-P", str(child), "--model", str(path)]
        self._command += ["--host", "127.0.0.1", "--middleware", "__main__.Door", "--dtype", dtype]
        self._command += ["--max-model-len", str(max_len), "--max-num-seqs", str(slots)]
        self._command += ["--logprobs-mode", "processed_logprobs"]
        self._command += ["--served-model-name", f"{name}:base" if adapter else name]
        if adapter is not None:
            rank = next((rank for rank in RANKS if rank >= adapter["r"]), RANKS[-1])
            self._command += ["--enable-lora", "--max-loras", "1", "--max-lora-rank", str(rank)]
        if self._whole:
            untied = json.dumps({"tie_word_embeddings": False})
            self._command += ["--load-format", "dummy", "--hf-overrides", untied]
        if parser is not None:
            self._command += ["--enable-auto-tool-choice", "--tool-call-parser", parser]
        if self.sleeps:
            self._command.append("--enable-sleep-mode")
        if device == "cpu":  # there a prompt that is read in two parts and has a seed ends vLLM 0.32
            room = str(max(max_len, 4096))
            self._command += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", room]
        self._command += settings.flags()

    def start(self) -> str:
        """Start vLLM and wait until it serves; returns its address, ``http://127.0.0.1:port``. Raises
        EngineError with the end of its log when it dies or does not serve within ``timeout`` seconds.
        """
        if not Path("/proc/self/fd").is_dir():
            raise EngineError("engine: vllm needs Linux: weights reach vLLM through /proc")
        self._home = tempfile.TemporaryDirectory(prefix="agl-vllm-")
        # vLLM takes from here what ends an answer, and from the policy's folder no default of sampling.
        (Path(self._home.name) / "generation_config.json").write_text(
            json.dumps({"eos_token_id": self._eos_ids}), encoding="utf-8"
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{port}"
        command = [*self._command, "--port", str(port), "--generation-config", self._home.name]
        self._launch(command, self.weights.files, environment=self._environment())
        try:
            self._tell(self._api_key)
            self._await_health(port)
            self._post("/agl/open?version=0")  # no answer: vLLM has left the door out
            if self._whole:
                loads = {"overrides": {"load_config": {"load_format": "auto"}}}
                self._post("/collective_rpc", {"method": "update_config", "kwargs": loads})
        except BaseException:
            self.close(timeout=0.1)
            raise
        return self.address

    def died(self) -> str | None:
        """As of every child. The cause stands before vLLM's last words."""
        how = super().died()
        return None if how is None else f"{how}\n(vllm.log in the run's folder has all of it)"

    def update(self, handover: Handover, version: int, mode: PauseMode = "drain") -> int:
        """Serve what :attr:`weights` published; returns ``version``. In either ``mode`` calls under way are
        finished first: vLLM does not say which of its tokens are of which weights.
        """
        folder = self._folder(handover)
        self._post("/agl/close")
        if self._adapter is None:
            reload = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
            self._post("/collective_rpc", reload)
        else:
            if self._loaded:  # an adapter that is loaded in place would be read again for every batch
                self._post("/v1/unload_lora_adapter", {"lora_name": self.name})
            self._post("/v1/load_lora_adapter", {"lora_name": self.name, "lora_path": str(folder)})
            self._loaded = True
        self._forget()
        self._post(f"/agl/open?version={version}")
        return version

    def _forget(self) -> None:
        """Drop what vLLM keeps of older weights' prompts."""
        deadline = time.monotonic() + self.patience
        # It cannot while a call whose client has gone still holds a part.
        while not self._post("/reset_prefix_cache").get("success", True):
            if time.monotonic() >= deadline:
                raise EngineError(f"vLLM kept a cache of policy {self.name!r} that is of older weights")
            time.sleep(0.1)

    def sleep(self) -> None:
        """Give the device's memory back, once calls under way are finished; those that come wait."""
        self._post("/agl/close")
        self._post("/sleep?level=1")

    def wake_up(self) -> None:
        """Serve what was served before."""
        self._post("/wake_up")
        self._post("/agl/open")

    def close(self, timeout: float = 15.0) -> None:
        """End vLLM and all that it began. Idempotent."""
        super().close(timeout)
        if self._home is not None:
            self._home.cleanup()

    def _environment(self) -> dict[str, str]:
        found = {**DEFAULTS, **child_environment(os.environ), **SETTINGS}
        if self._device == "cpu":
            found |= {"OMP_NUM_THREADS": str(self._threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        elif number := self._device.partition(":")[2]:
            seen = found.get("CUDA_VISIBLE_DEVICES")
            found["CUDA_VISIBLE_DEVICES"] = seen.split(",")[int(number)] if seen else number
        return found

    def _await_health(self, port: int) -> None:
        deadline = time.monotonic() + self.timeout
        while time.monotonic() < deadline:
            if not self.alive():  # it was closed, or has died
                break
            with socket.socket() as asked:
                asked.settimeout(1.0)
                if (
                    asked.connect_ex(("127.0.0.1", port)) == 0
                    and self._ask("GET", "/health", None, {})[0] == 200
                ):
                    return
            time.sleep(0.25)
        else:
            raise self._broken(f"was not ready within {self.timeout:g} s")
        raise self._broken("ended before it served")

    def _folder(self, handover: Handover) -> Path:
        """A folder that names the published files for vLLM, which reads them by those that its process has
        inherited.
        """
        assert self._home is not None
        folder = Path(self._home.name) / f"weights-{handover.file}"
        folder.mkdir(exist_ok=True)
        first = "model.safetensors"
        if self._adapter is not None:
            first = "adapter_model.safetensors"
            (folder / "adapter_config.json").write_text(json.dumps(self._adapter), encoding="utf-8")
        links = {first: handover} | ({"constant.safetensors": handover.constant} if handover.constant else {})
        for name, of in links.items():
            link = folder / name
            if not link.is_symlink():
                link.symlink_to(f"/proc/{self.pid}/fd/{self.weights.files[of.file]}")
        return folder

    def _post(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What vLLM answers, as JSON; empty for a text. Raises EngineError with what it says of a refusal."""
        headers = {"Authorization": f"Bearer {self._api_key}", "Content-Type": "application/json"}
        sent = json.dumps(body).encode() if body is not None else None
        status, said = self._ask("POST", path, sent, headers)
        if status != 200:
            raise EngineError(f"vLLM, POST {path}: {status} {said.decode(errors='replace')[:2000]}")
        try:
            found = json.loads(said)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}
