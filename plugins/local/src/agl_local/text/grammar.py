"""Grammars as masks over the vocabulary, made by llguidance (docs/structured.md says why by this library).

A grammar is a text in llguidance's dialect of Lark; ``text.constraints`` writes it. The mask of a token says
which tokens may stand at its place. Invariant: a mask is a function of the grammar's text, the library's
version, the vocabulary and the tokens before, so that engine and trainer make the same masks.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from agentlightning.types import Grammar
from agl_local.text.tokenizer import ChatTokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

LIBRARY = "llguidance"
_version = cache(version)
_PLACE = re.compile(r"^at \d+\(\d+\): ")
"""Line and column of an error, in a text that the user has never seen."""
LONGEST = 1024
"""Bytes of the longest token that the library takes. No grammar allows a longer one, whose text the shorter
tokens write as well."""
_KEPT = 128
"""Compiled grammars that are kept: those used last."""


class GrammarError(ValueError):
    """A grammar that cannot be compiled, or tokens that it does not allow; the text says which and why."""


class GrammarCompiler:
    """Compile grammars for the ``vocab_size`` logits of a policy. Any thread may use it."""

    def __init__(self, tokenizer: ChatTokenizer, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._vocabulary: LLTokenizer | None = None
        self._matchers: OrderedDict[str, LLMatcher] = OrderedDict()

    def check(self, text: str) -> Grammar:
        """Return the grammar of ``text``. Raise :class:`GrammarError` for a text that cannot be applied."""
        grammar = Grammar(LIBRARY, _version(LIBRARY), text)
        self.start(grammar).mask(())
        return grammar

    def start(self, grammar: Grammar) -> GrammarState:
        """Return the state before the first token. Raise :class:`GrammarError` for a grammar of another
        version of the library: its masks may differ.
        """
        installed = _version(LIBRARY)
        if (grammar.library, grammar.version) != (LIBRARY, installed):
            raise GrammarError(
                f"the grammar is of {grammar.library} {grammar.version}, and {LIBRARY} {installed} is "
                f"installed, whose masks may differ: pip install {grammar.library}=={grammar.version}"
            )
        with self._lock:
            known = self._matchers.get(grammar.text)
            if known is None:
                known = self._compile(grammar.text)
                self._matchers[grammar.text] = known
                if len(self._matchers) > _KEPT:
                    self._matchers.popitem(last=False)
            self._matchers.move_to_end(grammar.text)
            return GrammarState(known.deep_copy(), self.vocab_size)

    def bits(self, grammar: Grammar, response: Sequence[int]) -> Tensor:
        """Return the mask of every token of ``response`` as bits: uint8 [tokens, bytes] for ``unpack_bits``.

        Raise :class:`GrammarError` if the grammar does not allow ``response``.
        """
        state = self.start(grammar)
        rows = [state.bits(response[:at]) for at in range(len(response))]
        masks = torch.stack(rows) if rows else torch.zeros(0, (self.vocab_size + 7) // 8, dtype=torch.uint8)
        tokens = torch.tensor(list(response), dtype=torch.long)
        fine = (masks.gather(1, (tokens // 8)[:, None])[:, 0] >> (tokens % 8).to(torch.uint8)) & 1
        if not bool(fine.all()):
            at = int((fine == 0).nonzero()[0, 0])
            raise GrammarError(f"the grammar does not allow token {response[at]} at place {at}")
        return masks

    def _compile(self, text: str) -> LLMatcher:
        from llguidance import LLMatcher  # on first use: most runs need no grammar

        if self._vocabulary is None:
            self._vocabulary = _vocabulary(self._tokenizer, self.vocab_size)
        matcher = LLMatcher(self._vocabulary, text, log_level=0)
        _raise_error(matcher)
        return matcher


class GrammarState:
    """Where one response stands in its grammar; each response has a state of its own."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._taken = 0
        self._bits: Tensor | None = None

    def bits(self, response: Sequence[int]) -> Tensor:
        """Return the mask of the token after ``response`` as bits: uint8 [bytes]. ``response`` must begin
        with
        what was given before. Raise :class:`GrammarError` for a token that was not allowed.
        """
        if self._bits is None or len(response) != self._taken:
            for token in response[self._taken :]:
                if not self._matcher.consume_token(token):
                    raise GrammarError(f"the grammar does not allow token {token} at place {self._taken}")
                self._taken += 1
            data = bytearray(self._matcher.compute_bitmask())
            _raise_error(self._matcher)
            self._bits = torch.frombuffer(data, dtype=torch.uint8)[: (self._vocab_size + 7) // 8]
        return self._bits

    def mask(self, response: Sequence[int]) -> Tensor:
        """Return the mask of the token after ``response``: bool [V], True where the token is allowed."""
        return unpack_bits(self.bits(response), self._vocab_size)


def unpack_bits(bits: Tensor, size: int) -> Tensor:
    """uint8 [..., bytes], lowest bit first, as bool [..., size]."""
    places = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return ((bits[..., None] >> places) & 1).flatten(-2)[..., :size].bool()


class _Words:
    """A tokenizer as llguidance asks for it: the bytes of every token."""

    def __init__(self, tokenizer: ChatTokenizer, vocab_size: int) -> None:
        ids = range(vocab_size)
        written = [tokenizer.token_bytes(i) for i in ids]
        self.tokens = [token if len(token) <= LONGEST else b"" for token in written]
        self.special_token_ids = [i for i in ids if tokenizer.is_special(i)]
        self.eos_token_id = tokenizer.eos_ids[0]
        self.bos_token_id = None
        self.is_tokenizer_wrapper = True
        self._tokenizer = tokenizer

    def __call__(self, text: bytes | str) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode("utf-8", errors="replace")
        return self._tokenizer.encode(text)


def _vocabulary(tokenizer: ChatTokenizer, vocab_size: int) -> LLTokenizer:
    if not tokenizer.eos_ids:
        raise GrammarError("the policy has no end token, so that an answer by a grammar could not end")
    from llguidance import LLTokenizer

    words: Any = _Words(tokenizer, vocab_size)
    return LLTokenizer(words, n_vocab=vocab_size, eos_token=tokenizer.eos_ids[0])


def _raise_error(matcher: LLMatcher) -> None:
    if matcher.is_error():
        said = matcher.get_error().partition("\n<state>")[0]
        if said.startswith("NoExtension"):
            said = "the policy's vocabulary has no token that the grammar allows here"
        raise GrammarError(_PLACE.sub("", said))
