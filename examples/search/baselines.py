"""What answers without a model earn: ``python -m search.baselines``; the last line is one JSON object.

Also the scripts that a run measures through the real agent (``environment.headroom``): ``factory(tasks) ->
script``, where a script takes the body of a chat request and returns the assistant message.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from search.grading import grade
from search.index import factbook
from search.questions import FACTS, PARTNERS, Task, facts, kept, tasks
from search.reader import OTHER, STOPS, UNKNOWN, Call, step, understood

Answer = Callable[[str], str]
"""Question → answer."""
Script = Callable[[Mapping[str, Any]], dict[str, Any]]
COUNT = 256
"""Held-out tasks, those of ``cpu.yaml``."""


def first_title(question: str) -> str:
    """One search with the question's words: the asked fact of the country whose document comes first."""
    best = factbook().best(question, 1)
    return _fact(question, best[0].country) if best else UNKNOWN


def one_document(question: str) -> str:
    """One search with the question's words: the asked fact in the first of 50 documents that has it."""
    fact = FACTS[understood(question).fact]
    found = (fact.of(one.text) for one in factbook().best(question, 50) if one.section == fact.section)
    return next((one for one in found if one), UNKNOWN)


def great_trader(question: str) -> str:
    """No search: the asked fact of the country that most others trade most with."""
    named = Counter(one["country"] for split in kept().values() for one in split if one["kind"] in PARTNERS)
    return _fact(question, named.most_common(1)[0][0])


def frequent(question: str) -> str:
    """No search: the answer that the asked fact has most often in training."""
    asked = understood(question).fact
    given = Counter(one["answer"] for one in kept()["train"] if one["asked"] == asked)
    best: str = given.most_common(1)[0][0]
    return best


def chance_answer(question: str) -> str:
    """No search: the asked fact of some country, the question being the seed."""
    values = facts()[understood(question).fact]
    return values[random.Random(question).choice(sorted(values))]


def first_document(question: str) -> str:
    """Two documents, and the wrong use of them: stops at the country that the clue leads to."""
    return read_by(question, (STOPS,))


def exports_only(question: str) -> str:
    """Two documents, and takes what is imported for what is exported."""
    return read_by(question, (OTHER,))


def reader(question: str) -> str:
    """Two documents, looked up as they should be: the patterns of the questions in the place of a model."""
    return read_by(question, ())


def read_by(question: str, slips: Sequence[str]) -> str:
    """The answer of a scripted reader."""
    said: list[str] = []
    while isinstance(done := step(question, said, slips), Call):
        said.append(getattr(factbook(), done.tool)(done.argument))
    return done


def _fact(question: str, country: str) -> str:
    return facts()[understood(question).fact].get(country, UNKNOWN)


BASELINES: dict[str, Answer] = {
    "random": chance_answer,
    "frequent": frequent,
    "great_trader": great_trader,
    "first_title": first_title,
    "one_document": one_document,
    "first_document": first_document,
    "exports_only": exports_only,
    "reader": reader,
}


def rewards(answer: Answer, held_out: Sequence[Task]) -> list[float]:
    """The reward of each task."""
    return [grade(answer(one["question"]), one["answer"]) for one in held_out]


# ------------------------------------------------------------------------------------------------- scripts
def oracle(tasks: Sequence[Task]) -> Script:
    """The perfect policy for ``tasks``: it finds and reads both documents, then gives the gold answer."""
    gold = {one["question"]: one for one in tasks}

    def script(body: Mapping[str, Any]) -> dict[str, Any]:
        question, said = conversation(body["messages"])
        task = gold[question]
        if len(said) == 4:
            return message(task["answer"])
        number = f"call_{len(said)}"
        title = task["documents"][len(said) // 2]
        words = [task["clue"], task["country"]][len(said) // 2]
        search = Call("search", f"{words} {title.rpartition(': ')[2]}")
        if len(said) % 2:
            assert title in said[-1], f"{search.argument!r} does not find {title!r}"
        return message(Call("read", title) if len(said) % 2 else search, number)

    return script


def looks_up(tasks: Sequence[Task]) -> Script:
    """The scripted reader as a policy."""

    def script(body: Mapping[str, Any]) -> dict[str, Any]:
        question, said = conversation(body["messages"])
        return message(step(question, said), f"call_{len(said)}")

    return script


def chance(tasks: Sequence[Task]) -> Script:
    """The asked fact of some country, without a search."""
    return lambda body: message(chance_answer(conversation(body["messages"])[0]))


def conversation(messages: Sequence[Mapping[str, Any]]) -> tuple[str, list[str]]:
    """The question of a request's messages, and what the tools have said."""
    question = next(str(one["content"]) for one in messages if one["role"] == "user")
    return question, [str(one["content"]) for one in messages if one["role"] == "tool"]


def message(done: Call | str, call_id: str = "call_0") -> dict[str, Any]:
    """The assistant message of a call or an answer."""
    if isinstance(done, str):
        return {"role": "assistant", "content": done}
    name = {"search": "words", "read": "title"}[done.tool]
    function = {"name": done.tool, "arguments": json.dumps({name: done.argument}, ensure_ascii=False)}
    calls = [{"id": call_id, "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def main() -> None:
    """Print the mean reward of each."""
    held_out = tasks("heldout", COUNT)
    means = {name: sum(rewards(one, held_out)) / len(held_out) for name, one in BASELINES.items()}
    print(json.dumps({"tasks": len(held_out), **{name: round(mean, 3) for name, mean in means.items()}}))


if __name__ == "__main__":
    main()
