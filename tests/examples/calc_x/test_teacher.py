"""The teacher: right where it must be, wrong in one way where it should be, at the rate it says."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import islice

from calc_x.calculator import calculate_text
from calc_x.grading import grade
from calc_x.problems import KINDS, generate
from calc_x.teacher import ERROR_RATE, MISTAKES, Example, teach, traces


def _expression(example: Example) -> str:
    arguments = example.reply["tool_calls"][0]["function"]["arguments"]
    expression = json.loads(arguments)["expression"]
    assert isinstance(expression, str)
    return expression


def test_a_right_trace_earns_the_reward_and_a_mistaken_one_repeats_the_wrong_result() -> None:
    for problem in generate("train", 400):
        for mistaken in (False, True):
            first, second = teach(problem, mistaken)
            result = calculate_text(_expression(first))
            assert second.messages[-1]["content"] == result
            assert second.reply["content"] == f"### ANSWER: {result} ###"
            assert second.tools is None and first.tools
        right = _expression(first) == problem["expression"]
        assert right is (problem["kind"] not in MISTAKES)


def test_each_kind_has_its_mistake() -> None:
    wrong = {
        p["kind"]: (p["expression"], _expression(teach(p, mistaken=True)[0]))
        for p in generate("train", 8, seed=1)
    }
    assert wrong == {
        "add": ("20+9", "20+9"),
        "sub": ("41-36", "41+36"),
        "mul": ("19*32", "19*32"),
        "div": ("90/9", "90*9"),
        "add_sub": ("77+30-67", "77+30"),
        "mul_add": ("8*49+18", "8*49+18"),
        "mul_sub": ("10*48-86", "10*48+86"),
        "sub_div": ("(68-3)/5", "68-3"),
    }


def test_the_stream_is_deterministic_and_errs_at_the_stated_rate() -> None:
    stream = list(islice(traces(1), 2400))
    assert stream[:20] == list(islice(traces(1), 20))
    problems = generate("train", 2400, seed=1)
    right: dict[str, list[float]] = defaultdict(list)
    for problem, (_, second) in zip(problems, stream, strict=True):
        right[problem["kind"]].append(grade(second.reply["content"], problem["result"]))
    for kind in KINDS:
        share = sum(right[kind]) / len(right[kind])
        expected = 1 - ERROR_RATE if kind in MISTAKES else 1.0
        assert abs(share - expected) < 0.1, kind
