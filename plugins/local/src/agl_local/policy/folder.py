"""A policy on disk and in memory: network, tokenizer and configuration in the layout of Hugging Face.

Invariant: ``load_policy(save_policy(p))`` has the same parameters bit for bit, and transformers reads the
same folder.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as _load_bytes, save_file
from torch import Tensor, nn

from agentlightning.types import UsageError
from agentlightning.types.work import missing_policy_message
from agl_local.network.config import (
    OWN,
    ConfigError,
    ForeignConfig,
    MissingFile,
    ModelConfig,
    UnsupportedModel,
    read_json,
)
from agl_local.network.layout import realise
from agl_local.network.linear import Linear
from agl_local.network.lora import MATRICES, adapted
from agl_local.network.model import CausalLM, LanguageModel
from agl_local.network.quantized import Kind, Quantized
from agl_local.text.tokenizer import ChatTokenizer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
State = Mapping[str, Tensor]
DEQUANTISED = "dequantised_from"
"""The key of a config.json that says in what the matrices were of the policy that was saved."""
_LOG = logging.getLogger(__name__)
_PORTION = 64 * 2**20
"""Bytes of a weights file that are in memory while it is read."""


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
    path: str | Path,
    device: str | torch.device = "cpu",
    dtype: str = "float32",
    fallback: bool = True,
    quantize: Kind | None = None,
) -> Policy:
    """Read a model folder (config.json, safetensors, tokenizer.json …).

    Families without an own forward go through transformers (``hf.TransformersLM``, slower) unless
    ``fallback`` is False. ``quantize``: the matrices of the layers are kept in this, made from the numbers of
    the files whatever ``dtype`` is, of which one matrix is in memory at a time. Raises MissingFile,
    ConfigError or StateError, each naming the file and the key.
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
        if quantize is not None:
            raise UnsupportedModel(f"quantize: it needs one of the {OWN}: {why}") from why
        if not fallback:
            raise
        from agl_local.network.hf import load_transformers

        foreign = load_transformers(path, raw, DTYPES[dtype], why).to(device)
        return Policy(foreign, tokenizer, foreign.config, path)
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path / 'config.json'}: {error}") from error
    if tokenizer.vocab_size > config.vocab_size:
        raise ConfigError(
            f"{path}: the tokenizer has {tokenizer.vocab_size} tokens, "
            f"vocab_size of config.json is {config.vocab_size}"
        )
    with torch.device("meta"):
        shape = CausalLM(config)
        if quantize is not None:
            shape.quantize(quantize)
            _warn_of_a_sum(path, raw, quantize)
    model = realise(shape, DTYPES[dtype], torch.device(device))
    _load_files(model, _weight_files(path), where=str(path))
    return Policy(model.eval(), tokenizer, config, path)


def save_policy(policy: Policy, path: str | Path) -> Path:
    """Write ``policy`` as a Hugging Face model folder; files of the same names are replaced."""
    path = save_description(policy, path)
    write_tensors(state(policy.model), path / "model.safetensors")
    return path


def save_description(policy: Policy, path: str | Path) -> Path:
    """Write the files of a model folder that are not weights: configuration and tokenizer."""
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    config = policy.config.to_hf()
    dtype = next(policy.model.parameters()).dtype
    config["dtype"] = str(dtype).removeprefix("torch.")
    if policy.model.base_kind is not None:
        config[DEQUANTISED] = policy.model.base_kind
    policy.tokenizer.save(path)
    _write_json(path / "config.json", config)
    eos = list(policy.tokenizer.eos_ids)
    _write_json(path / "generation_config.json", {"eos_token_id": eos, "do_sample": True, "temperature": 1.0})
    return path


def write_tensors(tensors: State, file: Path) -> None:
    """Write a weights file beside a config.json."""
    on_cpu = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    save_file(on_cpu, file, metadata={"format": "pt"})
    shutil.copymode(file.parent / "config.json", file)  # it is written for its owner alone


def state(model: nn.Module) -> State:
    """Parameters by name; one that is shared (a tied output layer) appears once, as in Hugging Face files.
    Among them are constants of some families that no gradient reaches (buffers of the file).

    The weight of a layer with adapters (``network.lora``) or of a quantised one is the matrix that it
    computes with, made when it is asked for.
    """
    root = model.weights if isinstance(model, LanguageModel) else model
    own = {name: parameter.detach() for name, parameter in root.named_parameters()} | _buffers(root)
    made = _made(root)
    return _Merged(own, made, next(iter(own.values())).dtype) if made else own


