"""A policy on disk and in memory: network, tokenizer and configuration in the layout of Hugging Face.

Invariant: ``load_policy(save_policy(p))`` has the same parameters bit for bit, and transformers reads the
same folder.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as _load_bytes, load_file, save as _save_bytes, save_file
from torch import Tensor, nn

from agentlightning.types import UsageError
from agentlightning.types.policy import missing_policy_message
from agl_local.network.config import (
    ConfigError,
    ForeignConfig,
    MissingFile,
    ModelConfig,
    UnsupportedModel,
    read_json,
)
from agl_local.network.model import CausalLM, LanguageModel
from agl_local.text.tokenizer import ChatTokenizer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
State = Mapping[str, Tensor]


class StateError(UsageError, ValueError):
    """Weights that do not fit the network: which names are missing, unknown or of another shape."""


@dataclass
class Policy:
    """A trainable model with its tokenizer; ``path`` is where it was loaded from, if anywhere."""

    model: LanguageModel
    tokenizer: ChatTokenizer
    config: ModelConfig | ForeignConfig
    path: Path | None = None


def init_model(config: ModelConfig, seed: int, std: float = 0.02) -> CausalLM:
    """A fresh network on the CPU: normal weights of deviation ``std``, norms 1, biases 0; same seed, same
    bits.
    """
    generator = torch.Generator().manual_seed(seed)
    model = CausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            elif parameter.dim() == 1:
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, std, generator=generator)
    return model


def load_policy(
    path: str | Path, device: str | torch.device = "cpu", dtype: str = "float32", fallback: bool = True
) -> Policy:
    """Read a model folder (config.json, safetensors, tokenizer.json …).

    Families without an own forward go through transformers (``hf.TransformersLM``, slower) unless
    ``fallback`` is False. Raises MissingFile, ConfigError or StateError, each naming the file and the key.
    """
    path = Path(path)
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is not one of {sorted(DTYPES)}")
    if not path.is_dir():
        raise MissingFile(missing_policy_message(path))
    raw = read_json(path / "config.json")
    tokenizer = read_tokenizer(path)
    try:
        config = ModelConfig.from_hf(raw)
    except UnsupportedModel as why:
        if not fallback:
            raise
        from agl_local.network.hf import load_transformers

        foreign = load_transformers(path, raw, DTYPES[dtype], why).to(device)
        return Policy(foreign, tokenizer, foreign.config, path)
    if tokenizer.vocab_size > config.vocab_size:
        raise ConfigError(
            f"{path}: the tokenizer has {tokenizer.vocab_size} tokens, "
            f"vocab_size of config.json is {config.vocab_size}"
        )
    model = CausalLM(config)
    load_state(model, _read_weights(path), where=str(path))
    model.to(device=device, dtype=DTYPES[dtype]).eval()
    return Policy(model, tokenizer, config, path)


def save_policy(policy: Policy, path: str | Path) -> Path:
    """Write ``policy`` as a Hugging Face model folder; files of the same names are replaced."""
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    config = policy.config.to_hf()
    dtype = next(policy.model.parameters()).dtype
    config["dtype"] = str(dtype).removeprefix("torch.")
    policy.tokenizer.save(path)
    _write_json(path / "config.json", config)
    eos = list(policy.tokenizer.eos_ids)
    _write_json(path / "generation_config.json", {"eos_token_id": eos, "do_sample": True, "temperature": 1.0})
    tensors = {name: tensor.cpu().contiguous() for name, tensor in state(policy.model).items()}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    shutil.copymode(path / "config.json", path / "model.safetensors")  # it is written for its owner alone
    return path


def state(model: nn.Module) -> dict[str, Tensor]:
    """Parameters by name; one that is shared (a tied output layer) appears once, as in Hugging Face files."""
    root = model.weights if isinstance(model, LanguageModel) else model
    return {name: parameter.detach() for name, parameter in root.named_parameters()}


def load_state(model: nn.Module, tensors: State, where: str = "weights") -> None:
    """Copy ``tensors`` into ``model``; raises StateError before anything is changed if they do not fit
    exactly.
    """
    own = state(model)
    # Some tied models are saved with their output layer all the same: an equal copy is no contradiction.
    tied = {n: t for n, t in tensors.items() if n == "lm_head.weight" and n not in own}
    problems = [f"missing {name}" for name in own if name not in tensors]
    problems += [f"unknown {name}" for name in tensors if name not in own and name not in tied]
    problems += [
        f"{name} is {tuple(tensors[name].shape)}, not {tuple(mine.shape)}"
        for name, mine in own.items()
        if name in tensors and tensors[name].shape != mine.shape
    ]
    for name, tensor in tied.items():
        if not torch.equal(tensor, tensors.get("model.embed_tokens.weight", tensor)):
            problems.append(f"{name} differs from the embedding it is tied to (tie_word_embeddings)")
    if problems:
        more = f" and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise StateError(f"{where} do not fit the network: " + "; ".join(problems[:8]) + more)
    with torch.no_grad():
        for name, mine in own.items():
            mine.copy_(tensors[name])


def state_bytes(model: nn.Module) -> bytes:
    """The parameters as safetensors bytes: what travels to an engine on a weight update."""
    return _save_bytes({name: tensor.cpu().contiguous() for name, tensor in state(model).items()})


def load_state_bytes(model: nn.Module, data: bytes) -> None:
    """The inverse of ``state_bytes``; raises StateError if ``data`` is no safetensors or does not fit."""
    load_state(model, parse_state(data))


def parse_state(data: bytes) -> dict[str, Tensor]:
    """Tensors of safetensors bytes, by name. Raises StateError when the bytes are something else."""
    try:
        return _load_bytes(data)
    except Exception as error:  # the Rust side raises its own exception class for every kind of damage
        raise StateError(f"not safetensors ({len(data)} bytes): {error}") from error


def fingerprint(model: nn.Module) -> str:
    """sha256 over names, types, shapes and bytes of all parameters: equal means equal bit for bit."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state(model).items()):
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _read_weights(path: Path) -> dict[str, Tensor]:
    index = path / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(read_json(index)["weight_map"].values()))
        files = [path / name for name in names]
        if any(file.parent != path for file in files):
            raise ConfigError(f"{index}: names files outside its own folder")
    else:
        files = [path / "model.safetensors"]
    tensors: dict[str, Tensor] = {}
    for file in files:
        if not file.exists():
            raise MissingFile(f"{file}: no such weights file (only safetensors are read)")
        try:
            tensors.update(load_file(file))
        except SafetensorError as error:
            raise StateError(f"{file}: not safetensors: {error}") from error
    return tensors


def read_tokenizer(path: Path) -> ChatTokenizer:
    try:
        return ChatTokenizer.load(path)
    except FileNotFoundError as error:
        raise MissingFile(str(error)) from None
    except (OSError, ValueError):
        raise
    except Exception as error:  # the Rust side raises Exception itself for a file it cannot read
        raise ConfigError(f"{path / 'tokenizer.json'}: not a tokenizer: {error}") from error


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
