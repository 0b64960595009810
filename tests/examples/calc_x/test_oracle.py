"""The scripted stand-ins, as a model server would call them."""

from __future__ import annotations

import json
import random

import pytest

from calc_x.calculator import calculate_text
from calc_x.datasets import load
from calc_x.grading import ANSWER_FORM, grade
from calc_x.headroom import expression_by_verbs, verbs
from calc_x.oracle import expression_for, gold_lookup, question_of, random_reply, reply
from calc_x.problems import Problem, generate
from calc_x.teacher import TOOLS, first_request, second_request


@pytest.mark.parametrize("source", ["generated:heldout", "svamp", "gsm8k", "aqua", "gsmhard", "calcx"])
def test_reply_calls_once_and_answers_gold(source: str) -> None:
    problems = load(source, limit=40)
    gold = gold_lookup(problems)
    for problem in problems:
        question = problem["question"]
        call = reply(first_request(question), TOOLS, gold)
        (function,) = [c["function"] for c in call["tool_calls"]]
        result = calculate_text(json.loads(function["arguments"])["expression"])
        assert not result.startswith("error")
        answer = reply(second_request(question, call, result), None, gold)
        assert grade(answer["content"], problem["result"]) == 1.0


def test_without_tools_the_oracle_answers_at_once() -> None:
    (problem,) = generate("train", 1)
    answer = reply(first_request(problem["question"]), None, gold_lookup([problem]))
    assert grade(answer["content"], problem["result"]) == 1.0


def test_question_of_reads_text_and_parts() -> None:
    text = f"One.\n\nTwo?\n\n{ANSWER_FORM}"
    assert question_of([{"role": "user", "content": text}]) == "One.\n\nTwo?"
    assert question_of([{"role": "user", "content": [{"type": "text", "text": text}]}]) == "One.\n\nTwo?"
    with pytest.raises(ValueError, match="no user message"):
        question_of([{"role": "system", "content": "x"}])


def test_an_expression_that_misses_the_gold_is_replaced_by_it() -> None:
    problem: Problem = {
        "id": "",
        "question": "",
        "result": "7",
        "source": "",
        "kind": "",
        "expression": "1+1",
    }
    assert expression_for(problem) == "7"
    assert expression_for({**problem, "expression": "n/a"}) == "7"
    assert expression_for({**problem, "expression": "3+4"}) == "3+4"
    assert expression_for({**problem, "result": "B"}) == "1"


def test_random_replies_use_the_numbers_of_the_question_and_follow_the_generator() -> None:
    messages = first_request("Ida has 20 coins. Then Ida buys 7 more. How many?")
    calls = [random_reply(messages, TOOLS, random.Random(seed)) for seed in range(30)]
    expressions = {json.loads(c["tool_calls"][0]["function"]["arguments"])["expression"] for c in calls}
    assert len(expressions) > 5
    assert all(set(e.replace("20", "").replace("7", "")) <= set("+-*/") for e in expressions)
    assert calls[0] == random_reply(messages, TOOLS, random.Random(0))
    answer = random_reply(second_request("Ida has 20 coins.", calls[0], "27"), None, random.Random(0))
    assert answer["content"] == "### ANSWER: 27 ###"


def test_a_dozen_words_answer_every_held_out_problem() -> None:
    """The figure beside that of the trained policy."""
    for problem in load("generated:heldout", limit=256, seed=1):
        call = verbs([])({"messages": first_request(problem["question"]), "tools": TOOLS})
        result = calculate_text(json.loads(call["tool_calls"][0]["function"]["arguments"])["expression"])
        answer = verbs([])({"messages": second_request(problem["question"], call, result)})
        assert grade(answer["content"], problem["result"]) == 1.0
    assert expression_by_verbs("How many?") == "0"
