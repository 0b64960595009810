"""The update phase over the API: rows in, gradients and steps on the server, what happened out.

The loss is agl-local's, formula and code (``training.loss``). Computed here, it is a function of the logprobs
that the server returns; the server multiplies its gradient with respect to them, as the weights of a
cross-entropy, by its own gradient of the logprobs: the chain rule, so the product is the loss's gradient
whatever the loss is. With ``loss: native`` the server computes the formula itself, which saves a pass.
Invariant: a step's calls are sent before the first of them is waited for, as far as none needs another's
result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentlightning.credit.rows import minibatches
from agentlightning.types import Recipe, Row
from agl_local.training.batch import RowError, Tokens, tokens_of, trained_positions
from agl_local.training.loss import Terms, policy_loss
from agl_local.training.optim import warmup
from agl_local.training.rules import anchored, checked, is_live, terms_of, token_counts
from agl_local.training.tally import Tally
from agl_tinker.client import Client, done
from agl_tinker.options import Options
from agl_tinker.supported_fields import native

Anchors = Mapping[str, Tensor]


class RemoteUpdater:
    """Trains the model of ``client`` by ``recipe``. ``reference(rows)`` returns the logprobs of their trained
    tokens under the policy of the KL term, joined.
    """

    def __init__(
        self,
        client: Client,
        recipe: Recipe,
        options: Options,
        *,
        vocab_size: int,
        seed: int,
        reference: Callable[[Sequence[Row]], Awaitable[Tensor]],
    ) -> None:
        self.steps = 0
        """Optimizer steps made."""
        self.counts: Counter[str] = Counter(forward_tokens=0, trained_tokens=0)
        """Tokens of the sequences that the server was sent, for logprobs alone and for gradients."""
        self._client, self._recipe, self._options = client, recipe, options
        self._vocab_size, self._seed = vocab_size, seed
        self._reference = reference
        self._native = native(recipe) if options.loss == "native" else None

    async def update(
        self, rows: Sequence[Row], version: int, then: Callable[[], Any]
    ) -> tuple[dict[str, float], Any]:
        """Train on ``rows``; ``version``: that of the policy. ``then()`` is called when the last call is
        sent, if any was; what it returns is returned, beside the metrics of :class:`.Tally`. Raises RowError,
        before anything is sent, if a row is unfit.
        """
        rows = self._checked(rows)
        live = [row for row in rows if is_live(row, self._recipe)]
        stats = Tally(version, self._recipe.off_policy_cap, self._recipe.correction)
        shares = minibatches(rows, self._recipe.minibatches, self._seed, version) * self._recipe.epochs
        shares = [[row for row in share if is_live(row, self._recipe)] for share in shares]
        stats.empty = sum(not share for share in shares)
        shares = [share for share in shares if share]
        factor = float(self._recipe.minibatches)
        proximal = await self._proximal(live, stats)
        waiting: list[Awaitable[None]] = []
        for share in shares:
            if self._native is None:
                sent = await self._computed(share, factor, proximal, stats)
            else:
                sent = self._sent(share, factor, stats)
            waiting.append(sent)
        after = then() if shares else None
        for sent in waiting:
            await sent
        metrics = stats.metrics(with_kl=bool(self._recipe.kl))
        metrics |= token_counts(rows, self._recipe, version)
        metrics["lr"] = self._lr(max(0, self.steps - 1))
        return metrics, after

    # ----------------------------------------------------------------------------------------------- one step
    async def _computed(
        self, rows: Sequence[Row], factor: float, proximal: Anchors, stats: Tally
    ) -> Awaitable[None]:
        """Compute the loss from the server's logprobs, and send its gradient and the step; wait for these
        later.
        """
        tokens = tokens_of(rows)
        logp = await self.logprobs(rows)
        terms = await self._terms(rows, tokens, logp.requires_grad_(True), proximal, stats.version)
        if not stats.optimizer_steps:
            stats.measure(tokens, logp)
        found = policy_loss(terms, self._recipe, stats.corrects())
        loss = found.total * factor
        loss.backward()  # type: ignore[no-untyped-call]
        assert logp.grad is not None
        data = self._data(rows, {"weights": _split(-logp.grad, rows)}, "trained_tokens")
        backward = self._client.forward_backward(data, "cross_entropy", {})
        step = self._client.optim_step(self._lr(self.steps))
        self.steps += 1
        stats.optimizer_steps += 1  # what is measured next is after a step

        async def finish() -> None:
            await done(backward)
            stats.optimizer_steps -= 1
            stats.step(float(loss.detach()), *_stepped((await done(step)).metrics))
            stats.add(_detached(terms), found)

        return finish()

    def _sent(self, rows: Sequence[Row], factor: float, stats: Tally) -> Awaitable[None]:
        """Send the server's own loss and the step; the metrics are made of what it returns."""
        assert self._native is not None
        tokens = tokens_of(rows)
        signal = tokens.weights * tokens.advantages * factor
        inputs = {self._native.signal: _split(signal, rows)}
        if self._native.signal == "advantages":
            inputs["logprobs"] = _split(tokens.old, rows)
        backward = self._client.forward_backward(
            self._data(rows, inputs, "trained_tokens"), self._native.loss, self._native.config
        )
        step = self._client.optim_step(self._lr(self.steps))
        self.steps += 1

        async def finish() -> None:
            logp = _joined(await done(backward), rows)
            if not stats.optimizer_steps:
                stats.measure(tokens, logp)
            terms = await self._terms(rows, tokens, logp, {}, stats.version)
            found = policy_loss(terms, self._recipe)
            stats.step(float(found.total) * factor, *_stepped((await done(step)).metrics))
            stats.add(terms, found)

        return finish()

    async def logprobs(self, rows: Sequence[Row]) -> Tensor:
        """The logprobs of all trained tokens of ``rows`` under the present weights, joined."""
        zeros = {"weights": [np.zeros(row.trained_tokens, np.float32) for row in rows]}
        return _joined(await done(self._client.forward(self._data(rows, zeros, "forward_tokens"))), rows)

    async def _proximal(self, rows: Sequence[Row], stats: Tally) -> Anchors:
        """Logprobs before the first of several steps, by row id, where later ones are anchored there."""
        if not rows or not anchored(rows, self._recipe) or self._native is not None:
            return {}
        known = await self.logprobs(rows)
        stats.measure(tokens_of(rows), known)
        return {row.row_id: part for row, part in zip(rows, _parts(known, rows), strict=True)}

    async def _terms(
        self, rows: Sequence[Row], tokens: Tokens, logp: Tensor, proximal: Anchors, version: int
    ) -> Terms:
        reference = await self._reference(rows) if self._recipe.kl else None
        return terms_of(tokens, logp, version, proximal, reference)

    def _data(
        self, rows: Sequence[Row], inputs: Mapping[str, Sequence[NDArray[np.float32]]], count: str
    ) -> list[Any]:
        """``rows`` for the client, each up to its last trained token; ``inputs``: of trained tokens."""
        data = []
        for i, row in enumerate(rows):
            at = np.array(trained_positions(row)) - 1  # position t - 1 predicts token t
            size = int(at[-1]) + 1
            ids = [int(token) for token in row.token_ids[: size + 1]]
            arrays: dict[str, NDArray[Any]] = {"target_tokens": np.array(ids[1:], np.int64)}
            for name, values in inputs.items():
                arrays[name] = np.zeros(size, np.float32)
                arrays[name][at] = values[i]
            self.counts[count] += size
            data.append(self._client.datum(ids[:-1], arrays))
        return data

    def _lr(self, step: int) -> float:
        return self._options.lr * warmup(step, self._options.warmup_steps)

    def _checked(self, rows: Sequence[Row]) -> list[Row]:
        fit = checked(rows, self._recipe, self._vocab_size)
        for row in rows:
            if row.temperature != 1:
                raise RowError(f"row {row.row_id}: temperature {row.temperature}: the Tinker API trains at 1")
            if row.allowed or row.grammars:
                raise RowError(
                    f"row {row.row_id} was sampled under a guided choice, which the Tinker API cannot score"
                )
        return fit


def _parts(joined: Tensor, rows: Sequence[Row]) -> Sequence[Tensor]:
    return torch.split(joined, [row.trained_tokens for row in rows])


def _split(joined: Tensor, rows: Sequence[Row]) -> list[NDArray[np.float32]]:
    return [part.detach().float().numpy() for part in _parts(joined, rows)]


def _joined(output: Any, rows: Sequence[Row]) -> Tensor:
    """The logprobs of the trained tokens in what the server returned, in float64."""
    parts = []
    for row, one in zip(rows, output.loss_fn_outputs, strict=True):
        known = np.asarray(one["logprobs"].data, np.float64)
        parts.append(torch.from_numpy(known[np.array(trained_positions(row)) - 1]))
    return torch.cat(parts)


def _stepped(metrics: Mapping[str, float] | None) -> tuple[float, bool]:
    """The gradient's norm, NaN where the server tells none, and whether it made the step."""
    said = metrics or {}
    norm = next(
        (value for name, value in said.items() if name.partition(":")[0] == "grad_norm"), float("nan")
    )
    return norm, not said.get("steps_skipped")


def _detached(terms: Terms) -> Terms:
    return replace(terms, logp=terms.logp.detach())
