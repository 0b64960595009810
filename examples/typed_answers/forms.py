"""What two frameworks send to a model, whose every answer must be a tool call: the calculator's, or the last.

Pydantic AI offers the answer as a tool, because its ``output_type`` is an object. smolagents'
``ToolCallingAgent`` ends by a tool ``final_answer``, and tells the model its earlier calls in prose. Both
force a tool call. A form makes the messages of both calls; the tests compare them with what the frameworks
send.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calc_x.calculator import calculate_text
from calc_x.teacher import Example

HERE = Path(__file__).resolve().parent
SMOLAGENTS = (HERE / "smolagents_prompt.txt").read_text(encoding="utf-8").partition("\n=====\n")[2]
"""The system message of smolagents 1.26 for an agent with the calculator (Apache-2.0, Hugging Face)."""


def tool(name: str, field: str) -> dict[str, Any]:
    """A tool with one argument, as much of it as the chat template shows."""
    parameters = {"type": "object", "properties": {field: {}}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def call(name: str, arguments: str, call_id: str) -> dict[str, Any]:
    """An assistant message that calls a tool; ``arguments`` as the model writes them."""
    function = {"name": name, "arguments": arguments}
    calls = [{"id": call_id, "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


@dataclass(frozen=True)
class Form:
    """How a framework puts a problem: ``system`` message, what stands ``before`` the question, and the tool
    ``last``, which takes the answer. ``prose``: earlier calls are told as text.
    """

    name: str
    system: str
    last: str
    before: str = ""
    prose: bool = False

    @property
    def tools(self) -> list[dict[str, Any]]:
        return [tool("calculate", "expression"), tool(self.last, "answer")]

    def first(self, question: str) -> list[dict[str, Any]]:
        """The messages of the first call."""
        return [
            {"role": "system", "content": self.system},
            {"role": "user", "content": f"{self.before}{question}"},
        ]

    def second(self, question: str, expression: str, result: str, call_id: str) -> list[dict[str, Any]]:
        """The messages of the second call, after the calculator has answered."""
        arguments = {"expression": expression}
        if not self.prose:
            asked = call("calculate", json.dumps(arguments), call_id)
            answered = {"role": "tool", "tool_call_id": call_id, "content": result}
            return [*self.first(question), asked, answered]
        function = {"name": "calculate", "arguments": arguments}
        told = [{"id": call_id, "type": "function", "function": function}]
        return [
            *self.first(question),
            {"role": "assistant", "content": f"Calling tools:\n{told}"},
            {"role": "user", "content": f"Observation:\n{result}"},
        ]

    def answer(self, result: str) -> dict[str, Any]:
        """The last call: smolagents takes the answer as text, Pydantic AI as the number that it is."""
        written = json.dumps(result) if self.prose else result
        return call(self.last, f'{{"answer": {written}}}', "call_1")

    def examples(self, question: str, expression: str, call_id: str) -> tuple[Example, Example]:
        """Both calls of a teacher who writes ``expression``."""
        result = calculate_text(expression)
        asked = call("calculate", json.dumps({"expression": expression}), call_id)
        return (
            Example(self.first(question), self.tools, asked),
            Example(self.second(question, expression, result, call_id), self.tools, self.answer(result)),
        )


FORMS: Sequence[Form] = (
    Form("pydantic-ai", "Use the calculator.", "final_result"),
    Form("smolagents", SMOLAGENTS, "final_answer", "New task:\n", prose=True),
)
