"""The shipped policy: its prompts are short, its score is the recorded one, and it can be rebuilt."""

from __future__ import annotations

import json
from itertools import islice

import pytest
import torch

from agl_local.policy.folder import Policy, load_policy
from calc_x.evaluate import POLICY, Evaluation, called_expression, evaluate
from calc_x.problems import generate
from calc_x.teacher import first_request, traces
from calc_x.tokenizer import SCAFFOLD, build_tokenizer
from calc_x.warmstart import build, row
from small_policy.teaching import loss

HELD_OUT = 256


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(POLICY)


@pytest.fixture(scope="module")
def greedy(policy: Policy) -> Evaluation:
    return evaluate(policy, generate("heldout", HELD_OUT))


def test_it_is_small_and_what_its_card_says(policy: Policy) -> None:
    assert sum(file.stat().st_size for file in POLICY.iterdir()) <= 3_000_000
    parameters = sum(p.numel() for p in policy.model.parameters())
    assert policy.config.vocab_size == policy.tokenizer.vocab_size
    assert f"{parameters:,} parameters" in (POLICY / "README.md").read_text(encoding="utf-8")


def test_greedy_reward_is_that_of_the_teachers_mode(greedy: Evaluation) -> None:
    assert 0.26 <= greedy.reward <= 0.4
    assert greedy.called > 0.98
    for kind in ("add", "mul", "mul_add"):
        assert greedy.by_kind[kind] > 0.85
    for kind in ("sub", "div", "add_sub", "mul_sub", "sub_div"):
        assert greedy.by_kind[kind] < 0.2


def test_sampled_reward_leaves_something_to_reinforce(policy: Policy) -> None:
    sampled = evaluate(policy, generate("heldout", 160), temperature=1.0)
    assert sampled.reward > 0.3
    for kind in ("sub", "div", "add_sub", "mul_sub", "sub_div"):
        assert sampled.by_kind[kind] > 0


def test_prompts_are_short_and_decode_to_their_text(policy: Policy) -> None:
    tokenizer = policy.tokenizer
    for first, second in islice(traces(5), 100):
        for example, most in ((first, 64), (second, 90)):
            text = tokenizer.render(example.messages, example.tools)
            ids = tokenizer.encode(text)
            assert tokenizer.decode(ids) == text
            assert len(ids) <= most
    digits = tokenizer.encode("1234567890")
    assert len(digits) == 10
    odd = "naïve ⅓ 今日 <|x|>"
    assert tokenizer.decode(tokenizer.encode(odd)) == odd


def test_every_scaffold_line_is_one_ordinary_token(policy: Policy) -> None:
    for line in SCAFFOLD:
        (token,) = policy.tokenizer.encode(line)
        assert not policy.tokenizer.is_special(token)


def test_the_tokenizer_and_template_are_those_the_code_builds(policy: Policy) -> None:
    built = build_tokenizer()
    assert json.loads(built.backend.to_str()) == json.loads(policy.tokenizer.backend.to_str())
    assert built.template is not None and policy.tokenizer.template is not None
    assert built.template.source == policy.tokenizer.template.source


def test_transformers_reads_the_folder_alike(policy: Policy) -> None:
    transformers = pytest.importorskip(
        "transformers", reason="transformers is optional; it checks the layout"
    )
    theirs = transformers.AutoTokenizer.from_pretrained(POLICY)
    model = transformers.AutoModelForCausalLM.from_pretrained(POLICY).eval()
    for example in (e for pair in islice(traces(3), 4) for e in pair):
        text = theirs.apply_chat_template(
            example.messages, tools=example.tools, tokenize=False, add_generation_prompt=True
        )
        assert text == policy.tokenizer.render(example.messages, example.tools)
        ids = torch.tensor([theirs(text, add_special_tokens=False)["input_ids"]])
        assert ids[0].tolist() == policy.tokenizer.encode(text)
        with torch.no_grad():
            assert torch.allclose(model(ids).logits, policy.model(ids), atol=1e-4)


