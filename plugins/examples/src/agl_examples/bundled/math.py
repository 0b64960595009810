"""``math``: word problems of one or two steps, in English, whose answers are numbers; with a calculator."""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from agl_examples.bundled.task_set import Task, TaskSet

ANSWER_FORM = "When you have the answer, give it between three sharps: ### ANSWER: <answer> ###"
_ANSWER = re.compile(r"###\s*ANSWER:\s*(.*?)\s*(?:###|$)", re.IGNORECASE | re.DOTALL)
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


def math() -> TaskSet:
    """Return the set."""
    data = json.loads(Path(__file__).with_name("math.json").read_text(encoding="utf-8"))
    made = {part: [_task(question, answer) for question, answer in rows] for part, rows in data.items()}
    return TaskSet(
        name="math",
        train=made["train"],
        val=made["val"],
        grade=grade,
        gold=lambda task: f"### ANSWER: {task['answer']} ###",
        system="Use the calculator.",
        tools=(calculate,),
    )


def _task(question: str, answer: str) -> Task:
    return {"set": "math", "question": f"{question}\n\n{ANSWER_FORM}", "answer": answer}


def grade(task: Mapping[str, Any], text: str) -> float:
    """Return 1.0 if the last answer between sharps is exactly the task's number, else 0.0."""
    found = _ANSWER.findall(text)
    try:
        return float(bool(found) and _value(found[-1].replace(",", "")) == Fraction(task["answer"]))
    except (ArithmeticError, SyntaxError, ValueError, RecursionError):
        return 0.0


def calculate(expression: str) -> str:
    """Calculate the value of an arithmetic expression."""
    try:
        value = _value(expression)
    except (ArithmeticError, SyntaxError, ValueError, RecursionError) as error:
        return f"error: {error}"
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.10g}"


def _value(text: str) -> Fraction:
    """Evaluate numbers, brackets and ``+ - * /``, exactly. Raise ``ValueError`` for anything else."""
    if len(text) > 200:
        raise ValueError("the expression is too long")
    return _of(ast.parse(text.strip(), mode="eval").body)


def _of(node: ast.AST) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return Fraction(str(node.value))
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return Fraction(_OPERATORS[type(node.op)](_of(node.left), _of(node.right)))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        return Fraction(_OPERATORS[type(node.op)](_of(node.operand)))
    raise ValueError("only numbers, brackets and + - * / are understood")
