"""Solve a word problem with a calculator: the openai package, an argument, the answer on standard output.

OPENAI_BASE_URL=… OPENAI_API_KEY=… python solver_openai.py "Anna keeps 13 stamps. …"
"""

import ast
import json
import operator
import os
import sys

from openai import OpenAI

ANSWER_FORM = "When you have the answer, give it between three sharps: ### ANSWER: <answer> ###"
SIGNS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
CALCULATE = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Calculate the value of an arithmetic expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}


def value(node):
    if isinstance(node, ast.BinOp):
        return SIGNS[type(node.op)](value(node.left), value(node.right))
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    raise ValueError("only numbers, + - * / and brackets")


def calculate(expression):
    try:
        return f"{value(ast.parse(expression, mode='eval').body):g}"
    except (ValueError, SyntaxError, KeyError, ArithmeticError) as error:
        return f"error: {error}"


def solve(question, client, model):
    messages = [
        {"role": "system", "content": "Use the calculator."},
        {"role": "user", "content": f"{question}\n\n{ANSWER_FORM}"},
    ]
    for _ in range(4):
        answer = client.chat.completions.create(model=model, messages=messages, tools=[CALCULATE])
        message = answer.choices[0].message
        if not message.tool_calls:
            return message.content
        messages.append(message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))
        for call in message.tool_calls:
            result = calculate(json.loads(call.function.arguments).get("expression", ""))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return ""


if __name__ == "__main__":
    print(solve(sys.argv[1], OpenAI(), os.environ.get("OPENAI_MODEL", "gpt-4o")))