def published(model: LanguageModel) -> State:
    """What engines are sent of ``model`` after an update, and take in place of what they have: its
    :func:`state`, or A and B alone beside a base that stays as it is. That the engine has; a sum would have
    to be quantised anew, and would be another policy, or would be memory that other policies do not share.
    """
    if not model.fixed:
        return state(model)
    parameters = model.weights.named_parameters()
    return {name: matrix.detach() for name, matrix in parameters if name.rpartition(".")[2] in MATRICES}


def constant(model: LanguageModel) -> set[str]:
    """Names in :func:`state` of the weights that training leaves as they are."""
    summed = {f"{name}.weight" for name in adapted(model.weights)}
    frozen = {name for name, parameter in model.weights.named_parameters() if not parameter.requires_grad}
    return (frozen | _made(model.weights).keys() | _buffers(model.weights).keys()) - summed


def _buffers(root: nn.Module) -> dict[str, Tensor]:
    """Tensors of the weights file that are no parameters; networks of our own have none."""
    buffers = dict(root.named_buffers())
    stored = root.state_dict().keys() if buffers else ()
    return {name: buffer for name, buffer in buffers.items() if name in stored}


def _made(root: nn.Module) -> dict[str, Linear]:
    """The layers whose matrix is no parameter, by the name of their weight."""
    layers = ((name, module) for name, module in root.named_modules() if isinstance(module, Linear))
    return {f"{name}.weight": layer for name, layer in layers if not layer.bare}


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    """Those of :func:`state`, of which nothing is computed."""
    root = model.weights if isinstance(model, LanguageModel) else model
    own = {name: p.shape for name, p in root.named_parameters() if name.rpartition(".")[2] not in MATRICES}
    return own | {
        name: torch.Size((layer.out_features, layer.in_features)) for name, layer in _made(root).items()
    }


def dequantised_bytes(model: LanguageModel) -> int:
    """Bytes in :func:`state` of the matrices that ``model`` has quantised."""
    layers = (layer for layer in model.modules() if isinstance(layer, Linear) and layer.quantized)
    return sum(layer.out_features * layer.in_features for layer in layers) * model.dtype.itemsize


class _Merged(Mapping[str, Tensor]):
    """``own`` without the matrices of adapters, and with those that ``layers`` compute with, in ``dtype``;
    only one of these is in memory.
    """

    def __init__(self, own: State, layers: Mapping[str, Linear], dtype: torch.dtype) -> None:
        kept = {name: value for name, value in own.items() if name.rpartition(".")[2] not in MATRICES}
        self._layers, self._dtype = layers, dtype
        self._own: dict[str, Tensor | None] = {**kept, **{n: None for n in layers if n not in kept}}

    def __getitem__(self, name: str) -> Tensor:
        layer = self._layers.get(name)
        if layer is not None:
            return layer.merged().to(self._dtype)
        found = self._own[name]
        assert found is not None  # only layers have none
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)


def load_state(model: LanguageModel, tensors: State, where: str = "weights") -> None:
    """Copy ``tensors``, which another network has :func:`published`, into ``model``; raises StateError before
    anything is changed if they do not fit exactly.
    """
    if not model.fixed and adapted(model):
        raise StateError(f"{where} cannot replace those of a network with adapters: they are sums")
    check_state(model, tensors, where)
    with torch.no_grad():
        for name, mine in published(model).items():
            mine.copy_(tensors[name])


def check_state(model: LanguageModel, tensors: State, where: str = "weights") -> None:
    """Raise StateError unless ``tensors`` are those that ``model`` takes by name and shape."""
    own = {name: mine.shape for name, mine in published(model).items()}
    _refuse_misfit(own, {name: tensor.shape for name, tensor in tensors.items()}, where)
    for name in tensors.keys() - own.keys():  # only a tied output layer is let pass
        _refuse_untied(tensors[name], tensors["model.embed_tokens.weight"], where)


def _refuse_misfit(own: Mapping[str, torch.Size], shapes: Mapping[str, Sequence[int]], where: str) -> None:
    """Raise StateError unless tensors of these ``shapes`` are those of a network with ``own``."""
    # Some tied models are saved with their output layer all the same: an equal copy is no contradiction.
    tied = {"lm_head.weight"} - own.keys() if "model.embed_tokens.weight" in own else set()
    problems = [f"missing {name}" for name in own if name not in shapes]
    problems += [f"unknown {name}" for name in shapes if name not in own and name not in tied]
    problems += [
        f"{name} is {tuple(shapes[name])}, not {tuple(mine)}"
        for name, mine in own.items()
        if name in shapes and torch.Size(shapes[name]) != mine
    ]
    if problems:
        more = f" and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise StateError(f"{where} do not fit the network: " + "; ".join(problems[:8]) + more)


