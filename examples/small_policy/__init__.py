"""How the examples' small policies are made and asked: the tokenizer (``reading``), the warm start
(``teaching``), and answers to many prompts at once (``answering``). What they are taught is each example's.
"""
