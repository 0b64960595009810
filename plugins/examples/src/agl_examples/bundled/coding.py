"""``coding``: small Python functions, graded by tests that run in a process of their own.

The process has no environment, an empty folder, Python's isolated mode, and limits on CPU time, memory,
output and processes. It is no jail: it can read what this user can read. Run untrusted models in a container.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from agl_examples.bundled.task_set import Task, TaskSet

SECONDS = 5.0
# fmt: off
_FUNCTIONS: tuple[tuple[str, str, str, list[list[Any]]], ...] = (
    ("double", "returns twice the number x", "x * 2", [[3], [0], [-4]]),
    ("square", "returns the square of x", "x * x", [[3], [-2], [0]]),
    ("is_even", "returns whether the whole number x is even", "x % 2 == 0", [[2], [3], [0]]),
    ("largest", "returns the largest item of the list x", "max(x)", [[[1, 5, 2]], [[-3, -1]]]),
    ("total", "returns the sum of the list x", "sum(x)", [[[1, 2, 3]], [[]]]),
    ("backwards", "returns the text x backwards", "x[::-1]", [["abc"], [""]]),
    ("vowels", "counts the vowels a, e, i, o, u in the text x",
     "sum(c in 'aeiou' for c in x)", [["banana"], ["xyz"]]),
    ("unique", "returns the different items of the list x, sorted",
     "sorted(set(x))", [[[3, 1, 3]], [[]]]),
    ("initials", "returns the first letters of the words of the text x",
     "''.join(w[0] for w in x.split())", [["ab cd"], [""]]),
    ("evens", "returns the even numbers of the list x, in their order",
     "[n for n in x if n % 2 == 0]", [[[1, 2, 4]], [[]]]),
    ("is_palindrome", "returns whether the text x reads the same backwards",
     "x == x[::-1]", [["anna"], ["ab"]]),
    ("mean", "returns the mean of the list of numbers x", "sum(x) / len(x)", [[[1, 2, 3]], [[4]]]),
    ("longest", "returns the longest word of the text x",
     "max(x.split(), key=len)", [["a bcd ef"]]),
    ("digits", "returns the sum of the digits of the whole number x", "sum(map(int, str(x)))", [[123], [0]]),
    ("pairs", "returns the number of pairs among x people", "x * (x - 1) // 2", [[4], [1]]),
    ("title", "returns the text x with each word's first letter large", "x.title()", [["ab cd"]]),
)
# fmt: on
_HARNESS = """
import json, resource, sys
for kind, most in ((resource.RLIMIT_CPU, 4), (resource.RLIMIT_FSIZE, 1 << 20), (resource.RLIMIT_AS, 1 << 30)):
    resource.setrlimit(kind, (most, most))
try:
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
except (AttributeError, ValueError):
    pass
given = json.load(sys.stdin)
scope = {"__name__": "answer"}
exec(given["code"], scope)
print("\\n" + json.dumps([scope[given["name"]](*arguments) for arguments in given["calls"]]))
"""


def coding() -> TaskSet:
    """Return the set: twelve functions to train on and four others."""
    made = [_task(*one) for one in _FUNCTIONS]
    return TaskSet(
        name="coding",
        train=[task for index, task in enumerate(made) if index % 4],
        val=made[::4],
        grade=grade,
        gold=lambda task: f"```python\n{task['answer']}\n```",
    )


def _task(name: str, does: str, body: str, calls: list[list[Any]]) -> Task:
    asked = f"Write a Python function {name}(x) that {does}. Answer with the code in a ```python block."
    code = f"def {name}(x):\n    return {body}"
    return {"set": "coding", "question": asked, "name": name, "answer": code, "calls": calls}


def grade(task: Mapping[str, Any], text: str) -> float:
    """Return 1.0 if the function in the last code block returns what the task's own returns, else 0.0."""
    blocks = re.findall(r"```(?:python)?\s*\n(.*?)```", text, re.DOTALL)
    if not blocks:
        return 0.0
    found = _results(task, blocks[-1])
    return float(found is not None and found == _results(task, task["answer"]))


def _results(task: Mapping[str, Any], code: str) -> Any:
    """Return what the function returns for each call; ``None`` if the process fails or takes too long."""
    given = json.dumps({"code": code, "name": task["name"], "calls": task["calls"]})
    with (
        tempfile.TemporaryDirectory(prefix="agl-coding-") as folder,
        tempfile.TemporaryFile("w+", encoding="utf-8") as output,
    ):
        try:
            # Into a file, whose size is limited: a pipe would be read into this process's memory without end.
            done = subprocess.run(
                [sys.executable, "-I", "-S", "-c", _HARNESS], input=given, encoding="utf-8", timeout=SECONDS,
                stdout=output, stderr=subprocess.DEVNULL, cwd=folder, env={},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return None
        output.seek(0)
        try:
            return json.loads(output.read().strip().split("\n")[-1]) if done.returncode == 0 else None
        except (IndexError, ValueError):
            return None
