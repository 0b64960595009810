"""smolagents: a `ToolCallingAgent` with a calculator, and the three lines that train it.

Run it with `python examples/quickstart_smolagents.py`, in the repository.
The policy is a tiny one that learns on a CPU in seconds.
"""

import ast
import json

from smolagents import ChatMessage, LogLevel, OpenAIServerModel, ToolCallingAgent, tool
from smolagents.models import ChatMessageToolCall, ChatMessageToolCallFunction, get_tool_json_schema

import agentlightning as agl  # ours, 1 of 3
from calc_x.calculator import calculate_text
from calc_x.datasets import load
from calc_x.grading import ANSWER_FORM, grade


@tool
def calculate(expression: str) -> str:
    """Calculate the value of an arithmetic expression.

    Args:
        expression: What to calculate.
    """
    return calculate_text(expression)


class PlainModel(OpenAIServerModel):
    """smolagents tells the model its steps in prose. The tiny policy knows plain messages only."""

    def generate(self, messages, **more):
        said = [text_of(message) for message in messages]
        plain = [{"role": "system", "content": "Use the calculator."}, {"role": "user", "content": said[1]}]
        for asked, result in zip(said[2::2], said[3::2], strict=True):
            call = ast.literal_eval(asked)[0]
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
            plain += [{"role": "assistant", "content": None, "tool_calls": [call]}]
            plain += [{"role": "tool", "tool_call_id": call["id"], "content": result}]
        create, tools = self.client.chat.completions.create, [get_tool_json_schema(calculate)]
        answer = create(model=self.model_id, messages=plain, tools=tools).choices[0].message
        final = ChatMessageToolCallFunction(name="final_answer", arguments={"answer": answer.content})
        calls = answer.tool_calls or [ChatMessageToolCall(function=final, id="final", type="function")]
        return ChatMessage("assistant", answer.content, calls)


def text_of(message):
    return message.content[0]["text"].partition(":\n")[2]


@agl.rollout  # 2 of 3: what runs one task and returns its reward
def solve(task, llm):
    model = PlainModel(llm.model, api_base=llm.endpoint, api_key=llm.api_key)
    agent = ToolCallingAgent([calculate], model, name="solver", verbosity_level=LogLevel.OFF, max_steps=4)
    return grade(str(agent.run(f"{task['question']}\n\n{ANSWER_FORM}")), task["result"])


if __name__ == "__main__":
    train, held_out = load("generated:train", 400), load("generated:heldout", 64)
    agl.Trainer(policy="examples/quickstart/policy", steps=12).fit(solve, train, held_out)  # 3 of 3
