"""A tool loop on the bare OpenAI client, then a streamed word and a structured one."""

import json

from openai import OpenAI
from pydantic import BaseModel

client = OpenAI()


class Verdict(BaseModel):
    good: bool


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]
messages = [{"role": "user", "content": "How is the weather in Paris?"}]
while True:
    answer = client.chat.completions.create(model="gpt-4o-mini", messages=messages, tools=TOOLS)
    message = answer.choices[0].message
    messages.append(message)
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        city = json.loads(call.function.arguments)["city"]
        messages.append({"role": "tool", "tool_call_id": call.id, "content": f"sunny in {city}"})
print(message.content)
messages.append({"role": "user", "content": "In one word?"})
for chunk in client.chat.completions.create(model="gpt-4o-mini", messages=messages, stream=True):
    print(chunk.choices[0].delta.content or "", end="")
print()
judged = client.chat.completions.parse(
    model="gpt-4o-mini",
    messages=[{"role": "user", "content": "judge: is sunny good?"}],
    response_format=Verdict,
)
print(judged.choices[0].message.parsed.good)
