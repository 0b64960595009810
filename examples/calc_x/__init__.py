"""calc_x: an AutoGen agent that answers word problems with one calculator call, and everything needed to
train it.

The agent (``agent``) is written as a stranger would write it. Around it: problems (``problems``,
``datasets``), the tool (``calculator``, ``calculator_server``), the reward (``grading``), scripted references
(``oracle``), and the small policy the CPU demo starts from (``teacher``, ``warmstart``, ``policy/``).
"""
