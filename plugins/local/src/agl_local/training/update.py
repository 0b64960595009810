"""The update phase: rows in, one or more optimizer steps, what happened out.

Invariant: the gradient of a step is that of ``loss.policy_loss`` over the step's whole batch. Micro-batches
only add it up, and a row that cannot contribute (all advantages zero, no KL or entropy term) is left out of
the backward pass, not out of the normalisation: weights come from credit and are not touched here.

With ``minibatches = k`` each optimizer step sees a share of the rows, and its loss is k times the sum over
their tokens (:mod:`agentlightning.credit.rows`, "Mini-batches"): a token weighs the same in every
share, and gradient norms, hence ``clip_norm``, mean the same whatever k is. A share in which no row has a
gradient makes no step, because momentum alone would move the weights.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from agentlightning.credit.rows import minibatches
from agentlightning.types import Recipe, Row
from agl_local.network.config import OWN
from agl_local.network.linear import set_backward_dtype
from agl_local.network.model import CausalLM, LanguageModel
from agl_local.progress import Meter, Tell
from agl_local.text.grammar import GrammarCompiler
from agl_local.training.batch import Tokens, micro_rows, tokens_of
from agl_local.training.logprobs import token_logprobs
from agl_local.training.loss import policy_loss
from agl_local.training.optim import clip_and_step, make_adamw, set_lr, warmup
from agl_local.training.rules import anchored, checked, is_live, terms_of, token_counts
from agl_local.training.score import compute_dtype, score_tokens
from agl_local.training.tally import Tally
from agl_local.trie.forward import can_share


@contextmanager
def tf32_products() -> Iterator[None]:
    """Let torch compute float32 products as TF32 for a block. It is the whole process's, in which agents have
    products of their own.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class Updater:
    """Trains ``model`` in place by ``recipe`` with AdamW at a constant rate after ``warmup`` optimizer steps.

    ``reference`` is the policy of the KL term; by default a copy of ``model`` as it is now. ``eos_ids`` are
    the engine's end tokens (guided answers), ``grammars`` makes the masks of answers under grammars.
    ``micro_tokens`` bounds the positions of a forward pass. ``threads`` is torch's number of CPU threads
    (None: unchanged). ``verify``: rows left out of the backward pass are still scored, so that the reported
    logprob gap covers every trained token. ``share``: what rows have in common from their first token on is
    computed once (for a ``CausalLM``). ``recompute``: layers are computed again in the backward pass instead
    of kept. ``backward_dtype``: to what the operands of the backward pass are rounded (None: not at all).
    ``tf32``: on a device, operands of products have ten bits of fraction while an update runs: for an engine
    whose own rounding is coarser.
    """

    def __init__(
        self,
        model: LanguageModel,
        recipe: Recipe,
        *,
        lr: float = 1e-4,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        clip_norm: float | None = 1.0,
        warmup: int = 0,
        seed: int = 0,
        threads: int | None = None,
        micro_tokens: int = 4096,
        reference: LanguageModel | None = None,
        eos_ids: Sequence[int] = (),
        grammars: GrammarCompiler | None = None,
        verify: bool = True,
        share: bool = True,
        recompute: bool = False,
        offload: bool = False,
        backward_dtype: torch.dtype | None = None,
        tf32: bool = False,
    ) -> None:
        if recipe.epochs < 1 or recipe.minibatches < 1:
            raise ValueError(f"recipe {recipe.name!r}: epochs and minibatches must be at least 1")
        self.model = model
        self.recipe = recipe
        self.lr = lr
        self.clip_norm = clip_norm
        self.warmup = warmup
        self.threads = threads
        self.micro_tokens = micro_tokens
        self.eos_ids = tuple(eos_ids)
        self.grammars = grammars
        self.verify = verify
        self.tf32 = tf32 and model.device.type != "cpu"
        self.optimizer = make_adamw(
            model, lr=lr, weight_decay=weight_decay, betas=betas, eps=eps, offload=offload
        )
        self.reference = self._reference(reference)
        self.share = share and can_share(model) and (self.reference is None or can_share(self.reference))
        if isinstance(model, CausalLM):
            model.recompute = recompute
        elif recompute:
            raise ValueError(
                f"a {type(model).__name__} cannot compute its layers again in the backward pass: only the "
                f"{OWN} can"
            )
        if not set_backward_dtype(model, backward_dtype) and backward_dtype is not None:
            raise ValueError(
                f"a {type(model).__name__} has one precision in both passes: only the {OWN} have a "
                "backward_dtype"
            )
        self.steps = 0
        """Optimizer steps made."""
        self.skipped = 0
        """Optimizer steps left out because loss or gradient was not finite."""
        self._seed = seed
        self._meter = Meter(0, None)

    def update(
        self, rows: Sequence[Row], version: int | None = None, tell: Tell | None = None
    ) -> dict[str, float]:
        """Train on ``rows``, sampled by policy ``version`` or earlier ones (None: the latest that occurs in
        them). ``tell`` is called after each micro-batch.

        Returns metrics (``logprob_gap_*`` of tokens of ``version``, ``logprob_gap_stale_*`` of older ones;
        ``off_policy/*`` of tokens that were sampled otherwise than the policy, which are in neither;
        ``correction/*`` of the ratios of trainer to engine, and whether they are corrected, which the tokens
        decide that are measured before the first gradient: at least the first micro-batch's;
        ``entropy`` is the mean of −logp unless the recipe has an entropy term). Raises RowError before
        anything is changed if a row is unfit.
        """
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        with tf32_products() if self.tf32 else nullcontext():
            return self._update(rows, version, tell)

    def _update(self, rows: Sequence[Row], version: int | None, tell: Tell | None) -> dict[str, float]:
        began = time.perf_counter()
        rows = self._checked(rows)
        current = max((max(row.versions) for row in rows), default=0) if version is None else version
        stats = Tally(current, self.recipe.off_policy_cap, self.recipe.correction)
        live = sum(is_live(row, self.recipe) for row in rows)
        self._meter = Meter(len(self._to_prescore(rows)) + self.recipe.epochs * live, tell)
        proximal = self._prescore(rows, stats)
        shares = minibatches(rows, self.recipe.minibatches, self._seed, current)
        for share in shares * self.recipe.epochs:
            self._step(share, len(shares), proximal, stats)
        metrics = stats.metrics(with_kl=bool(self.recipe.kl))
        metrics |= token_counts(rows, self.recipe, current)
        metrics["lr"] = float(self.optimizer.param_groups[0]["lr"])
        metrics["seconds"] = time.perf_counter() - began
        return metrics

    def state_dict(self, optimizer: bool = True) -> dict[str, Any]:
        """All that a later step depends on, but for the weights and the reference policy; without
        ``optimizer``, not the moments of AdamW either.
        """
        return {
            **({"optimizer": self.optimizer.state_dict()} if optimizer else {}),
            "steps": self.steps,
            "skipped": self.skipped,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state_dict`` was taken; learning rate, decay and betas are those given here. The
        moments begin anew where ``state`` has none.
        """
        if (moments := state.get("optimizer")) is not None:
            given = [{k: v for k, v in g.items() if k != "params"} for g in self.optimizer.param_groups]
            self.optimizer.load_state_dict(moments)
            for group, mine in zip(self.optimizer.param_groups, given, strict=True):
                group.update(mine)
        self.steps = int(state["steps"])
        self.skipped = int(state["skipped"])

    # ------------------------------------------------------------------------------------ one optimizer step
    def _step(self, share: Sequence[Row], shares: int, proximal: Mapping[str, Tensor], stats: Tally) -> None:
        """One optimizer step on ``share``, one of ``shares`` mini-batches."""
        live = [row for row in share if is_live(row, self.recipe)]
        if not live:
            stats.empty += 1
            return
        loss = torch.zeros((), device=self.model.device)
        for tokens in self._micro(live, stats):
            scores = token_logprobs(
                self.model, tokens.packed, tokens.temperature, tokens.guides, bool(self.recipe.entropy)
            )
            reference = self._reference_logprobs(tokens)
            terms = terms_of(tokens, scores.logprobs, stats.version, proximal, reference, scores.entropy)
            if stats.optimizer_steps == 0:
                stats.measure(tokens, scores.logprobs)
            found = policy_loss(terms, self.recipe, stats.corrects())
            (found.total * shares).backward()  # type: ignore[no-untyped-call]
            loss += found.total.detach() * shares
            stats.add(terms, found)
        set_lr(self.optimizer, self.lr * warmup(self.steps, self.warmup))
        value = float(loss)
        result = clip_and_step(
            self.model, self.optimizer, self.clip_norm, value, [row.row_id for row in live]
        )
        self.steps += result.stepped
        self.skipped += not result.stepped
        stats.step(value, result.grad_norm, result.stepped)

    # ---------------------------------------------------------------------------------------------- scoring
    def _prescore(self, rows: Sequence[Row], stats: Tally) -> dict[str, Tensor]:
        """Log probabilities before the first step, by row id: for the gap, and as ``proximal`` of several
        steps.

        With one step the first forward of the step gives both for nothing; only rows without a gradient are
        left.
        """
        wanted = self._to_prescore(rows)
        known: dict[str, Tensor] = {}
        still = {row.row_id for row in wanted if not is_live(row, self.recipe)}
        for tokens in self._micro(wanted, stats):
            logprobs = score_tokens(self.model, tokens)
            stats.measure(tokens, logprobs)
            of_still = torch.tensor([row_id in still for row_id in tokens.row_ids])
            stats.add_still(logprobs[of_still.to(logprobs.device)[tokens.packed.rows]])
            counts = tokens.packed.rows.bincount(minlength=len(tokens.row_ids)).tolist()
            known.update(zip(tokens.row_ids, torch.split(logprobs, counts), strict=True))
        return known if anchored(rows, self.recipe) else {}

    def _to_prescore(self, rows: Sequence[Row]) -> list[Row]:
        if anchored(rows, self.recipe) or (self.verify and self.recipe.minibatches > 1):
            return list(rows)
        return [row for row in rows if not is_live(row, self.recipe)] if self.verify else []

    def _micro(self, rows: Sequence[Row], stats: Tally) -> Iterator[Tokens]:
        """``rows`` as tensors on the model's device, a micro-batch at a time."""
        for group in micro_rows(rows, self.micro_tokens, self.share, self.eos_ids):
            tokens = tokens_of(group, self.eos_ids, self.share, self.grammars)
            stats.packed(tokens.packed)
            yield tokens.to(self.model.device, compute_dtype(self.model))
            self._meter.add(group)

    @torch.no_grad()
    def _reference_logprobs(self, tokens: Tokens) -> Tensor | None:
        return None if self.reference is None else score_tokens(self.reference, tokens)

    def _reference(self, given: LanguageModel | None) -> LanguageModel | None:
        if not self.recipe.kl:
            return None
        reference = copy.deepcopy(self.model) if given is None else given
        return reference.requires_grad_(False).eval()

    def _checked(self, rows: Sequence[Row]) -> list[Row]:
        vocab_size = self.model.config.vocab_size
        return checked(rows, self.recipe, vocab_size, eos_ids=self.eos_ids, grammars=self.grammars)
