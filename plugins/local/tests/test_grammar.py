"""Grammars as masks: what they allow, the same in engine and trainer, at any concurrency."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models

from agentlightning.types import Grammar
from agl_local.generation.engine import Engine
from agl_local.generation.request import Request
from agl_local.network.sampling import Sampling, adjusted
from agl_local.text.constraints import (
    ANY_OBJECT,
    CallForm,
    calls_grammar,
    json_grammar,
    json_or_calls_grammar,
    object_schema,
    regex_grammar,
    text_or_calls_grammar,
)
from agl_local.text.cores import HERMES
from agl_local.text.grammar import LONGEST, GrammarCompiler, GrammarError, unpack_bits
from agl_local.text.tokenizer import ChatTokenizer
from agl_local.training.batch import RowError, check_row, tokens_of
from agl_local.training.logprobs import token_logprobs
from agl_local.training.score import logprob_gap
from plugins.local.tests.driver_fixtures import make_row, tiny_policy, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
EOS = TOKENIZER.eos_ids[0]
SIZE = TOKENIZER.vocab_size
NUMBER = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
NUMBER = {**NUMBER, "additionalProperties": False}
ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
NEW = '<tool_call>\n{"name": "n\\"ü", "arguments": {}}\n</tool_call>'
FORM = CallForm.of(HERMES, {})
TOOLS = {"add": NUMBER, 'n"ü': ANY_OBJECT}


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(TOKENIZER, SIZE)


def allows(compiler: GrammarCompiler, text: str, answer: str) -> bool:
    try:
        compiler.bits(compiler.check(text), [*TOKENIZER.encode(answer), EOS])
    except GrammarError as error:
        assert "does not allow" in str(error)
        return False
    return True


@pytest.mark.parametrize(
    ("grammar", "right", "wrong"),
    [
        (json_grammar(NUMBER), ['{"a": 12}', '{"a": -3}'], ['{"a":12}', '{"a": 1.5}', '{"a": 1} ', "{}", ""]),
        (json_grammar({**NUMBER, "x-guidance": {"whitespace_flexible": True}}), ['{"a": 1}'], ['{ "a": 1}']),
        (regex_grammar("a/b\n[0-9]+"), ["a/b\n12"], ["a/b\n", "xa/b\n1", "a/b\n1 "]),
        (
            calls_grammar(TOOLS, FORM, many=True),
            [ADD, NEW, f"{ADD}\n{NEW}"],
            ["", "hi", f"{ADD}{NEW}", f" {ADD}"],
        ),
        (calls_grammar(TOOLS, FORM, many=False), [ADD, NEW], [f"{ADD}\n{NEW}", ADD.replace("1", '"x"')]),
        (
            text_or_calls_grammar(TOOLS, FORM, many=False),
            ["", "hi <b>", "<tool_cal", ADD, f"So:\n{ADD}"],
            [f"{ADD} more", f"{ADD}\n{NEW}", "<tool_call>", ADD.replace("add", "sub")],
        ),
        (
            text_or_calls_grammar(TOOLS, FORM, many=True),
            ["", "hi", ADD, f"{ADD}\n{NEW} and more", f"So:\n{ADD}\n{ADD}"],
            ["<tool_call>", ADD.replace("add", "sub"), ADD.replace("1", '"x"')],
        ),
        (
            json_or_calls_grammar(NUMBER, TOOLS, FORM, many=True),
            ['{"a": 1}', f"{ADD}\n{ADD}"],
            ["hi", f'{{"a": 1}}{ADD}'],
        ),
    ],
)
def test_what_grammars_allow(compiler, grammar, right, wrong) -> None:
    assert [allows(compiler, grammar, text) for text in right] == [True] * len(right)
    assert [allows(compiler, grammar, text) for text in wrong] == [False] * len(wrong)


def test_arguments_are_objects() -> None:
    assert object_schema(None) == object_schema({}) == ANY_OBJECT
    for bad in ({"type": "array"}, [], "object"):
        with pytest.raises(ValueError, match="type object"):
            object_schema(bad)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (json_grammar({"not": {}}), r'Unimplemented keys: \["not"\]'),
        (json_grammar({"$ref": "#/nowhere"}), "'/nowhere' does not exist"),
        (regex_grammar("("), "invalid regex"),
    ],
)
def test_what_cannot_be_applied_is_named(compiler, text, said) -> None:
    with pytest.raises(GrammarError, match=said) as caught:
        compiler.check(text)
    assert "<state>" not in str(caught.value)


def test_a_grammar_of_another_version_is_refused(compiler) -> None:
    with pytest.raises(GrammarError, match=r"pip install llguidance==0\.1"):
        compiler.start(Grammar("llguidance", "0.1", regex_grammar("a")))


def test_an_end_token_is_needed() -> None:
    endless = ChatTokenizer(TOKENIZER.backend)
    with pytest.raises(GrammarError, match="no end token"):
        GrammarCompiler(endless, SIZE).check(regex_grammar("a"))


def test_a_vocabulary_that_cannot_say_it_is_refused() -> None:
    backend = Tokenizer(models.BPE(vocab={"b": 0, "</s>": 1}, merges=[]))
    backend.decoder = decoders.ByteLevel()
    compiler = GrammarCompiler(ChatTokenizer(backend, eos_ids=[1]), 2)
    compiler.check(regex_grammar("b"))
    with pytest.raises(GrammarError, match="no token"):
        compiler.check(regex_grammar("a"))


def test_bits_are_the_masks_of_every_prefix(compiler) -> None:
    grammar = compiler.check(json_grammar(NUMBER))
    ids = [*TOKENIZER.encode('{"a": 12}'), EOS]
    bits = compiler.bits(grammar, ids)
    state = compiler.start(grammar)
    for at in range(len(ids)):
        mask = state.mask(ids[:at])
        assert mask.shape == (SIZE,) and mask[ids[at]]
        assert torch.equal(mask, unpack_bits(bits[at], SIZE))
        assert torch.equal(mask, state.mask(ids[:at])), "asked again"
        assert torch.equal(mask, compiler.start(grammar).mask(ids[:at])), "asked at once"
    with pytest.raises(GrammarError, match="place 1"):
        compiler.bits(grammar, TOKENIZER.encode("{x"))


def test_threads_share_a_compiler() -> None:
    compiler = GrammarCompiler(TOKENIZER, SIZE)

    def first(i: int) -> list[int]:
        letter = chr(ord("a") + i % 20)
        return compiler.start(compiler.check(regex_grammar(letter))).mask(()).nonzero()[:, 0].tolist()

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(first, range(300)))  # more than the compiler keeps
    assert found == [TOKENIZER.encode(chr(ord("a") + i % 20)) for i in range(300)]


@pytest.mark.parametrize("deterministic", [False, True])
def test_answers_follow_the_grammar_and_the_seed(deterministic) -> None:
    policy = tiny_policy(std=0.2)
    with Engine(policy, slots=4, max_len=200, deterministic=deterministic) as engine:
        grammar = engine.grammars.check(json_grammar({"type": "array", "items": {"type": "boolean"}}))
        sampling = Sampling(max_tokens=40, grammar=grammar, seed=5)
        prompt = TOKENIZER.encode("go")
        alone = engine.submit(Request(prompt, sampling)).result(30)[0]
        futures = [engine.submit(Request(prompt, sampling, n=3)) for _ in range(2)]
        for done in (done for future in futures for done in future.result(30)):
            if done.finish_reason == "stop":
                assert done.token_ids[-1] == EOS and isinstance(json.loads(done.text), list)
            else:
                assert done.finish_reason == "length" and len(done.token_ids) == 40
        assert futures[0].result()[0].token_ids == alone.token_ids
        for at, (token, logprob) in enumerate(zip(alone.token_ids, alone.logprobs, strict=True)):
            before = alone.token_ids[:at]
            logits = policy.model(torch.tensor([[*prompt, *before]]))[0, -1]
            mask = engine.grammars.start(grammar).mask(before)
            row = adjusted(logits, sampling, prompt, before, (EOS,), mask)
            assert float(row[token]) == pytest.approx(logprob, abs=1e-4) and not bool(row[~mask].exp().any())


def test_new_weights_in_the_middle_go_on_in_the_grammar() -> None:
    policy = tiny_policy(std=0.2)
    with Engine(policy, slots=2, max_len=250) as engine:
        grammar = engine.grammars.check(regex_grammar("[ab]{120}"))
        future = engine.submit(Request(TOKENIZER.encode("go"), Sampling(max_tokens=200, grammar=grammar)))
        engine.load_weights(tiny_policy(1, std=0.2).model.state_dict(), 1, "hold", timeout=300)
        done = future.result(30)[0]
    assert len(done.text) == 120 and set(done.text) <= {"a", "b"} and done.finish_reason == "stop"


def test_the_trainers_masked_softmax(compiler) -> None:
    model = tiny_policy(std=0.2).model
    grammar = compiler.check(regex_grammar("(yes|no)!?"))
    prompt, answer = TOKENIZER.encode("ask"), [*TOKENIZER.encode("no!"), EOS]
    ids, start = [*prompt, *answer], len(prompt)
    free = make_row(model, ids, [(start, len(ids))], temperature=0.7, name="free")
    row = make_row(model, ids, [(start, len(ids))], temperature=0.7)
    row.grammars[start] = grammar
    logits = model(torch.tensor([ids]))[0].detach().double() / 0.7
    wanted, spread = [], []
    for at, token in enumerate(answer):
        mask = compiler.start(grammar).mask(answer[:at])
        logp = torch.log_softmax(logits[start + at - 1].masked_fill(~mask, float("-inf")), -1)
        wanted.append(float(logp[token]))
        spread.append(float(-(logp.exp() * logp.masked_fill(~mask, 0)).sum()))
        row.logprobs[start + at] = wanted[-1]
    check_row(row, SIZE, eos_ids=(EOS,), grammars=compiler)
    tokens = tokens_of([free, row], (EOS,), grammars=compiler)
    scores = token_logprobs(model, tokens.packed, tokens.temperature.float(), tokens.guides, entropy=True)
    assert scores.logprobs[len(answer) :].tolist() == pytest.approx(wanted, abs=1e-5)
    assert scores.entropy is not None
    assert scores.entropy[len(answer) :].tolist() == pytest.approx(spread, abs=1e-5)
    (scores.logprobs.sum() + scores.entropy.sum()).backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())
    assert logprob_gap(model, [free, row], eos_ids=(EOS,), grammars=compiler).max < 1e-4


def test_rows_that_do_not_fit_their_grammar_are_refused(compiler) -> None:
    model = tiny_policy().model
    ids = [*TOKENIZER.encode("ask"), *TOKENIZER.encode("no")]
    row = make_row(model, ids, [(3, 5)])
    row.grammars[3] = compiler.check(regex_grammar("yes"))
    with pytest.raises(RowError, match="row row, response at position 3: the grammar does not allow token"):
        check_row(row, SIZE, grammars=compiler)
    with pytest.raises(RowError, match="no tokenizer"):
        check_row(row, SIZE)
    row.grammars = {2: compiler.check(regex_grammar("no"))}
    with pytest.raises(RowError, match="a grammar at position 2, where no segment starts"):
        check_row(row, SIZE, grammars=compiler)


def with_tokens(*pieces: str) -> ChatTokenizer:
    """The tiny tokenizer with more tokens, each a fixed piece of text."""
    backend = Tokenizer.from_str(TOKENIZER.backend.to_str())
    backend.add_tokens([AddedToken(piece, special=False, normalized=False) for piece in pieces])
    return ChatTokenizer(backend, chat_template=TOKENIZER.template.source, config=TOKENIZER.config)


def test_a_policys_own_long_token_is_allowed_where_its_text_is() -> None:
    """Also where two tools begin alike, and a shorter token would do."""
    head = '{"name": "add", "arguments": {"a": '
    tokenizer = with_tokens("<tool_call>\n", head)
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size)
    grammar = compiler.check(calls_grammar({"add": NUMBER, "subtract": NUMBER}, FORM, many=True))
    written = tokenizer.encode(ADD)
    assert tokenizer.encode(head)[0] in written
    assert len(compiler.bits(grammar, written)) == len(written)
    assert len(compiler.bits(grammar, TOKENIZER.encode(ADD))) == len(TOKENIZER.encode(ADD))


def test_a_token_longer_than_the_library_takes_is_never_allowed() -> None:
    text = "a" * (LONGEST + 1)
    tokenizer = with_tokens(text, "b" * LONGEST)
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size)
    mask = compiler.start(compiler.check(regex_grammar("[ab]*"))).mask(())
    (too_long,), (longest,) = tokenizer.encode(text), tokenizer.encode("b" * LONGEST)
    assert not mask[too_long] and mask[longest]
