"""DSPy: a `ReAct` with a calculator, and the three lines that train it.

Run `python examples/quickstart_dspy.py` in the repository. Its tiny policy learns on a CPU in seconds.
"""

import json

import dspy

import agentlightning as agl  # ours, 1 of 3
from calc_x.calculator import calculate_text
from calc_x.datasets import load
from calc_x.grading import ANSWER_FORM, grade


def calculate(expression: str) -> str:
    """Calculate the value of an arithmetic expression."""
    return calculate_text(expression)


solver = dspy.ReAct("question -> answer", tools=[calculate], max_iters=1)


class PlainAdapter(dspy.ChatAdapter):
    """DSPy asks for fields of text. The tiny policy knows plain messages and tool calls only."""

    def format_user_message_content(self, signature, inputs, **more):
        return json.dumps(inputs)  # of the steps so far

    def format(self, signature, demos, inputs):
        steps = json.loads(inputs["trajectory"])
        plain = [{"role": "system", "content": "Use the calculator."}]
        plain += [{"role": "user", "content": inputs["question"]}]
        if steps.get("tool_name_0") == "calculate":
            asked = {"name": "calculate", "arguments": json.dumps(steps["tool_args_0"])}
            calls = [{"id": "call_0", "type": "function", "function": asked}]
            plain += [{"role": "assistant", "content": None, "tool_calls": calls}]
            plain += [{"role": "tool", "tool_call_id": "call_0", "content": steps["observation_0"]}]
        return plain

    def _call_postprocess(self, processed, signature, outputs, *more):
        said = outputs[0] if isinstance(outputs[0], dict) else {"text": outputs[0]}
        asked = [call["function"] for call in said.get("tool_calls") or ()]
        name, given = (asked[0]["name"], json.loads(asked[0]["arguments"])) if asked else ("finish", {})
        step = {"next_thought": said["text"] or "", "next_tool_name": name, "next_tool_args": given}
        return [{**step, "reasoning": "", "answer": said["text"] or ""}]


@agl.rollout  # 2 of 3: what runs one task and returns its reward
def solve(task, llm):
    tools = [dspy.Tool(calculate).format_as_litellm_function_call()]
    model = dspy.LM(f"openai/{llm.model}", api_base=llm.endpoint, api_key=llm.api_key, tools=tools)
    with dspy.context(lm=model, adapter=PlainAdapter()):
        answer = solver(question=f"{task['question']}\n\n{ANSWER_FORM}")
    return grade(answer.answer, task["result"])


if __name__ == "__main__":
    train, held_out = load("generated:train", 400), load("generated:heldout", 64)
    agl.Trainer(policy="examples/quickstart/policy", steps=12).fit(solve, train, held_out)  # 3 of 3