def _refuse_untied(output: Tensor, embedding: Tensor, where: str) -> None:
    if not torch.equal(output, embedding):
        raise StateError(
            f"{where} do not fit the network: lm_head.weight differs from the embedding it is tied to "
            "(tie_word_embeddings)"
        )


def parse_state(data: bytes) -> dict[str, Tensor]:
    """Tensors of safetensors bytes, by name. Raises StateError when the bytes are something else."""
    try:
        return _load_bytes(data)
    except Exception as error:  # the Rust side raises its own exception class for every kind of damage
        raise StateError(f"not safetensors ({len(data)} bytes): {error}") from error


def fingerprint(model: nn.Module) -> str:
    """sha256 over names, types, shapes and bytes of all parameters: equal means equal bit for bit."""
    return _digest(state(model))


def stored_fingerprint(path: Path) -> str:
    """The :func:`fingerprint` of the model folder ``path`` in float32, of which one tensor is in memory at a
    time.
    """
    return _digest(stored_state(path))


def stored_state(path: Path) -> State:
    """The tensors of the model folder ``path``, each read in float32 when it is asked for; a tied output
    layer is left out. Raises MissingFile or StateError.
    """
    found: dict[str, Path] = {}
    for file in _weight_files(path):
        with _opened(file) as content:
            found.update(dict.fromkeys(content.keys(), file))
    if read_json(path / "config.json").get("tie_word_embeddings", False):
        found.pop("lm_head.weight", None)
    return _Stored(found)


class _Stored(Mapping[str, Tensor]):
    """The tensors of ``files`` by name, each read in float32 when it is asked for."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files

    def __getitem__(self, name: str) -> Tensor:
        return _one([self._files[name]], name).float()

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def _digest(tensors: State) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _weight_files(path: Path) -> list[Path]:
    index = path / "model.safetensors.index.json"
    if not index.exists():
        return [path / "model.safetensors"]
    files = [path / name for name in sorted(set(read_json(index)["weight_map"].values()))]
    if any(file.parent != path for file in files):
        raise ConfigError(f"{index}: names files outside its own folder")
    return files


def _warn_of_a_sum(path: Path, config: Mapping[str, Any], kind: Kind) -> None:
    if before := config.get(DEQUANTISED):
        _LOG.warning(
            "%s: its matrices are sums over a base in %s; in %s they are other matrices, and it is another "
            "policy",
            path,
            before,
            kind,
        )


def _load_files(model: LanguageModel, files: Sequence[Path], where: str) -> None:
    """Copy the tensors of ``files`` into ``model``, of which no second copy is in memory at any time."""
    shapes: dict[str, list[int]] = {}
    for file in files:
        with _opened(file) as content:
            shapes.update({name: content.get_slice(name).get_shape() for name in content.keys()})  # noqa: SIM118
    _refuse_misfit(_shapes(model), shapes, where)
    own, made, kind = dict(model.named_parameters()), _made(model), model.base_kind
    if "lm_head.weight" in shapes.keys() - own.keys():
        _refuse_untied(_one(files, "lm_head.weight"), _one(files, "model.embed_tokens.weight"), where)
    with torch.no_grad():
        for file in files:
            for names in _portions(file):
                # Opened anew for each portion: pages of a file stay in memory for as long as it is open.
                with _opened(file) as content:
                    for name in names:
                        if name in own:
                            own[name].copy_(content.get_tensor(name))
                        elif name in made and kind is not None:
                            made[name].quantized = Quantized.of(
                                content.get_tensor(name).to(model.device), kind
                            )


def _one(files: Sequence[Path], name: str) -> Tensor:
    """The tensor ``name`` of that one of ``files`` that has it."""
    for file in files:
        with _opened(file) as content:
            if name in content.keys():  # noqa: SIM118 - a handle of safetensors, no mapping
                found: Tensor = content.get_tensor(name)
                return found
    raise StateError(f"none of {[str(file) for file in files]} has {name}")


def _portions(file: Path) -> Iterator[list[str]]:
    """Names of the tensors of ``file`` in their order there, about ``_PORTION`` bytes at a time."""
    with _opened(file) as content:
        names = list(content.offset_keys())
        sizes = [math.prod(content.get_slice(name).get_shape()) * 4 for name in names]
    portion: list[str] = []
    size = 0
    for name, more in zip(names, sizes, strict=True):
        if portion and size + more > _PORTION:
            yield portion
            portion, size = [], 0
        portion.append(name)
        size += more
    yield portion


def _opened(file: Path) -> Any:
    """``safe_open``; raises MissingFile, or StateError for what is no safetensors."""
    if not file.exists():
        raise MissingFile(f"{file}: no such weights file (only safetensors are read)")
    try:
        return safe_open(file, framework="pt")
    except SafetensorError as error:
        raise StateError(f"{file}: not safetensors: {error}") from error


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
