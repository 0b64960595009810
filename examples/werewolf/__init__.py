"""werewolf: 狼人杀 as a game of many agents, and everything needed to train them.

The rules (``engine``) know no model. Around them: players (``players``), the words they read (``wording``,
``prompts/``), the table they sit at (``table``), tournaments (``tournament``), replays (``replay``), and the
agent that is trained (``agent``).
"""
