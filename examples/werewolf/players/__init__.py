"""Who sits at the table: random, scripted, oracle players, and players that ask a model.

A player observes the events its seat may know, and answers asks; it never sees the engine's state (the oracle
does: it measures what there is to gain).
"""

from __future__ import annotations
