"""A teacher at an endpoint that returns ``prompt_logprobs``, as vLLM documents them.

A row is one request to /completions: its ids as the prompt, one token to generate, ``prompt_logprobs: 1``.
The answer has for each token of the prompt but the first an object ``{id: {logprob, decoded_token, …}}``, in
which the token itself always is. These logprobs are of the model's own distribution at temperature 1 over all
its tokens: calls at another temperature, under a grammar or a guided choice are refused by name.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from agentlightning.log_limit import limited
from agentlightning.redaction import redacted
from agentlightning.types import Row, Segment, UsageError
from agl_distill.settings import EndpointSection
from agl_distill.teacher import CONSTRAINED, FAILED, NOT_FINITE, OFF_POLICY, WRONG_LENGTH, Answer
from agl_distill.vocabulary import OtherVocabulary

log = limited(__name__)
PROBED = 1024
"""Ids whose text is compared before the run: the first quarter of them, and others evenly over the rest."""
AT_ONCE = 256
"""Ids of one probe."""
PAUSE = 0.5
"""Seconds before the second try; each later one waits twice as long."""
AT = " at "
"""Between model and address of a teacher in words."""


class NoTeacher(UsageError, ValueError):
    """The endpoint cannot be a teacher."""


class EndpointTeacher:
    """Asks the endpoint of ``settings``; each row ``tries`` times at most."""

    def __init__(self, settings: EndpointSection, tries: int) -> None:
        self.settings = settings
        self._tries = tries
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._session: aiohttp.ClientSession | None = None

    def __str__(self) -> str:
        return redacted(f"{self.settings.model}{AT}{self.settings.endpoint}")

    async def open(self, policy: Path) -> None:
        if self._session is None:
            variable = self.settings.api_key_env
            if variable and not os.environ.get(variable):
                raise NoTeacher(
                    f"distill.teacher.api_key_env: {variable} is not set; it holds the key of {self}"
                )
            headers = {"Authorization": f"Bearer {os.environ[variable]}"} if variable else {}
            timeout = aiohttp.ClientTimeout(total=self.settings.timeout_seconds)
            self._session = aiohttp.ClientSession(headers=headers, timeout=timeout, trust_env=True)
        await self._probe(policy)

    def refuses(self, row: Row, segment: Segment) -> str:
        if segment.off_policy:
            return OFF_POLICY
        masked = segment.start in row.allowed or segment.start in row.grammars
        return CONSTRAINED if masked or row.temperature != 1.0 else ""

    async def score(self, rows: Sequence[Row]) -> list[Answer]:
        return await asyncio.gather(*(self._row(row) for row in rows))

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _row(self, row: Row) -> Answer:
        """Ask until the answer is whole. What the server refuses is not asked again."""
        reason = FAILED
        for attempt in range(self._tries):
            if attempt:
                await asyncio.sleep(PAUSE * 2 ** (attempt - 1))
            try:
                entries = await self._ask(list(row.token_ids))
                found = _logprobs(entries, row)
            except NoTeacher as error:
                log.warning("row %s: %s", row.row_id, error)
                return FAILED
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                reason = FAILED
                log.warning(
                    "row %s: the teacher %s failed: %s: %s", row.row_id, self, type(error).__name__, error
                )
                continue
            if not isinstance(found, str):
                return found
            reason = found
        return reason

    async def _ask(self, ids: Sequence[int]) -> list[Any]:
        """Return ``prompt_logprobs`` of a prompt. :class:`NoTeacher` for what asking again does not mend."""
        assert self._session is not None
        body = {
            "model": self.settings.model,
            "prompt": list(ids),
            "max_tokens": 1,
            "temperature": 0,
            "prompt_logprobs": 1,
        }
        url = f"{self.settings.endpoint.rstrip('/')}/completions"
        async with self._slots, self._session.post(url, json=body) as response:
            if response.status >= 500 or response.status == 429:
                raise ValueError(f"it answered {response.status}: {(await response.text())[:200]}")
            if response.status >= 400:
                said = (await response.text())[:200]
                raise NoTeacher(f"the teacher {self} refused a request ({response.status}): {said}")
            answer: Any = await response.json()
        try:
            entries = answer["choices"][0]["prompt_logprobs"]
        except (KeyError, IndexError, TypeError):
            entries = None
        if not isinstance(entries, list):
            raise NoTeacher(
                f"the teacher {self} returned no prompt_logprobs: it takes a server whose /completions does, "
                "such as vLLM's"
            )
        return entries

    async def _probe(self, policy: Path) -> None:
        """Compare the texts of ids, as the server decodes them, with those of the policy's tokenizer."""
        from agl_local.text.tokenizer import ChatTokenizer

        try:
            tokenizer = await asyncio.to_thread(ChatTokenizer.load, policy)
        except (OSError, ValueError) as error:
            raise NoTeacher(
                f"distill.teacher: the tokenizer of the policy {policy} cannot be read: {error}"
            ) from error
        for ids in _probes(tokenizer.vocab_size):
            try:
                entries = await self._ask(ids)
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                if isinstance(error, UsageError):
                    raise
                raise NoTeacher(
                    f"distill.teacher: {self} cannot be asked: {type(error).__name__}: {error}"
                ) from error
            for id_, entry in zip(ids[1:], entries[1:], strict=len(entries) == len(ids)):
                theirs = (_entry(entry, id_) or {}).get("decoded_token")
                own = tokenizer.decode_token(id_)[0]
                if not isinstance(theirs, str) or not _same(own, theirs):
                    raise OtherVocabulary(
                        f"distill.teacher: {self} has another tokenizer than the policy {policy}: id {id_} "
                        f"is {own!r} of the policy and {theirs!r} of the teacher; a teacher scores the ids "
                        "that the policy sampled, so take one of the same family"
                    )
            if len(entries) != len(ids):
                raise NoTeacher(
                    f"distill.teacher: {self} gave prompt_logprobs of {len(entries)} tokens for {len(ids)}"
                )


def _probes(size: int) -> Iterator[list[int]]:
    """Yield the ids of each probe, after one that has no logprob."""
    first = range(min(size, PROBED // 4))
    rest = range(len(first), size, max(1, size // (PROBED - len(first))))
    ids = [*first, *rest]
    for at in range(0, len(ids), AT_ONCE):
        yield [ids[0], *ids[at : at + AT_ONCE]]


def _same(own: str, theirs: str) -> bool:
    """Whether two texts are of one token. A part of a character has no text, and some tokenizers drop the
    space in front of a single token.
    """
    return own == theirs or "\ufffd" in own + theirs or own.lstrip(" \u2581") == theirs.lstrip(" \u2581")


def _entry(entry: Any, id_: int) -> Mapping[str, Any] | None:
    found = entry.get(str(id_)) if isinstance(entry, Mapping) else None
    return found if isinstance(found, Mapping) else None


def _logprobs(entries: Sequence[Any], row: Row) -> Answer:
    """Return the logprobs of the trained tokens of a row, or why they are none."""
    if len(entries) != len(row.token_ids):
        return WRONG_LENGTH
    out = [0.0] * len(entries)
    for t, on in enumerate(row.mask):
        if on:
            value = (_entry(entries[t], row.token_ids[t]) or {}).get("logprob")
            out[t] = float(value) if isinstance(value, int | float) else math.nan
    return out if all(map(math.isfinite, out)) else NOT_FINITE
