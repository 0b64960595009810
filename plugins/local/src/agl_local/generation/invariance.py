"""Does this machine give a token the same bits in every row of a tile, beside any neighbours?

No library promises it of its matrix products, so an engine that is to be deterministic asks its own network
when it is opened, and refuses to serve where the answer is no: another BLAS, another CPU, another number of
threads may differ. Invariant: nothing is taken on trust; what ``check`` compares is compared bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from agentlightning.types import UsageError
from agl_local.generation.request import EngineError
from agl_local.network.config import OWN
from agl_local.network.lora import adapted
from agl_local.network.model import CausalLM, LanguageModel
from agl_local.network.sampling import draw
from agl_local.network.tile import BLOCK, TILE, Tiles, Token

_COLUMNS = 2 * BLOCK
_TRIALS = 4


class NotInvariant(UsageError, EngineError):
    """Deterministic serving cannot be promised for this model here; the text says why and what to do."""


def network_of(model: LanguageModel) -> CausalLM:
    """``model``, if the deterministic way is built for it. Raises NotInvariant."""
    hint = "; serve it without deterministic"
    if not isinstance(model, CausalLM):
        raise NotInvariant(
            f"deterministic serving is built for the {OWN}; this model runs through "
            f"transformers ({type(model).__name__}), whose results depend on the batch{hint}"
        )
    if model.device.type != "cpu":
        raise NotInvariant(f"deterministic serving is built for device cpu, not {model.device}{hint}")
    if model.dtype != torch.float32:
        name = str(model.dtype).removeprefix("torch.")
        raise NotInvariant(f"deterministic serving is built for dtype float32, not {name}{hint}")
    return model


@torch.inference_mode()
def check(model: CausalLM) -> None:
    """Run random tokens through tiles of ``model``: each alone, at other rows, and beside other tokens.

    Every result must equal that of the first tile bit for bit: the key and value left in the cache, the
    logits, the log probabilities, and the draw. Raises NotInvariant, which names what changed.
    """
    generator = torch.Generator().manual_seed(0)
    with _telling(model, generator):
        _check(_Probe(model, generator), generator)


@contextmanager
def _telling(model: CausalLM, generator: torch.Generator) -> Iterator[None]:
    """Inside, adapters of ``model`` whose B is 0 are no longer silent: their products are asked about too."""
    layers = list(adapted(model).values())
    before = [layer.lora_B.clone() for layer in layers]
    for layer in layers:
        layer.lora_B.normal_(0.0, 0.02, generator=generator)
    try:
        yield
    finally:
        for layer, matrix in zip(layers, before, strict=True):
            layer.lora_B.copy_(matrix)


def _check(probe: _Probe, generator: torch.Generator) -> None:
    tokens, others = probe.tokens(generator), probe.tokens(generator)
    known = probe.run(tokens, list(range(TILE)))
    for _ in range(_TRIALS):
        order = torch.randperm(TILE, generator=generator).tolist()
        stays = (torch.rand(TILE, generator=generator) < 0.5).tolist()
        _compare(known, probe.run(tokens, order), order, "at another row of a tile")
        mixed = [mine if stay else other for mine, other, stay in zip(tokens, others, stays, strict=True)]
        found = probe.run(mixed, order)
        kept = [i for i in order if stays[i]]
        _compare(known, {i: found[i] for i in kept}, kept, "beside other tokens")
        _compare(known, probe.run(tokens, order[:1]), order[:1], "without neighbours")


class _Probe:
    """A cache of noise with a slot for each token of a tile, so that none reads what another writes."""

    def __init__(self, model: CausalLM, generator: torch.Generator) -> None:
        self.tiles = Tiles(model, TILE, _COLUMNS)
        self.noise = torch.randn(self.tiles.cache.data.shape, generator=generator)
        self.uniforms = torch.rand(TILE, generator=generator, dtype=torch.float64)

    def tokens(self, generator: torch.Generator) -> list[Token]:
        """One for each slot."""
        vocab = self.tiles.model.config.vocab_size
        ids = torch.randint(vocab, (TILE,), generator=generator).tolist()
        positions = torch.randint(_COLUMNS - 1, (TILE,), generator=generator).tolist()
        return [
            Token(id_, slot, position)
            for slot, (id_, position) in enumerate(zip(ids, positions, strict=True))
        ]

    def run(self, tokens: Sequence[Token], order: Sequence[int]) -> dict[int, dict[str, Tensor]]:
        """What one tile of ``tokens``, in rows of ``order``, gives for each of these."""
        data = self.tiles.cache.data.copy_(self.noise)
        logits = self.tiles.logits(self.tiles.hidden([tokens[i] for i in order]))
        rows = logits.new_zeros(TILE, logits.shape[1])
        rows[: len(order)] = logits
        uniforms = self.uniforms.clone()
        uniforms[: len(order)] = self.uniforms[list(order)]
        logprobs = torch.log_softmax(rows, dim=-1)
        drawn = draw(logprobs, uniforms)
        return {
            i: {
                "its key and value": data[:, :, tokens[i].slot, :, tokens[i].position].clone(),
                "its logits": logits[row],
                "its log probabilities": logprobs[row],
                "its draw": drawn[row],
            }
            for row, i in enumerate(order)
        }


def _compare(
    known: dict[int, dict[str, Tensor]], found: dict[int, dict[str, Tensor]], which: Sequence[int], where: str
) -> None:
    for i in which:
        for what, tensor in known[i].items():
            if not torch.equal(tensor, found[i][what]):
                raise NotInvariant(_broken(what, where, (tensor - found[i][what]).abs().nan_to_num()))


def _broken(what: str, where: str, gap: Tensor) -> str:
    return (
        f"deterministic serving cannot be promised here: {what} changed by up to {gap.max().item():.1e} when "
        f"a token was computed {where} (torch {torch.__version__}, {torch.get_num_threads()} threads, "
        f"{torch.backends.cpu.get_cpu_capability()}); use one engine thread or another build of torch, or "
        "serve without deterministic"
    )
