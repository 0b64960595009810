"""spider: a LangGraph agent that writes SQL and corrects itself, and everything needed to train it
selectively.

The agent (``agent``) is written as a stranger would write it. Around it: its texts (``prompts``), safe
execution and the execution-match reward (``sql``), real and generated questions (``datasets``,
``questions``), scripted references (``oracle``), and the small policy the CPU demo starts from (``teacher``,
``warmstart``, ``policy/``).
"""
