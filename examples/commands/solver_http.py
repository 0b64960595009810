"""Solve a word problem with a calculator: plain HTTP, the task as JSON on standard input, a score as JSON.

The program checks its own answer, as a benchmark's script does, and prints ``{"answer": …, "score": 0.0}``.
"""

import ast
import json
import operator
import os
import re
import sys
import urllib.request

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


def ask(messages):
    body = {"model": os.environ.get("OPENAI_MODEL", "gpt-4o"), "messages": messages, "tools": [CALCULATE]}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]


def solve(question):
    messages = [
        {"role": "system", "content": "Use the calculator."},
        {"role": "user", "content": f"{question}\n\n{ANSWER_FORM}"},
    ]
    for _ in range(4):
        message = ask(messages)
        if not message.get("tool_calls"):
            return message["content"]
        messages.append({key: message[key] for key in ("role", "content", "tool_calls")})
        for call in message["tool_calls"]:
            result = calculate(json.loads(call["function"]["arguments"]).get("expression", ""))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return ""


if __name__ == "__main__":
    task = json.load(sys.stdin)
    found = re.findall(r"### ANSWER: (\S+) ###", solve(task["question"]) or "")
    print(json.dumps({"answer": found[-1:], "score": float(found[-1:] == [task["result"]])}))
