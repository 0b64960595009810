"""A policy folder at rest: tokens as text, the logprobs it gives stored rows, the digest of its parameters.

The tokenizer is read at once, the weights when they are first asked for. Invariant: scores and digest are the
trainer's own (:mod:`.score`, :func:`.policy.fingerprint`), in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from agentlightning.types import Row, UsageError
from agl_local.policy.folder import Policy, fingerprint, load_policy
from agl_local.text.grammar import GrammarCompiler
from agl_local.text.tokenizer import ChatTokenizer
from agl_local.training.batch import RowError, check_row, micro_rows, tokens_of, trained_positions
from agl_local.training.score import compute_dtype, score_tokens
from agl_local.trie.forward import can_share

POSITIONS = 4096
"""Positions of one forward pass, at most, unless a row has more."""


class Unfit(UsageError, ValueError):
    """A folder that holds no policy, or a row that it cannot score."""


class LocalInspector:
    """What ``agl explain`` and ``agl verify`` ask of the model folder ``path``. Raises :class:`Unfit`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.tokenizer = ChatTokenizer.load(path)
        except (OSError, ValueError) as error:
            raise Unfit(f"{path}: not a policy: {error}") from None

    @cached_property
    def policy(self) -> Policy:
        """The weights, on the CPU."""
        try:
            return load_policy(self.path)
        except UsageError:
            raise
        except (OSError, ValueError) as error:
            raise Unfit(f"{self.path}: {error}") from None

    def decode(self, ids: Sequence[int]) -> list[str]:
        """The text of each token by itself; a part of a character has the replacement character."""
        return [self.tokenizer.decode_token(token)[0] for token in ids]

    def logprobs(self, rows: Sequence[Row]) -> list[list[float]]:
        """The logprob of every trained token of each row at the row's temperature, guided choices masked as
        they were; 0 outside the mask. Forward passes are of :data:`POSITIONS`, shared beginnings once.
        """
        model, eos = self.policy.model, self.tokenizer.eos_ids
        grammars = GrammarCompiler(self.tokenizer, model.config.vocab_size)
        try:
            for row in rows:
                check_row(row, model.config.vocab_size, eos_ids=eos, grammars=grammars)
        except RowError as error:
            raise Unfit(f"{self.path} cannot score this: {error}") from None
        out = [[0.0] * len(row.token_ids) for row in rows]
        of, share = {id(row): values for row, values in zip(rows, out, strict=True)}, can_share(model)
        for group in micro_rows([row for row in rows if row.trained_tokens], POSITIONS, share, eos):
            tokens = tokens_of(group, eos, share, grammars).to(model.device, compute_dtype(model))
            scores = iter(score_tokens(model, tokens).tolist())
            for row in group:
                for position in trained_positions(row):
                    of[id(row)][position] = float(next(scores))
        return out

    def digest(self) -> str:
        """sha256 of the parameters."""
        return fingerprint(self.policy.model)
