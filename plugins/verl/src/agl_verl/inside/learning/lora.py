"""LoRA in verl's training worker: the same first matrices for the same seed, and sums for everybody else.

verl adds the product to the weights in place, hands them on as bfloat16, and subtracts it again; and it saves
models with their small matrices apart. Here the sum is made of gathered copies, in the trainer's own
precision: frozen weights are never written, and what is served and exported is what is trained.

Frozen weights have the precision of the forward pass: FSDP would cast them to it each time that it gathers
them, so that nothing is computed otherwise, and bfloat16 takes half of the memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from verl.utils.device import get_device_id
from verl.utils.torch_dtypes import PrecisionType

PREFIX, BASE = "base_model.model.", ".base_layer"
"""What peft puts before the names of a model's parameters, and into those that have small matrices."""


def adapted(engine: type) -> type:
    """``engine``, verl's FSDP engine, with LoRA as the module says; without LoRA it is as it was."""

    class Adapted(engine):  # type: ignore[misc]
        """Overrides where verl makes, serves and saves the small matrices."""

        def _build_lora_module(self, module: Any) -> Any:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.engine_config.seed)
                made = super()._build_lora_module(module)
            refuse_others(made)
            # What verl's engine takes for its forward pass, too, where nothing is said.
            freeze(made, (self.engine_config.mixed_precision or {}).get("param_dtype", "bf16"))
            return made

        def get_per_tensor_param(self, *args: Any, **given: Any) -> tuple[Iterator[Any], Any]:
            if not self._is_lora:
                found: tuple[Iterator[Any], Any] = super().get_per_tensor_param(*args, **given)
                return found
            return merged(self.module, get_device_id()), None

        def save_checkpoint(self, local_path: str, *args: Any, **given: Any) -> None:
            super().save_checkpoint(local_path, *args, **given)
            if self._is_lora:
                export(self.module, Path(local_path) / "huggingface", self.rank == 0, get_device_id())
                torch.distributed.barrier()

    return Adapted


def refuse_others(module: Any) -> None:
    """Raises ValueError for a layer whose sum :func:`merged` would not make as peft does."""
    from peft.tuners.lora import Linear, LoraLayer

    for name, layer in module.named_modules():
        if isinstance(layer, LoraLayer) and not isinstance(layer, Linear):
            raise ValueError(f"lora.targets: {name} is a {type(layer).__name__}; it is for linear layers")


def freeze(module: Any, precision: str) -> None:
    """Keep what is not trained in the precision of the forward pass, by verl's name for it."""
    for parameter in module.parameters():
        if not parameter.requires_grad:
            parameter.data = parameter.data.to(PrecisionType.to_dtype(precision))


def merged(module: Any, device: Any = "cpu") -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter, whole, in float32, under the name it has without LoRA. All ranks must take all of
    them.

    ``device``: where ranks gather; what verl has moved to the CPU meanwhile comes back for it.
    """
    from peft.tuners.lora import LoraLayer

    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, LoraLayer)}
    with torch.no_grad():
        for name, parameter in module.state_dict().items():
            if "lora_" in name:
                continue
            found = whole(parameter, device).float()
            layer = layers.get(name.removesuffix(f"{BASE}.weight"))
            if layer is not None and name.endswith(f"{BASE}.weight"):
                found = found + product(layer, device)
            yield name.removeprefix(PREFIX).replace(BASE, ""), found


def product(layer: Any, device: Any) -> torch.Tensor:
    """``alpha / rank * B @ A`` of a layer, (out, in), float32."""
    (name,) = layer.lora_A.keys()
    a, b = (whole(part[name].weight, device).float() for part in (layer.lora_A, layer.lora_B))
    scaled: torch.Tensor = layer.scaling[name] * (b @ a)
    return scaled


def whole(parameter: torch.Tensor, device: Any) -> torch.Tensor:
    """Gathered from all ranks; a copy."""
    there: Any = parameter.detach().to(device)
    gather = getattr(there, "full_tensor", None)
    found: torch.Tensor = gather() if gather is not None else there.clone()
    return found


def export(module: Any, folder: Path, writes: bool, device: Any = "cpu") -> None:
    """The weights in Hugging Face layout, in as many files as their size asks for. All ranks must call it;
    the one that ``writes`` keeps them.
    """
    from huggingface_hub import save_torch_state_dict

    # Copies: what was gathered from uneven parts is a piece of padded memory, which a file cannot hold.
    state = {name: tensor.cpu().clone() for name, tensor in merged(module, device) if writes}
    if not writes:
        return
    if module.config.tie_word_embeddings:  # twice in the state, once in a file
        for name in getattr(module.get_base_model(), "_tied_weights_keys", None) or ():
            state.pop(name, None)
    save_torch_state_dict(state, str(folder))