def test_only_the_answer_and_its_end_are_learned(policy: Policy) -> None:
    tokenizer = policy.tokenizer
    first, second = next(traces(1))
    ids, prompt = row(tokenizer, first)
    assert tokenizer.decode(ids[:prompt]) == tokenizer.render(first.messages, first.tools)
    assert tokenizer.decode(ids[prompt:]).startswith("<tool_call>\n")
    assert ids[-1] in tokenizer.eos_ids
    rows = [row(tokenizer, first), row(tokenizer, second)]
    assert isinstance(policy.model.config.vocab_size, int)
    together, count = loss(policy.model, rows)  # type: ignore[arg-type]
    apart = [loss(policy.model, [one]) for one in rows]  # type: ignore[arg-type]
    assert count == sum(len(ids) - prompt for ids, prompt in rows) == sum(n for _, n in apart)
    assert together.item() == pytest.approx(sum(value.item() for value, _ in apart), rel=1e-4)


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ('<tool_call>\n{"name": "calculate", "arguments": {"expression": "1+2"}}\n</tool_call>', "1+2"),
        ('{"name": "calculate", "arguments": {"expression": "1+2"}}', None),
        ('<tool_call>\n{"name": "other", "arguments": {"expression": "1+2"}}\n</tool_call>', None),
        ('<tool_call>\n{"name": "calculate", "arguments": {"expression": 3}}\n</tool_call>', None),
        ('<tool_call>\n{"name": "calculate"', None),
        ("<tool_call>[]</tool_call>", None),
        ("### ANSWER: 3 ###", None),
    ],
)
def test_called_expression(text: str, expression: str | None) -> None:
    assert called_expression(text) == expression


@pytest.mark.slow
def test_a_prompt_does_not_depend_on_its_neighbours(policy: Policy) -> None:
    problems = generate("heldout", 24)
    together = evaluate(policy, problems)
    assert together.rewards == [evaluate(policy, [problem]).rewards[0] for problem in problems]
    assert policy.tokenizer.apply(first_request("A?")) != policy.tokenizer.apply(first_request("B?"))


@pytest.mark.nightly
def test_the_rebuild_gives_the_same_evaluation(greedy: Evaluation) -> None:
    """The same bits on the machine that built it; elsewhere rounding may differ, within the spread of 400
    problems.
    """
    rebuilt = evaluate(build(seed=1, log_every=0), generate("heldout", HELD_OUT))
    assert abs(rebuilt.reward - greedy.reward) <= 0.04
    for kind, reward in greedy.by_kind.items():
        assert abs(rebuilt.by_kind[kind] - reward) <= 0.15, kind


def test_transformers_tokenizes_unseen_text_alike(policy: Policy) -> None:
    """Loaders that go by the model's type replace parts of a tokenizer; the ids must not change by it."""
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(POLICY)
    texts = [problem["question"] for problem in generate("heldout", 60)]
    texts += ["a  b\n\n c é 12.5!?\t", "I'll pay $1,000 - isn't it?", "   x\n \n", "Cafe\u0301"]
    for text in texts:
        assert theirs.encode(text) == policy.tokenizer.encode(text), text


def test_a_prompts_mean_is_weighed_beside_the_answers(policy: Policy) -> None:
    rows = [([5, 6, 7, 8, 9], 3), ([6, 7, 8], 1)]
    told = []
    with torch.no_grad():
        for ids, prompt in rows:
            logprobs = policy.model(torch.tensor([ids]))[0].log_softmax(-1)
            each = [-float(logprobs[at - 1, ids[at]]) for at in range(1, len(ids))]
            told.append((each[: prompt - 1], each[prompt - 1 :]))
        prompts, answers = ([value for one in told for value in one[part]] for part in (0, 1))
        plain, count = loss(policy.model, rows)
        both, _ = loss(policy.model, rows, 0.5)
    assert count == len(answers) == 4 and float(plain) == pytest.approx(sum(answers), rel=1e-5)
    wanted = sum(answers) + 0.5 * count * sum(prompts) / len(prompts)
    assert float(both) == pytest.approx(wanted, rel=1e-5)
