"""How the examples' small policies are made and asked: the tokenizer (``reading``), the warm start
(``teaching``), answers to many prompts at once (``answering``), and the demo. What they are taught is each
example's.
"""
