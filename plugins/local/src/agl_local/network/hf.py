"""Models of other families, through transformers' own forward and cache.

Slower than the own forward: rows of a step run one after the other, each with a cache of its own, because
that works for every family that keeps keys and values. transformers is imported here and nowhere else.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from agl_local.network.config import ForeignConfig, UnsupportedModel, as_ids
from agl_local.network.model import LanguageModel

_log = logging.getLogger(__name__)


class DynamicCaches:
    """One growing cache of transformers per slot."""

    def __init__(self, slots: int, max_len: int) -> None:
        self.max_len = max_len
        self.caches = [_new_cache() for _ in range(slots)]

    def row(self, slot: int, length: int) -> Any:
        """The cache of ``slot``, cut to its first ``length`` tokens."""
        cache = self.caches[slot]
        held = cache.get_seq_length()
        if held < length:
            raise ValueError(f"slot {slot} holds {held} tokens, {length} are needed")
        if length == 0:
            cache = self.caches[slot] = _new_cache()
        elif held > length:
            cache.crop(length - held)
        return cache

    def copy_prefix(self, source: int, targets: list[int], length: int) -> None:
        for target in targets:
            self.caches[target] = copy.deepcopy(self.caches[source])
            self.row(target, length)

    def clear(self, slots: list[int]) -> None:
        for slot in slots:
            self.caches[slot] = _new_cache()


class TransformersLM(LanguageModel):
    """The ``LanguageModel`` interface over any causal model of transformers with a key-value cache."""

    config: ForeignConfig

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner
        raw = inner.config.to_dict()
        limit = raw.get("max_position_embeddings") or raw.get("n_positions") or 2048
        self.config = ForeignConfig(int(raw["vocab_size"]), int(limit), as_ids(raw.get("eos_token_id")), raw)
        self._cache_name = _cache_name(inner)

    @property
    def weights(self) -> nn.Module:
        """The model of transformers: its parameter names are those of its files."""
        found: nn.Module = self.inner
        return found

    def hidden(self, ids: Tensor, positions: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
        out: Tensor = self.inner.base_model(
            input_ids=ids, position_ids=positions, attention_mask=_mask(ids, lengths), use_cache=False
        ).last_hidden_state
        if lengths is not None:
            out = out * _mask(ids, lengths)[..., None].to(out.dtype)
        return out

    def logits(self, hidden: Tensor, only: Tensor | None = None) -> Tensor:
        """The output layer, with the soft cap that some families put on their logits."""
        out: Tensor = self.inner.get_output_embeddings()(hidden)
        cap = self.config.raw.get("final_logit_softcapping")
        out = out if only is None else out[..., only]
        return torch.tanh(out / cap) * cap if cap else out

    def forward(self, ids: Tensor, positions: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
        out: Tensor = self.inner(
            input_ids=ids, position_ids=positions, attention_mask=_mask(ids, lengths), use_cache=False
        ).logits
        return out

    def step(
        self,
        ids: Tensor,
        positions: Tensor,
        cache: Any,
        slots: Tensor,
        last: Tensor | None = None,
        only: Tensor | None = None,
    ) -> Tensor:
        rows, ids = [], ids.to(self.device)
        for row, slot in enumerate(slots.tolist()):
            size = int((positions[row] >= 0).sum())
            first = int(positions[row, 0])
            out = self.inner(
                input_ids=ids[row : row + 1, :size],
                position_ids=positions[row : row + 1, :size].to(self.device),
                use_cache=True,
                **{self._cache_name: cache.row(slot, first)},
            ).logits[0]
            out = out if only is None else out[:, only]
            rows.append(torch.nn.functional.pad(out, (0, 0, 0, ids.shape[1] - size)))
        logits = torch.stack(rows)
        return (
            logits
            if last is None
            else logits[torch.arange(len(rows), device=logits.device), last.to(logits.device)]
        )

    def new_cache(self, slots: int, max_len: int) -> DynamicCaches:
        return DynamicCaches(slots, max_len)


def load_transformers(
    path: Path, raw: Mapping[str, Any], dtype: torch.dtype, why: Exception
) -> TransformersLM:
    """The model in ``path`` through transformers; runs no code from the folder. Raises UnsupportedModel."""
    try:
        from transformers import AutoModelForCausalLM
    except ImportError:
        raise UnsupportedModel(
            f"{why}; install transformers to run it through its own (slower) forward"
        ) from why
    kind = raw.get("model_type")
    _log.warning("%s: %s; running through transformers' own forward and cache, which is slower", path, why)
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        path, dtype=dtype, trust_remote_code=False, output_loading_info=True
    )
    inner, info = loaded
    if info["missing_keys"]:
        raise UnsupportedModel(f"{path}: the weights lack {sorted(info['missing_keys'])[:8]}")
    model = TransformersLM(inner.train(False))
    probe = _new_cache()
    try:
        with torch.no_grad():
            inner(
                input_ids=torch.zeros(1, 2, dtype=torch.long), use_cache=True, **{_cache_name(inner): probe}
            )
        held = probe.get_seq_length()
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise UnsupportedModel(
            f"{path}: model_type {kind!r} has no plain key-value cache: {error}"
        ) from error
    if held != 2:
        raise UnsupportedModel(f"{path}: model_type {kind!r} does not keep its state in a key-value cache")
    return model


def _new_cache() -> Any:
    from transformers import DynamicCache

    return DynamicCache()


def _cache_name(inner: Any) -> str:
    """Return the argument of the forward pass that takes the cache: transformers 5.24 renamed it."""
    return "cache" if "cache" in inspect.signature(inner.forward).parameters else "past_key_values"


def _mask(ids: Tensor, lengths: Tensor | None) -> Tensor:
    if lengths is None:
        return torch.ones_like(ids)
    return (torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]).long()
