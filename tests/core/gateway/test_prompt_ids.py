"""A prompt's token ids are the engine's, whether they were parsed or known."""

from __future__ import annotations

import json
from random import Random

import msgspec
import pytest

from agentlightning.gateway import prompt_ids
from agentlightning.gateway.answer import EngineAnswer, parse_answer
from agentlightning.gateway.errors import BadAnswer
from agentlightning.gateway.prompt_ids import PromptCache
from agentlightning.types.tokens import TokenIds

KEY = ("a", "agent")


@pytest.fixture(autouse=True)
def short_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_ids, "_SHORT", 0)


def body(prompt: list[int], *responses: list[int], where: str = "chat", space: str = "") -> bytes:
    choices = [
        {"index": n, "message": {"content": 'a "prompt_token_ids":[1'}, "text": "", "token_ids": response}
        for n, response in enumerate(responses)
    ]
    answer = {"choices": choices, "usage": {"prompt_tokens": len(prompt)}}
    (answer if where == "chat" else choices[0])["prompt_token_ids"] = prompt
    return json.dumps(answer, separators=("," + space, ":" + space)).encode()


def read(cache: PromptCache, raw: bytes, key: tuple[str, str] = KEY) -> EngineAnswer:
    return parse_answer(raw, "chat", lambda raw, decode: cache.decode(key, raw, decode))


@pytest.mark.parametrize("where", ["chat", "completions"])
@pytest.mark.parametrize("space", ["", " "])
def test_every_answer_has_the_ids_that_the_engine_gave(where: str, space: str) -> None:
    random = Random(1)
    for _ in range(200):
        cache, pasts = PromptCache(), [[1]]
        for _ in range(8):
            prompt = [*random.choice(pasts), *(random.randrange(12) for _ in range(random.randint(0, 3)))]
            responses = [
                [random.randrange(12) for _ in range(random.randint(1, 3))]
                for _ in range(random.choice([1, 1, 2]))
            ]
            raw = body(prompt, *responses, where=where, space=space)
            key = random.choice([KEY, KEY, ("b", "agent")])
            answer = read(cache, raw, key)
            found = answer.prompt_token_ids if where == "chat" else answer.choices[0].prompt_token_ids
            assert found == prompt and [c.token_ids for c in answer.choices] == responses
            assert answer.choices[0].message == {"content": 'a "prompt_token_ids":[1'}
            pasts += [prompt + responses[0], prompt + responses[0][:-1]]


def test_only_what_is_new_is_parsed_and_stored_in_the_same_buffer() -> None:
    cache = PromptCache()
    sizes = []

    def decode(raw: bytes) -> EngineAnswer:
        sizes.append(len(raw))
        return msgspec.json.decode(raw, type=EngineAnswer)

    prompt = list(range(1000, 2000))
    first = cache.decode(KEY, body(prompt, [7, 8]), decode)
    longer = [*prompt, 7, 8, 9]
    second = cache.decode(KEY, body(longer, [5]), decode)
    assert sizes[1] < sizes[0] / 10
    assert first.prompt_token_ids == prompt and second.prompt_token_ids == longer
    assert isinstance(first.prompt_token_ids, TokenIds) and isinstance(second.prompt_token_ids, TokenIds)
    assert first.prompt_token_ids.view().obj is second.prompt_token_ids.view().obj


def test_ids_that_somebody_looks_at_are_not_moved() -> None:
    cache = PromptCache()
    first = read(cache, body([1, 2, 3], [4]))
    assert isinstance(first.prompt_token_ids, TokenIds)
    with first.prompt_token_ids.view() as view:
        assert read(cache, body([1, 2, 3, 4, 5], [6])).prompt_token_ids == [1, 2, 3, 4, 5]
        assert view.tolist() == [1, 2, 3]


def test_a_number_that_only_begins_like_a_known_one_is_another() -> None:
    cache = PromptCache()
    read(cache, body([1, 2], [3]))
    assert read(cache, body([1, 2, 34], [5])).prompt_token_ids == [1, 2, 34]
    assert read(cache, body([1, 25], [5])).prompt_token_ids == [1, 25]


def test_a_broken_answer_is_refused_and_harms_nothing() -> None:
    cache = PromptCache()
    read(cache, body([1, 2], [3]))
    for broken in (
        b'{"prompt_token_ids":[1,2,3,"x"]}',
        b'{"prompt_token_ids":[1,2,3',
        b'{"prompt_token_ids":[1,2,3,-1]}',
    ):
        with pytest.raises(BadAnswer):
            read(cache, broken)
    assert read(cache, body([1, 2, 3, 4], [5])).prompt_token_ids == [1, 2, 3, 4]


def test_the_cache_drops_what_was_not_used_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_ids, "_MAX_BYTES", 4000)
    cache = PromptCache()
    for n in range(20):
        read(cache, body(list(range(100)), [n]), (f"a{n}", ""))
    assert cache._bytes == sum(known.size for known in cache._known.values()) <= 4000
    assert ("a19", "") in cache._known and ("a0", "") not in cache._known
