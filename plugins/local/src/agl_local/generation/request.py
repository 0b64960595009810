"""What is asked of the engine and what it answers, and the engine's own record of an answer in the making.

Invariant: a request ends exactly once, with all its completions or with one exception; ``token_ids``,
``logprobs`` and ``versions`` of a completion have the same length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Literal

from agentlightning.types.tokens import pack
from agl_local.network.sampling import Sampling, stream_key
from agl_local.text.grammar import GrammarState
from agl_local.text.textstream import TextStream

FinishReason = Literal["stop", "length"]
TopLogprobs = list[tuple[int, float]]


class EngineError(RuntimeError):
    """The engine could not finish a request; the text says why."""


class PromptTooLong(ValueError):
    """The prompt leaves no room for an answer; the text gives the numbers of tokens."""


@dataclass(frozen=True)
class TokenEvent:
    """One sampled token of sample ``index``, with the text that became certain by it (maybe none).

    The last event of a sample has a ``finish_reason``.
    """

    index: int
    token: int
    logprob: float
    top_logprobs: TopLogprobs
    text: str
    version: int
    finish_reason: FinishReason | None = None
    stop_reason: str | None = None


@dataclass(frozen=True)
class Request:
    """``n`` samples of an answer to ``prompt`` (token ids).

    ``on_token`` is called in the engine's thread for every token: it must be quick; an exception in it
    fails the request.
    """

    prompt: Sequence[int]
    sampling: Sampling = field(default_factory=Sampling)
    n: int = 1
    on_token: Callable[[TokenEvent], None] | None = None


@dataclass
class Completion:
    """One finished sample. An end token that was sampled is in ``token_ids`` and not in ``text``.

    ``versions`` is the policy version of each token; ``reused`` the prompt tokens taken from the cache;
    ``seed`` what the request had, or was given.
    """

    index: int
    token_ids: list[int]
    logprobs: list[float]
    top_logprobs: list[TopLogprobs]
    text: str
    finish_reason: FinishReason
    stop_reason: str | None
    versions: list[int]
    reused: int
    seed: int


class Group:
    """The samples of one request and the future they resolve."""

    def __init__(self, request: Request, seed: int, future: Future[list[Completion]]) -> None:
        self.request = request
        self.seed = seed
        self.future = future
        self.over = False
        self._done: dict[int, Completion] = {}

    def complete(self, completion: Completion) -> None:
        """Take one finished sample; the last one resolves the future."""
        self._done[completion.index] = completion
        if len(self._done) == self.request.n:
            self._settle([self._done[i] for i in range(self.request.n)], None)

    def fail(self, error: Exception) -> None:
        self._settle(None, error)

    def _settle(self, result: list[Completion] | None, error: Exception | None) -> None:
        if self.over:
            return
        self.over = True
        try:
            if error is not None:
                self.future.set_exception(error)
            else:
                self.future.set_result(result or [])
        except InvalidStateError:
            # Cancelled by the client in this very moment: nobody is waiting for the outcome.
            return


class Sample:
    """One answer in the making: its tokens so far and the slot it runs in."""

    def __init__(
        self, group: Group, index: int, limit: int, text: TextStream, grammar: GrammarState | None = None
    ) -> None:
        self.group = group
        self.index = index
        self.sampling = group.request.sampling
        self.prompt = group.request.prompt
        self.limit = limit
        self.key = stream_key(group.seed, index)
        self.watched = group.request.on_token is not None or bool(self.sampling.stop)
        s = self.sampling
        self.grammar = grammar
        masked = s.guided_choice or s.grammar or s.min_tokens
        self.adjusted = bool(s.penalised or s.logit_bias or masked)
        # The usual case, for which sampling has a short way: all of the distribution, and nothing else of it.
        self.plain = not self.adjusted and s.temperature == 1 and s.top_p == 1 and s.top_k <= 0
        self.plain = self.plain and not s.top_logprobs
        self.text = text
        self.pieces: list[str] = []
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.top: list[TopLogprobs] = []
        self.versions: list[int] = []
        self.slot = -1
        self.reused = 0
        self.admitted = False
        self.packed = pack(self.prompt)

    def repack(self) -> None:
        """Make ``packed`` all tokens so far: the sample starts again from a prefill of them."""
        self.packed = pack([*self.prompt, *self.tokens])

    def completion(self, reason: FinishReason, stop_reason: str | None) -> Completion:
        return Completion(
            self.index, self.tokens, self.logprobs, self.top, "".join(self.pieces), reason, stop_reason,
            self.versions, self.reused, self.group.seed,
        )  # fmt: skip
