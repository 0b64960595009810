"""Models of other families, through transformers' own forward and cache.

Slower than the own forward: rows of a step run one after the other, each with a cache of its own, because
that works for every family. Nothing here knows a family by its name: layers, state and output are what the
model says of itself, and a model that does not compute the same in pieces as in one is refused. transformers
is imported here and nowhere else.
"""

from __future__ import annotations

import copy
import inspect
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from agl_local.network.config import ForeignConfig, UnsupportedModel, as_ids
from agl_local.network.linear import Linear
from agl_local.network.model import LanguageModel

_log = logging.getLogger(__name__)
_ROUTER = re.compile(r"(^|\.)(gate|\w*router\w*|\w*expert_gate)(\.|$)")
"""Names of what sends tokens to experts: a small change there sends them elsewhere."""
_GAPS = {torch.float32: 1e-3}
"""Of logits computed in pieces, in deviations of the logits; without the state the gap is about 1."""


class DynamicCaches:
    """One growing cache of transformers per slot.

    Attention keeps all keys and values, behind a window too: the mask leaves out what a token does not see.
    A layer with another state (a short convolution, a gated delta net, Mamba's) has only the one after the
    last token, and then a slot gives all that it holds or nothing (``cuts``).
    """

    def __init__(self, config: Any, slots: int, max_len: int) -> None:
        self.max_len = max_len
        self._config = config
        self.caches = [_new_cache(config) for _ in range(slots)]
        self.cuts = not any(hasattr(layer, "recurrent_states") for layer in self.caches[0].layers)

    def row(self, slot: int, length: int) -> Any:
        """The cache of ``slot``, cut to its first ``length`` tokens."""
        cache = self.caches[slot]
        held = cache.get_seq_length()
        if length == 0:
            cache = self.caches[slot] = _new_cache(self._config)
        elif held < length or not self.can_give(slot, length):
            raise ValueError(f"slot {slot} holds {held} tokens, {length} are needed")
        elif held > length:
            cache.crop(length - held)
        return cache

    def can_give(self, slot: int, length: int) -> bool:
        return bool(self.cuts or self.caches[slot].get_seq_length() == length)

    def copy_prefix(self, source: int, targets: list[int], length: int) -> None:
        for target in targets:
            self.caches[target] = copy.deepcopy(self.caches[source])
            self.row(target, length)

    def clear(self, slots: list[int]) -> None:
        for slot in slots:
            self.caches[slot] = _new_cache(self._config)


class TransformersLM(LanguageModel):
    """The ``LanguageModel`` interface over any causal model of transformers with attention."""

    config: ForeignConfig

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner
        text = inner.config.get_text_config(decoder=True).to_dict()
        limit = text.get("max_position_embeddings") or text.get("n_positions") or 2048
        eos = as_ids(text.get("eos_token_id"))
        self.config = ForeignConfig(int(text["vocab_size"]), int(limit), eos, inner.config.to_dict())
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
        """What the model's own forward makes of ``hidden``: some families scale or cap their logits."""
        below, head = copy.copy(self.inner.base_model), copy.copy(self.inner)
        below.forward = _handed_out
        head._modules = {**self.inner._modules, self.inner.base_model_prefix: below}
        states = hidden.reshape(-1, 1, hidden.shape[-1])
        out: Tensor = head(inputs_embeds=states, use_cache=False).logits
        out = out.view(*hidden.shape[:-1], -1)
        return out if only is None else out[..., only]

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
        return DynamicCaches(self.inner.config, slots, max_len)

    def linear_layers(self) -> list[str]:
        """The linear layers of the decoder's blocks, but for those that choose experts."""
        decoder = self.inner.get_decoder()
        start = next(name for name, module in self.inner.named_modules() if module is decoder)
        found = []
        for name, blocks in decoder.named_children():
            if not isinstance(blocks, nn.ModuleList) or isinstance(next(iter(blocks), None), nn.Linear):
                continue
            found += [
                ".".join(filter(None, (start, name, layer)))
                for layer, module in blocks.named_modules()
                if (type(module) is nn.Linear or isinstance(module, Linear)) and not _ROUTER.search(layer)
            ]
        return found

    @torch.no_grad()
    def check(self) -> None:
        """Compute a few tokens in one piece and in several. Raises UnsupportedModel where that differs."""
        ids = torch.arange(6)[None] % self.config.vocab_size
        whole = self(ids)
        cache, positions, slot = self.new_cache(1, 6), torch.arange(6)[None], torch.zeros(1, dtype=torch.long)
        pieces = [self.step(ids[:, a:b], positions[:, a:b], cache, slot) for a, b in ((0, 2), (2, 3), (3, 6))]
        if cache.caches[0].get_seq_length() != 6:
            raise UnsupportedModel("it does not keep its state in the cache that it is given")
        most = float(whole.float().std()) * _GAPS.get(whole.dtype, 0.25)
        for what, found in (
            ("its cache", torch.cat(pieces, dim=1)),
            ("its output", self.logits(self.hidden(ids))),
        ):
            gap = float((found - whole).abs().max())
            if not gap <= most:
                raise UnsupportedModel(
                    f"through {what} its logits differ by {gap:.2g} from those of a forward"
                )


