"""A program that knows nothing of Agent Lightning: it asks the model that its environment names."""

import sys

from openai import OpenAI

assert sys.argv[1:] == ["--its-own", "option"]
question = {"role": "user", "content": "What is 12 plus 30?"}
reply = OpenAI().chat.completions.create(model="qwen", messages=[question], max_tokens=16)
print(reply.choices[0].message.content)
