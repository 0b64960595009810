"""A policy on disk and in memory: network, tokenizer and configuration in the layout of Hugging Face.

Invariant: ``load_policy(save_policy(p))`` has the same parameters bit for bit, and transformers reads the
same folder.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
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
    as_ids,
    read_json,
)
from agl_local.network.layout import realise
from agl_local.network.linear import Linear
from agl_local.network.lora import MATRICES, adapted
from agl_local.network.model import CausalLM, LanguageModel
from agl_local.network.quantized import Kind, Quantized
from agl_local.policy.weights import (
    State,
    StateError,
    not_finite,
    opened,
    portions,
    refuse_misfit,
    refuse_untied,
    stored_shapes,
    stored_state,
    tensor_of,
    weight_files,
)
from agl_local.text.tokenizer import ChatTokenizer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DEQUANTISED = "dequantised_from"
"""The key of a config.json that says in what the matrices were of the policy that was saved."""
_LOG = logging.getLogger(__name__)


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
        config = _read_config(path, raw)
    except UnsupportedModel as why:
        if quantize is not None:
            raise UnsupportedModel(f"quantize: it needs one of the {OWN}: {why}") from why
        if not fallback:
            raise
        from agl_local.network.hf import load_transformers

        foreign = load_transformers(path, raw, DTYPES[dtype], why).to(device)
        return Policy(foreign, tokenizer, foreign.config, path)
    shape = _fitting(path, config, tokenizer)
    if quantize is not None:
        with torch.device("meta"):
            shape.quantize(quantize)
        _warn_of_a_sum(path, raw, quantize)
    model = realise(shape, DTYPES[dtype], torch.device(device))
    _load_files(model, weight_files(path))
    return Policy(model.eval(), tokenizer, config, path)


def check_stored(path: Path) -> None:
    """Raise a UsageError for a model folder that cannot be loaded, or whose weights are not finite; one
    tensor is in memory at a time. Of families without an own forward, the weight files alone are looked at.
    """
    try:
        tokenizer = read_tokenizer(path)
        try:
            _fitting(path, _read_config(path, read_json(path / "config.json")), tokenizer)
        except UnsupportedModel:
            pass  # only transformers knows the tensors of such a network
        wrong = not_finite(stored_state(path))
    except (ValueError, OSError) as error:
        if isinstance(error, UsageError):
            raise
        where = "" if str(path) in str(error) else f"{path}: "
        raise StateError(f"{where}{error}") from error
    if wrong:
        raise StateError(f"{path}: {wrong}")


def _read_config(path: Path, raw: Mapping[str, Any]) -> ModelConfig:
    try:
        return ModelConfig.from_hf(raw)
    except UnsupportedModel:
        raise
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path / 'config.json'}: {error}") from error


def _fitting(path: Path, config: ModelConfig, tokenizer: ChatTokenizer) -> CausalLM:
    """The network of ``config`` on the meta device. Raises ConfigError or StateError where tokenizer or
    weight files do not fit it.
    """
    if tokenizer.vocab_size > config.vocab_size:
        raise ConfigError(
            f"{path}: the tokenizer has {tokenizer.vocab_size} tokens, "
            f"vocab_size of config.json is {config.vocab_size}"
        )
    for file in ("config.json", "generation_config.json"):
        for token in as_ids(read_json(path / file, optional=True).get("eos_token_id")):
            if not 0 <= token < config.vocab_size:
                raise ConfigError(
                    f"{path / file}: eos_token_id is {token}, which no answer can end with: vocab_size of "
                    f"config.json is {config.vocab_size}"
                )
    files = weight_files(path)
    shapes = stored_shapes(files)
    if config.num_layers > len(shapes):  # before a network is built of which each layer costs time
        raise ConfigError(
            f"{path / 'config.json'}: num_hidden_layers is {config.num_layers}, and the weight files hold "
            f"{len(shapes)} tensors"
        )
    with torch.device("meta"):
        network = CausalLM(config)
    own, where = _shapes(network), f"the weights of {path}"
    refuse_misfit(own, shapes, where)
    if "lm_head.weight" in shapes.keys() - own.keys():
        embedding = tensor_of(files, "model.embed_tokens.weight")
        refuse_untied(tensor_of(files, "lm_head.weight"), embedding, where)
    return network


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
    refuse_misfit(own, {name: tensor.shape for name, tensor in tensors.items()}, where)
    for name in tensors.keys() - own.keys():  # only a tied output layer is let pass
        refuse_untied(tensors[name], tensors["model.embed_tokens.weight"], where)


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


def _digest(tensors: State) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _warn_of_a_sum(path: Path, config: Mapping[str, Any], kind: Kind) -> None:
    if before := config.get(DEQUANTISED):
        _LOG.warning(
            "%s: its matrices are sums over a base in %s; in %s they are other matrices, and it is another "
            "policy",
            path,
            before,
            kind,
        )


def _load_files(model: LanguageModel, files: list[Path]) -> None:
    """Copy the tensors of ``files``, which fit ``model``, into it; no second copy of them is in memory at
    any time.
    """
    own, made, kind = dict(model.named_parameters()), _made(model), model.base_kind
    with torch.no_grad():
        for file in files:
            for names in portions(file):
                # Opened anew for each portion: pages of a file stay in memory for as long as it is open.
                with opened(file) as content:
                    for name in names:
                        if name in own:
                            own[name].copy_(content.get_tensor(name))
                        elif name in made and kind is not None:
                            made[name].quantized = Quantized.of(
                                content.get_tensor(name).to(model.device), kind
                            )


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
