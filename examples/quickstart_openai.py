"""The bare OpenAI client: an agent loop by hand, and the three lines that train it.

Run it with `python examples/quickstart_openai.py`, in the repository.
The policy is a tiny one that learns on a CPU in seconds.
"""

import json

from openai import AsyncOpenAI

import agentlightning as agl  # ours, 1 of 3
from calc_x.calculator import calculate_text
from calc_x.datasets import load
from calc_x.grading import ANSWER_FORM, grade

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


async def answer(question, client, model, turns=4):
    messages = [{"role": "system", "content": "Use the calculator."}, {"role": "user", "content": question}]
    for _ in range(turns):
        response = await client.chat.completions.create(model=model, messages=messages, tools=[CALCULATE])
        message = response.choices[0].message
        messages.append(message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            result = calculate_text(json.loads(call.function.arguments).get("expression", ""))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


@agl.rollout  # 2 of 3: what runs one task and returns its reward
async def solve(task, llm):
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        said = await answer(f"{task['question']}\n\n{ANSWER_FORM}", client, llm.model)
    return grade(said, task["result"])


if __name__ == "__main__":
    train, held_out = load("generated:train", 400), load("generated:heldout", 64)
    agl.Trainer(policy="examples/quickstart/policy", steps=12).fit(solve, train, held_out)  # 3 of 3
