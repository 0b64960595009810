"""A program for Agent Lightning 1.0: it knows three variables, and what `env_map` gave it."""

import json
import os
import urllib.request

HEAD = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['AGL_KEY']}"}
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


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), HEAD)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


messages = [
    {"role": "system", "content": "Use the calculator."},
    {"role": "user", "content": os.environ["QUESTION"]},
]
answer = post(
    os.environ["AGL_OPENAI_BASE_URL"] + "/chat/completions",
    {"model": "auto", "messages": messages, "tools": [CALCULATE]},
)
value = float(os.environ["EXPRESSION"] in json.dumps(answer["choices"][0]["message"]))
post(os.environ["AGL_EVENT_URL"], {"event_type": "note", "data": {"calls": 1}})
post(os.environ["AGL_EVENT_URL"], {"event_type": "reward", "data": {"value": value}})
print(f"posted {value}")
