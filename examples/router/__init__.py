"""router: a LangGraph agent that chooses the database that can answer a question, trained where it chooses.

The agent (``agent``) has two nodes: one asks a model for the database, one opens it and answers what plain
code can answer. Around it: real questions and databases of Spider with three kinds of distractors
(``datasets``, ``distractors``), what the model is shown (``prompts``), answering without a model
(``lookup``), and the references that a trained policy is compared with (``baselines``).
"""