def _handed_out(*_: object, inputs_embeds: Tensor, **__: object) -> _Output:
    """The forward pass of a network that hands out the states which it is given."""
    return _Output(inputs_embeds)


class _Output:
    """What a network of transformers returns: last hidden states, and nothing else."""

    def __init__(self, states: Tensor) -> None:
        self.last_hidden_state = states

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)

    def __getitem__(self, place: int) -> Tensor:
        return self.last_hidden_state


def load_transformers(
    path: Path, raw: Mapping[str, Any], dtype: torch.dtype, why: Exception
) -> TransformersLM:
    """The model in ``path`` through transformers; runs no code from the folder. Raises UnsupportedModel."""
    try:
        import transformers
    except ImportError:
        raise UnsupportedModel(
            f"{why}; install transformers to run it through its own (slower) forward"
        ) from why
    kind = raw.get("model_type")
    if raw.get("quantization_config"):
        raise UnsupportedModel(f"{path}: quantization_config: only unquantised weights are loaded")
    try:
        known = type(transformers.AutoConfig.from_pretrained(path, trust_remote_code=False))
        causal = known in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
        auto = transformers.AutoModelForCausalLM if causal else transformers.AutoModelForImageTextToText
        loaded: Any = auto.from_pretrained(
            path, dtype=dtype, trust_remote_code=False, output_loading_info=True
        )
    except (OSError, MemoryError):
        raise
    except Exception as error:  # the libraries raise classes of their own for every kind of mistake
        said = " ".join(str(error).partition("\n\n")[0].split())  # then comes advice about pip
        raise UnsupportedModel(
            f"{path / 'config.json'}: transformers does not load model_type {kind!r}: {said}"
        ) from error
    inner, info = loaded
    if info["missing_keys"]:
        raise UnsupportedModel(f"{path}: the weights lack {sorted(info['missing_keys'])[:8]}")
    try:
        model = TransformersLM(inner.train(False))
        model.check()
    except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
        raise UnsupportedModel(
            f"{path}: model_type {kind!r} cannot be served from a cache: {error}"
        ) from error
    _log.warning("%s: %s; running through transformers' own forward and cache, which is slower", path, why)
    return model


def _new_cache(config: Any) -> Any:
    from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

    cache = DynamicCache(config=config)
    plain: Any = DynamicLayer
    cache.layers = [plain() if type(layer) is DynamicSlidingWindowLayer else layer for layer in cache.layers]
    return cache


def _cache_name(inner: Any) -> str:
    """Return the argument of the forward pass that takes the cache: transformers 5.24 renamed it."""
    return "cache" if "cache" in inspect.signature(inner.forward).parameters else "past_key_values"


def _mask(ids: Tensor, lengths: Tensor | None) -> Tensor:
    if lengths is None:
        return torch.ones_like(ids)
    return (torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]).long()
