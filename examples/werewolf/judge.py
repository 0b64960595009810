"""A judge of public speech: an endpoint that is asked for a score from 0 to 1, and is never trained.

Invariant: the same text is scored once as long as its score is remembered; what fails (an error, no answer in
time, no number) is counted with its reason and has no score, which is neutral. A judge never ends a game.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakValueDictionary

import openai

import agentlightning as agl
from agentlightning.types import LLM
from werewolf.players.asking import Account, Endpoint
from werewolf.wording import Wording

SECONDS, AT_ONCE, REMEMBERED = 20.0, 4, 10_000
NUMBER = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*")


class Judge:
    """Scores texts: at most ``at_once`` requests at a time, each given up after ``seconds``."""

    def __init__(
        self, words: Wording, seconds: float = SECONDS, at_once: int = AT_ONCE, remembered: int = REMEMBERED
    ) -> None:
        self.words = words
        self.seconds = seconds
        self.remembered = remembered
        self._free = asyncio.Semaphore(at_once)
        self._scores: OrderedDict[str, float] = OrderedDict()
        self._asked: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def score(self, text: str, llm: Endpoint, http: Any, counts: Counter[str]) -> float | None:
        """The score of a text; ``None``: there is none. ``counts``: ``asked``, ``cached``, ``failed:WHY``.

        Whoever comes while a text is being scored waits for that; should it fail, or its game be cancelled,
        the next one asks with its own key.
        """
        lock = self._asked.setdefault(text, asyncio.Lock())
        async with lock:
            if text in self._scores:
                counts["cached"] += 1
                self._scores.move_to_end(text)
                return self._scores[text]
            return await self._ask(text, llm, http, counts)

    async def _ask(self, text: str, llm: Endpoint, http: Any, counts: Counter[str]) -> float | None:
        async with self._free:
            counts["asked"] += 1
            try:
                async with asyncio.timeout(self.seconds):
                    score = _read(await self._request(text, llm, http))
            except Exception as error:  # whatever it is, the game is worth keeping
                counts[f"failed:{type(error).__name__}"] += 1
                return None
        self._scores[text] = score
        if len(self._scores) > self.remembered:
            self._scores.popitem(last=False)
        return score

    async def _request(self, text: str, llm: Endpoint, http: Any) -> Any:
        says = self.words.data["judge"]
        async with _client(llm, http) as client:
            with agl.tagged(agent="judge", role="judge"):
                return await client.chat.completions.create(
                    model=llm.model,
                    messages=[
                        {"role": "system", "content": says["system"]},
                        {"role": "user", "content": says["ask"].format(text=text)},
                    ],
                    temperature=0.0,
                )


class NoScore(ValueError):
    """An answer that is no number from 0 to 1."""


def _read(answer: Any) -> float:
    """A plain number, or the argument ``score`` of a tool call."""
    message = answer.choices[0].message if answer.choices else None
    if message is None:
        raise NoScore("an answer without a choice")
    try:
        given = json.loads(message.tool_calls[0].function.arguments) if message.tool_calls else None
    except json.JSONDecodeError as error:
        raise NoScore(f"arguments that are no JSON: {error}") from None
    said = given.get("score") if isinstance(given, Mapping) else message.content
    found = NUMBER.fullmatch(str(said))
    if found is None or not 0.0 <= (score := float(found[1])) <= 1.0:
        raise NoScore(f"{said!r} is no number from 0 to 1")
    return score


@asynccontextmanager
async def _client(llm: Endpoint, http: Any) -> Any:
    """A client that leaves ``http`` open: the game's players share it."""
    client = openai.AsyncOpenAI(
        base_url=llm.endpoint, api_key=llm.api_key or "none", http_client=http, max_retries=0
    )
    try:
        yield client
    finally:
        if http is None:
            await client.close()


# ------------------------------------------------------------------------------------------- judges of games
_JUDGES: dict[asyncio.AbstractEventLoop, dict[tuple[str, ...], Judge]] = {}


def judge_of(llm: Endpoint, words: Wording) -> Judge:
    """The judge that all games of this event loop share, so that they share its memory and its limit."""
    for loop in [loop for loop in _JUDGES if loop.is_closed()]:
        del _JUDGES[loop]
    mine = _JUDGES.setdefault(asyncio.get_running_loop(), {})
    return mine.setdefault((llm.endpoint, llm.model, words.language), Judge(words))


class BadJudge(ValueError):
    """A task names a judge that cannot be one."""


def endpoint_of(kind: str, trained: LLM, resources: Mapping[str, Any]) -> LLM:
    """The endpoint of ``llm:NAME``. The rollout's own policy is refused: a judge is not trained."""
    sort, _, name = kind.partition(":")
    found = resources.get(name)
    if sort != "llm" or not isinstance(found, LLM):
        raise BadJudge(f"judge: {kind!r} is not llm:NAME with one of the endpoints {sorted(resources)}")
    if (found.endpoint, found.model) == (trained.endpoint, trained.model):
        raise BadJudge(f"judge: {kind!r} is the policy that plays; name an endpoint that is not trained")
    return found


async def judged(
    account: Account, seats: Iterable[int], llm: LLM, words: Wording, http: Any
) -> tuple[dict[str, float], Counter[str]]:
    """(response id → score, counts) of what these seats said in public. A speech without score is missing."""
    judge, counts, of = judge_of(llm, words), Counter[str](), frozenset(seats)
    said = [d for d in account.decisions if d.seat in of and d.valid and d.said]
    scores = await asyncio.gather(*(judge.score(d.said, llm, http, counts) for d in said))
    found = {d.calls[-1]: score for d, score in zip(said, scores, strict=True) if score is not None}
    return found, counts
